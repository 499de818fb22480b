"""`kjax download`: download PhotoTourism sets and HPatches."""

import argparse
from pathlib import Path

from kjax.cli import options

HELP = "download a dataset: liberty, notredame, yosemite or hpatches"
EXAMPLES = """examples:
  kjax download liberty --out data
  kjax download liberty notredame yosemite hpatches --out data

Run the same command to resume an interrupted download. Existing data are not downloaded again.
"""
NAMES = ("liberty", "notredame", "yosemite", "hpatches")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = " or ".join(NAMES)
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=text)
    options.add_option(parser, "--out", Path, "DIR", "folder of the datasets", default=Path("data"))
    options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Download one set after the other."""
    from kjax.data.download import download_set

    for name in args.names:
        print(f"{name}: {download_set(name, args.out, progress=not args.quiet)}")
    return 0
