"""`kjax download`: fetches PhotoTourism sets and HPatches."""

import argparse
from pathlib import Path

from kjax.errors import unknown_name

HELP = "download a data set: liberty, notredame, yosemite or hpatches"
EXAMPLES = """examples:
  kjax download liberty --to data
  kjax download liberty notredame yosemite hpatches --to data

An interrupted download goes on where it stopped. Data already there are not fetched again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="what to fetch")
    parser.add_argument(
        "--to", type=Path, default=Path("data"), metavar="DIR", help="(%(default)s)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Fetches one set after the other."""
    from kjax.data.download import PHOTOTOUR, download_hpatches, download_phototour

    known = (*PHOTOTOUR, "hpatches")
    for name in args.names:
        if name not in known:
            raise unknown_name("data set", name, known)
    for name in args.names:
        if name == "hpatches":
            folder = download_hpatches(args.to, progress=not args.quiet)
        else:
            folder = download_phototour(name, args.to, progress=not args.quiet)
        print(f"{name}: {folder}")
    return 0
