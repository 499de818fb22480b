"""Trains a descriptor: `python run_train.py --config=configs/quickstart.py --workdir=out/first`.

Any field of the config can be set after it: `--config.model.head=polar --config.model.s=1`. Ctrl-C
saves and stops; the same command goes on. Over several machines, start the same command on each
with `--coordinator=HOST:PORT --processes=N --process=I`; under SLURM, on TPUs and on Kubernetes
`--distributed` finds them out by itself.
"""

import argparse
import sys
from collections.abc import Sequence

from kjax.errors import InputError


def main(argv: Sequence[str]) -> int:
    """Runs the training; bad input is one line on stderr and exit code 2."""
    try:
        rest = initialize_distributed(argv)
        from kjax.config import parse_flags
        from kjax.train.loop import Stopped
        from kjax.train.run import run

        config, workdir = parse_flags(rest)
        try:
            scores = run(config, workdir)
        except Stopped as stopped:
            print(f"run_train: {stopped}", file=sys.stderr)
            return 0
    except (InputError, OSError) as error:
        print(f"run_train: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    for name, value in scores.items():
        print(f"{name:30s} {100 * value:7.2f} %")
    print(f"results and weights are in {workdir}")
    return 0


def initialize_distributed(argv: Sequence[str]) -> list[str]:
    """Joins the other processes, if there are any; returns the arguments that are about the run."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--coordinator")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    args, rest = parser.parse_known_args(argv[1:])
    given = (args.coordinator, args.processes, args.process)
    if args.distributed or any(value is not None for value in given):
        import jax

        if not args.distributed and None in given:
            raise InputError("--coordinator, --processes and --process go together")
        # Used only where the processes' devices are CPUs.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(*given)
    return [argv[0], *rest]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
