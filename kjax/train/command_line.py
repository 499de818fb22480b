"""The command line of a training. Nothing here imports JAX: other processes are joined first."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from kjax.errors import InputError, exit_code, unknown_name
from kjax.interrupts import Stopped

INTERRUPTED = "interrupted: the same command goes on from the last checkpoint, if any"


def run_training(
    program: str,
    argv: Sequence[str],
    train: Callable[[argparse.Namespace], tuple[Mapping[str, float], str]],
    *,
    description: str | None,
) -> int:
    """A program that trains: its exit code, which is 0 after Ctrl-C, too, and 2 after bad input.

    Args:
        program: its name, before what it says on stderr.
        argv: as `parse_command_line` takes it.
        train: takes the options; returns scores, and a line on what is where.
        description: what `--help` says the program does.
    """

    def run() -> None:
        try:
            scores, result = train(parse_command_line(argv, description=description))
        except Stopped as stopped:
            print(f"{program}: {stopped}", file=sys.stderr)
            return
        for name, value in scores.items():
            print(f"{name:30s} {100 * value:7.2f} %")
        print(result)

    return exit_code(program, run)


def parse_command_line(
    argv: Sequence[str], *, description: str | None = None
) -> argparse.Namespace:
    """The options of a training.

    Args:
        argv: with the program's name first: `--config=FILE[:ARGUMENT] --workdir=FOLDER`, any number
            of `--config.group.field=value`, and where the other processes are, if there are any.
        description: what `--help` says the program does.

    Returns:
        `config`, `workdir`, `coordinator`, `processes`, `process` and `distributed` as given, and
        in `overrides` the words about fields of the config, for `kjax.runs.config.read_config`.

    Raises:
        InputError: anything is wrong with it. Programs print its line and exit with code 2.
        SystemExit: with code 0 after `--help`.
    """
    parser = _make_parser(Path(argv[0]).name, description)
    args, overrides = parser.parse_known_args(argv[1:])
    args.overrides = overrides
    for word in overrides:
        option = word.partition("=")[0]
        name = option.lstrip("-")
        is_option = option != name and name[:1].isalpha()  # else a value, perhaps a negative one
        if is_option and not name.startswith(("config.", "noconfig.")):
            raise unknown_name("option", option, parser.options)
    if not args.config:
        raise InputError("which config? Give --config=FILE, e.g. --config=configs/quickstart.py")
    if not args.workdir:
        raise InputError("where to? Give --workdir=FOLDER, e.g. --workdir=out/first")
    args.workdir = Path(args.workdir)
    given = (args.coordinator, args.processes, args.process)
    if not args.distributed and None in given and given != (None, None, None):
        raise InputError("--coordinator, --processes and --process go together")
    return args


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)

    @property
    def options(self) -> list[str]:
        """All options by their long names."""
        return [action.option_strings[-1] for action in self._actions]


def _make_parser(program: str, description: str | None) -> _Parser:
    parser = _Parser(
        prog=program,
        usage="%(prog)s --config=FILE[:ARGUMENT] --workdir=FOLDER [--config.group.field=value …]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="a file, or the name of one in configs")
    parser.add_argument("--workdir", metavar="FOLDER", help="of the run; the same resumes it")
    add = parser.add_argument_group("several machines, the same command on each").add_argument
    add("--coordinator", metavar="ADDRESS", help="HOST:PORT of process 0, any free port")
    add("--processes", metavar="N", type=int, help="how many there are")
    add("--process", metavar="I", type=int, help="which of them this is, from 0")
    add("--distributed", action="store_true", help="find these out: SLURM, TPUs, Kubernetes")
    return parser
