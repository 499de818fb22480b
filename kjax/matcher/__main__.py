"""Trains a matcher, or goes on with the training in the folder.

  kjax build-views photos --weights best --out views.npz
  python -m kjax.matcher --config=configs/matcher.py --workdir=out/matcher

Ctrl-C saves and stops; the same command goes on. configs/matcher.py says what each field means.
"""

import sys
from collections.abc import Sequence

from kjax.errors import InputError
from kjax.interrupts import ending_on_interrupt, run_program
from kjax.train.command_line import parse_command_line

INTERRUPTED = "kjax.matcher: interrupted: the same command goes on from the last checkpoint, if any"


def main(argv: Sequence[str]) -> int:
    """Runs the training; bad input is one line on stderr and exit code 2."""
    try:
        args = parse_command_line(argv, description=__doc__)
        if args.distributed or args.coordinator is not None:
            raise InputError("a matcher is trained by one process: leave out the others")
        with ending_on_interrupt(INTERRUPTED):
            from kjax.matcher.config import SCHEMA
            from kjax.matcher.run import run
            from kjax.matcher.weights import WEIGHTS_FILE
            from kjax.train.config import read_config
            from kjax.train.loop import Stopped

        config = read_config(args.config, args.overrides, schema=SCHEMA)
        try:
            scores = run(config, args.workdir)
        except Stopped as stopped:
            print(f"kjax.matcher: {stopped}", file=sys.stderr)
            return 0
    except (InputError, OSError) as error:
        print(f"kjax.matcher: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    for name, value in scores.items():
        print(f"{name:30s} {100 * value:7.2f} %")
    print(f"the matcher is {args.workdir / WEIGHTS_FILE}")
    return 0


if __name__ == "__main__":
    run_program(main, INTERRUPTED)
