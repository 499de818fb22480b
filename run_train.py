"""Trains a descriptor, or goes on with the training in the folder.

  python run_train.py --config=configs/quickstart.py --workdir=out/first
  python run_train.py --config=configs/base.py --workdir=out/polar --config.model.head=polar

Ctrl-C saves and stops; the same command goes on. configs/base.py says what each field means.
"""

import sys
from collections.abc import Sequence

from kjax.errors import InputError
from kjax.interrupts import ending_on_interrupt, run_program
from kjax.train.command_line import parse_command_line
from kjax.train.joining import ending_when_alone, join

INTERRUPTED = "run_train: interrupted: the same command goes on from the last checkpoint, if any"


def main(argv: Sequence[str]) -> int:
    """Runs the training; bad input is one line on stderr and exit code 2."""
    try:
        args = parse_command_line(argv, description=__doc__)
        if args.distributed or args.coordinator is not None:
            join(args.coordinator, args.processes, args.process)
        with ending_on_interrupt(INTERRUPTED):
            from kjax.train.config import read_config
            from kjax.train.loop import Stopped
            from kjax.train.run import run

        config = read_config(args.config, args.overrides)
        try:
            with ending_when_alone():
                scores = run(config, args.workdir)
        except Stopped as stopped:
            print(f"run_train: {stopped}", file=sys.stderr)
            return 0
    except (InputError, OSError) as error:
        print(f"run_train: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    for name, value in scores.items():
        print(f"{name:30s} {100 * value:7.2f} %")
    print(f"results and weights are in {args.workdir}")
    return 0


if __name__ == "__main__":
    run_program(main, INTERRUPTED)
