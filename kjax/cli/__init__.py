"""The command `kjax`: one module per subcommand, each with HELP, EXAMPLES, add_arguments and run.

Values are checked by argparse; files and folders at the start of `run`. Command modules import
what they need inside `run`, so that `kjax --help` and refusals are instant.
"""

import sys

try:
    import argparse
    import re
    import shlex
    from collections.abc import Sequence
    from typing import NoReturn

    from kjax.cli import (
        build_patches,
        build_views,
        colmap,
        compare,
        describe,
        download,
        export,
        info,
        match,
        train,
        train_detector,
        train_matcher,
        tune,
    )
    from kjax.cli import eval as evaluate
    from kjax.errors import check_name, exit_code, unknown_name
    from kjax.interrupts import INTERRUPTED, end_interrupted, hear_lost_interrupts
    from kjax.version import __version__
except KeyboardInterrupt:  # before there is a `main` to catch it
    print("kjax: interrupted", file=sys.stderr)
    sys.exit(130)

COMMANDS = {
    "match": match,
    "describe": describe,
    "colmap": colmap,
    "tune": tune,
    "train": train,
    "eval": evaluate,
    "build-patches": build_patches,
    "build-views": build_views,
    "train-detector": train_detector,
    "train-matcher": train_matcher,
    "compare": compare,
    "download": download,
    "info": info,
    "export": export,
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; bad input is one line on stderr and code 2.

    `argv` are by default the arguments of the process, which Ctrl-C then ends.
    """
    command, interrupted = "kjax", "interrupted"
    try:
        if argv is None:
            hear_lost_interrupts()
        words = sys.argv[1:] if argv is None else list(argv)
        first = words[0] if words else "--help"
        if not (first.startswith("-") or first in COMMANDS):
            return exit_code(command, lambda: check_name("command", first, COMMANDS))
        try:
            args = parse(words or [first])
        except SystemExit as end:
            return int(end.code or 0)
        command = f"kjax {args.command}"
        interrupted = getattr(COMMANDS[args.command], "INTERRUPTED", interrupted)
        return exit_code(command, lambda: args.run(args))
    except KeyboardInterrupt:
        line = f"{command}: {interrupted}"
        if argv is None:
            end_interrupted(line)
        print(line, file=sys.stderr)
        return INTERRUPTED


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; `overrides` are changes of a config, `typed` is the line itself."""
    args, overrides = make_parser().parse_known_args(words)
    args.overrides, args.typed = overrides, shlex.join(["kjax", *words])
    for option in (word.partition("=")[0] for word in args.overrides):
        named = re.match("-+[a-zA-Z]", option)
        if named and not ("config" in args and option.startswith("--config.")):
            error = unknown_name("option", option, args.parser._option_string_actions)
            args.parser.error(str(error))
        if not named and "config" not in args:
            args.parser.error(f"unexpected argument {option!r}")
    return args


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    parser = Parser(prog="kjax", description="Learned local patch descriptors in JAX.")
    parser.add_argument("--version", action="version", version=f"kjax {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run, parser=subparser)
    return parser
