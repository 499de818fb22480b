"""`kjax describe`: photographs to files of keypoints and descriptors."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.pretrained import DEFAULT

if TYPE_CHECKING:
    from kjax.images.features import Features

HELP = "describe photographs: keypoints and descriptors for hloc, COLMAP or NumPy"
EXAMPLES = """examples:
  kjax describe photos --out features.h5                            # hloc's HDF5
  kjax describe a.jpg 'shots/*.png' --weights hardnet.pth --out features     # one .npz each
  kjax describe photos --weights out/first --out features --format colmap    # one .txt each

Folders are searched for photographs; their names in the output are paths below them. The same
command goes on where it stopped. A photograph that cannot be read is reported and left out, and the
exit code is then 1.
"""
Write = Callable[[str, "Features"], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("photographs", nargs="+", help="files, folders or patterns")
    parser.add_argument(
        "--weights",
        default=DEFAULT,
        help="shipped name (kjax info lists them), workdir, or file[:head,s=…] (%(default)s)",
    )
    parser.add_argument("--out", type=Path, required=True, help="file .h5, or a folder")
    parser.add_argument("--format", choices=("npz", "colmap"), default="npz", help="in a folder")
    parser.add_argument("--keypoints", type=int, default=8000, help="at most per photo (8000)")
    parser.add_argument("--seed", type=int, help="which of a run's several seeds")


def run(args: argparse.Namespace) -> int:
    """Describes photograph after photograph."""
    from tqdm import tqdm

    from kjax.errors import InputError
    from kjax.images.describer import load
    from kjax.images.reading import read_photograph

    describer = load(args.weights, seed=args.seed)
    found = dict(_named_files(args.photographs))
    failed = 0
    with _writer(args.out, args.format) as (done, write):
        for name, path in tqdm(found.items(), desc="describing", unit="photo"):
            if done(name):
                continue
            try:
                photograph = read_photograph(path, upright=False)
                features = describer.describe_image(photograph, max_keypoints=args.keypoints)
            except InputError as error:
                print(f"kjax describe: left out: {error}", file=sys.stderr)
                failed += 1
                continue
            write(name, features)
    print(f"{len(found) - failed} of {len(found)} photographs are in {args.out}")
    return 1 if failed else 0


def _named_files(words: list[str]) -> Iterator[tuple[str, Path]]:
    """Photographs with the names that they get in the output."""
    import glob

    from kjax.data.cutting import list_photos
    from kjax.errors import InputError

    for word in words:
        path = Path(word)
        if path.is_dir():
            yield from ((photo.relative_to(path).as_posix(), photo) for photo in list_photos(path))
            continue
        files = [path] if path.is_file() else [Path(match) for match in sorted(glob.glob(word))]
        if not files:
            raise InputError(f"no such file, folder or pattern: {word}")
        yield from ((file.name, file) for file in files)


@contextmanager
def _writer(out: Path, form: str) -> Iterator[tuple[Callable[[str], bool], Write]]:
    """Says whether a photograph is there already, and writes one."""
    from kjax.images.exchange.colmap_text import write_colmap_text
    from kjax.images.exchange.npz import write_npz

    if out.suffix in (".h5", ".hdf5"):
        from kjax.images.exchange.hloc import FeatureWriter

        with FeatureWriter(out) as file:
            yield file.__contains__, file.add
        return

    def target(name: str) -> Path:
        return out / (f"{name}.txt" if form == "colmap" else f"{name}.npz")

    def write(name: str, features: "Features") -> None:
        target(name).parent.mkdir(parents=True, exist_ok=True)
        if form == "colmap":
            # Learned descriptors are no bytes: COLMAP gets their matches, not them.
            write_colmap_text(target(name), features, descriptors=False)
        else:
            write_npz(target(name), features)

    yield (lambda name: target(name).exists()), write
