"""`kjax train`: train a descriptor."""

import argparse
import re

from kjax.cli.options import check_output_file
from kjax.errors import InputError
from kjax.interrupts import ending_on_interrupt
from kjax.train import command_line
from kjax.train.command_line import INTERRUPTED

HELP = "train a descriptor, or resume a training"
EXAMPLES = """examples:
  kjax train --config quickstart --out out/quickstart
      a minute on a laptop, without any data
  kjax train --config base --out out/polar --config.model.head=polar
      any field of the config can be set; configs/base.py explains each of them
  kjax train --config encoded:xy,s=1 --out out/xy
      some configs take an argument
  kjax train --config mine/config.py --out out/mine
  kjax train --config photos --config.data.photos=photos --show --out pairs.png
      see what would be learned from

Ctrl-C saves and exits. Run the same command to resume.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command_line.add_arguments(parser)
    text = "draw 64 pairs as the network sees them to --out, a .png file, and exit"
    parser.add_argument("--show", action="store_true", help=text)
    add = parser.add_argument_group("several machines, the same command on each").add_argument
    add("--coordinator", metavar="ADDRESS", help="HOST:PORT of process 0, any free port")
    add("--processes", metavar="N", type=int, help="number of processes")
    add("--process", metavar="I", type=int, help="index of this process, from 0")
    add("--distributed", action="store_true", help="detect these: SLURM, TPUs, Kubernetes")


def run(args: argparse.Namespace) -> int:
    """Train, in one or several processes."""
    joining = (args.coordinator, args.processes, args.process)
    if not args.distributed and None in joining and joining != (None, None, None):
        raise InputError("--coordinator, --processes and --process go together")
    if args.coordinator is not None and not re.fullmatch(r".+:\d+", args.coordinator):
        raise InputError(f"--coordinator must be HOST:PORT of process 0, not {args.coordinator!r}")
    if None not in joining[1:] and not 0 <= args.process < args.processes:
        raise InputError(
            f"--process must be from 0 to {args.processes - 1} with --processes={args.processes}, "
            f"not {args.process}"
        )
    if args.distributed or args.coordinator is not None:
        command_line.join(*joining)
    with ending_on_interrupt(f"kjax train: {INTERRUPTED}"):
        from kjax.runs.config import read_config
        from kjax.train.run import run, show_pairs

    config = read_config(args.config, args.overrides)
    if args.show:
        if args.out.suffix != ".png":
            raise InputError(f"--show draws a picture: --out must end with .png, not {args.out}")
        check_output_file(args.out)
        show_pairs(config, args.out)
        print(f"wrote {args.out}")
        return 0
    with command_line.ending_when_alone():
        result = f"results and weights are in {args.out}"
        return command_line.run_training("kjax train", lambda: run(config, args.out), result)
