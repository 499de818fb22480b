"""Trains a descriptor, or goes on with the training in the folder.

  python run_train.py --config=configs/quickstart.py --workdir=out/first
  python run_train.py --config=configs/base.py --workdir=out/polar --config.model.head=polar

Ctrl-C saves and stops; the same command goes on. configs/base.py says what each field means.
"""

import argparse
import sys
from collections.abc import Sequence

from kjax.errors import InputError
from kjax.interrupts import ending_on_interrupt, run_program

INTERRUPTED = "run_train: interrupted: the same command goes on from the last checkpoint, if any"


def main(argv: Sequence[str]) -> int:
    """Runs the training; bad input is one line on stderr and exit code 2."""
    try:
        rest = initialize_distributed(argv)
        with ending_on_interrupt(INTERRUPTED):
            from kjax.config import parse_flags
            from kjax.train.joining import ending_when_alone
            from kjax.train.loop import Stopped
            from kjax.train.run import run

        config, workdir = parse_flags(rest)
        try:
            with ending_when_alone():
                scores = run(config, workdir)
        except Stopped as stopped:
            print(f"run_train: {stopped}", file=sys.stderr)
            return 0
    except (InputError, OSError, argparse.ArgumentError) as error:
        print(f"run_train: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    for name, value in scores.items():
        print(f"{name:30s} {100 * value:7.2f} %")
    print(f"results and weights are in {workdir}")
    return 0


def initialize_distributed(argv: Sequence[str]) -> list[str]:
    """Joins the other processes, if there are any; returns the arguments that are about the run."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s --config=FILE[:ARGUMENT] --workdir=FOLDER [--config.group.field=value …]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("--config", metavar="FILE", help="a file, or the name of one in configs")
    parser.add_argument("--workdir", metavar="FOLDER", help="of the run; the same resumes it")
    add = parser.add_argument_group("several machines, the same command on each").add_argument
    add("--coordinator", metavar="ADDRESS", help="HOST:PORT of process 0, any free port")
    add("--processes", metavar="N", type=int, help="how many there are")
    add("--process", metavar="I", type=int, help="which of them this is, from 0")
    add("--distributed", action="store_true", help="find these out: SLURM, TPUs, Kubernetes")
    args, rest = parser.parse_known_args(argv[1:])
    rest += [f"--{name}={value}" for name in ("config", "workdir") if (value := vars(args)[name])]
    given = (args.coordinator, args.processes, args.process)
    if args.distributed or any(value is not None for value in given):
        from kjax.train.joining import join

        if not args.distributed and None in given:
            raise InputError("--coordinator, --processes and --process go together")
        join(*given)
    return [argv[0], *rest]


if __name__ == "__main__":
    run_program(main, INTERRUPTED)
