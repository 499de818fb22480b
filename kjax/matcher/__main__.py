"""Train a matcher, or resume the training in the workdir.

  kjax build-views photos --weights best --out views.npz
  python -m kjax.matcher --config=configs/matcher.py --workdir=out/matcher

Ctrl-C saves and exits; run the same command to resume. configs/matcher.py documents every field.
"""

import argparse
from collections.abc import Sequence

from kjax.errors import InputError
from kjax.interrupts import ending_on_interrupt, run_program
from kjax.train.command_line import INTERRUPTED, run_training

PROGRAM = "kjax.matcher"


def main(argv: Sequence[str]) -> int:
    """Run the training; bad input is one line on stderr and exit code 2."""
    return run_training(PROGRAM, argv, train, description=__doc__)


def train(args: argparse.Namespace) -> tuple[dict[str, float], str]:
    """Train; return the scores, and a line about the result."""
    if args.distributed or args.coordinator is not None:
        raise InputError("one process trains a matcher: drop --distributed and --coordinator")
    with ending_on_interrupt(f"{PROGRAM}: {INTERRUPTED}"):
        from kjax.matcher.config import MatcherRunConfig
        from kjax.matcher.training import run
        from kjax.matcher.weights import WEIGHTS_FILE
        from kjax.runs.config import load_config, validate_as

    config = validate_as(MatcherRunConfig, load_config(args.config, args.overrides))
    scores = run(config, args.workdir)
    return scores, f"the matcher is {args.workdir / WEIGHTS_FILE}"


if __name__ == "__main__":
    run_program(main, f"{PROGRAM}: {INTERRUPTED}")
