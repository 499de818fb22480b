"""Train a descriptor, or resume the training in the folder.

  python run_train.py --config=configs/quickstart.py --workdir=out/first
  python run_train.py --config=configs/base.py --workdir=out/polar --config.model.head=polar

Ctrl-C saves and exits. Run the same command to resume. configs/base.py explains each field.
"""

import argparse
from collections.abc import Sequence

from kjax.interrupts import ending_on_interrupt, run_program
from kjax.train.command_line import INTERRUPTED, ending_when_alone, join, run_training

PROGRAM = "run_train"


def main(argv: Sequence[str]) -> int:
    """Run the training; bad input is one line on stderr and exit code 2."""
    return run_training(PROGRAM, argv, train, description=__doc__)


def train(args: argparse.Namespace) -> tuple[dict[str, float], str]:
    """Train; return the scores, and a line that says where the results are."""
    if args.distributed or args.coordinator is not None:
        join(args.coordinator, args.processes, args.process)
    with ending_on_interrupt(f"{PROGRAM}: {INTERRUPTED}"):
        from kjax.runs.config import read_config
        from kjax.train.run import run

    config = read_config(args.config, args.overrides)
    with ending_when_alone():
        scores = run(config, args.workdir)
    return scores, f"results and weights are in {args.workdir}"


if __name__ == "__main__":
    run_program(main, f"{PROGRAM}: {INTERRUPTED}")
