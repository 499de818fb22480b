"""The command `kjax`: one module per subcommand, each with HELP, EXAMPLES, add_arguments and run.

Command modules import what they need inside `run`, so that `kjax --help` answers at once.
"""

import sys

try:
    import argparse
    from collections.abc import Sequence

    from kjax.cli import (
        build_patches,
        build_views,
        colmap,
        compare,
        convert,
        describe,
        download,
        export,
        info,
        match,
        tune,
    )
    from kjax.errors import exit_code
    from kjax.interrupts import INTERRUPTED, end_interrupted, hear_lost_interrupts
    from kjax.version import __version__
except KeyboardInterrupt:  # before there is a `main` to catch it
    print("kjax: interrupted", file=sys.stderr)
    sys.exit(130)

COMMANDS = {
    "match": match,
    "colmap": colmap,
    "describe": describe,
    "compare": compare,
    "build-patches": build_patches,
    "build-views": build_views,
    "tune": tune,
    "download": download,
    "info": info,
    "convert": convert,
    "export": export,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code; bad input is one line on stderr and code 2.

    Args:
        argv: the words behind `kjax`. Without it they are those of the process, which is taken to
            be the command's own, so that Ctrl-C ends it.
    """
    command = "kjax"
    try:
        if argv is None:
            hear_lost_interrupts()
        args = make_parser().parse_args(argv)
        command = f"kjax {args.command}"
        return exit_code(command, lambda: args.run(args))
    except KeyboardInterrupt:
        line = f"{command}: interrupted"
        if argv is None:
            end_interrupted(line)
        print(line, file=sys.stderr)
        return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = argparse.ArgumentParser(
        prog="kjax", description="Learned local patch descriptors in JAX."
    )
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
        subparser.set_defaults(run=module.run)
    return parser
