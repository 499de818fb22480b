"""Measure the recall of image retrieval on photos whose overlapping pairs are known.

    python benchmarks/pairs.py photos/sceaux photos/castle --count 200 --out out/pairs
    python benchmarks/pairs.py photos/* open/* --tracks tracks --out out/pairs

With --tracks, the folders' photos are joined as they are. A true pair shares at least 50 points of
TRACKS/<folder>.npz (`image`: number of the photo, `track`: number of the point). Photos of other
folders compete with them.

Without, views are cut from the folders' photos by random homographies: rotated by up to 25 degrees,
55 to 95 % of the height, with perspective and gamma. Two views of one photo are a true pair if each
shows at least a quarter of the other. Views of other photos of the same scene compete with them,
even if they match. Expected with 20 neighbours: a recall of at least 95 %.
"""

import argparse
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import program
from jaxtyping import Float

from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.collection.pairs import aggregate, most_similar
from kjax.images.collection.photographs import FeatureFiles, describe_missing, read_collection
from kjax.images.describer import load
from kjax.interrupts import run_script

SIZE = np.array([960, 720])
"""Width and height of a view in pixels."""
VIEWS = 5
"""Views per photo."""
TURN, SCALES, PERSPECTIVE, GAMMA = 25.0, (0.55, 0.95), (0.85, 1.1), (0.7, 1.4)
"""Maximum rotation in degrees; ranges of scale, corner distances and gamma."""
OVERLAP, SHARED = 0.25, 50
"""Minimum overlap of a true pair, and minimum number of points that both photos see."""

Homography = Float[np.ndarray, "3 3"]


def random_view(size: tuple[int, int], generator: np.random.Generator) -> Homography:
    """Return a homography from a photo to a view."""
    cv2 = require("cv2", "warping")
    sides = SIZE * min(np.array(size) / SIZE) * generator.uniform(*SCALES)
    centre = generator.uniform(sides / 2, np.array(size) - sides / 2)
    angle = np.deg2rad(generator.uniform(-TURN, TURN))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    reach = (corners - 0.5) * sides * generator.uniform(*PERSPECTIVE, (4, 1))
    return cv2.getPerspectiveTransform(
        (reach @ turn.T + centre).astype(np.float32), (corners * SIZE).astype(np.float32)
    )


def overlap(first: Homography, second: Homography) -> float:
    """Return the smaller share of two views of one photo that the other shows."""
    cv2 = require("cv2", "warping")
    grid = np.stack(np.meshgrid(*(np.linspace(0, side, 20) for side in SIZE)), -1).reshape(-1, 1, 2)
    shares = []
    for one, other in ((first, second), (second, first)):
        seen = cv2.perspectiveTransform(grid, other @ np.linalg.inv(one))[:, 0]
        shares.append(((seen >= 0) & (seen <= SIZE)).all(axis=1).mean())
    return float(min(shares))


def write_views(sources: Sequence[Path], out: Path) -> set[tuple[int, int]]:
    """Write the views of all photos, and return the true pairs."""
    cv2 = require("cv2", "warping")
    generator = np.random.default_rng(0)
    out.mkdir(parents=True)
    true = set()
    for number, source in enumerate(sources):
        photo = cv2.imread(str(source))
        if photo is None:
            raise InputError(f"cannot read {source}: not an image")
        views = [random_view(photo.shape[1::-1], generator) for _ in range(VIEWS)]
        for place, view in enumerate(views, start=VIEWS * number):
            seen = cv2.warpPerspective(
                photo, view, SIZE.tolist(), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT
            )
            grey = 255 * (seen / 255) ** generator.uniform(*GAMMA)
            cv2.imwrite(str(out / f"{place:05}.jpg"), grey.round().astype(np.uint8))
        true |= {
            (VIEWS * number + first, VIEWS * number + second)
            for first, second in itertools.combinations(range(VIEWS), 2)
            if overlap(views[first], views[second]) >= OVERLAP
        }
    return true


def join_photos(folders: Sequence[Path], tracks: Path, out: Path) -> set[tuple[int, int]]:
    """Copy the photos of all folders into one, and return the true pairs."""
    out.mkdir(parents=True)
    true, number = set(), 0
    for folder in folders:
        photos = sorted(list_photos(folder))
        for place, path in enumerate(photos, start=number):
            shutil.copyfile(path, out / f"{place:05}{path.suffix}")
        if (file := tracks / f"{folder.name}.npz").is_file():
            with np.load(file) as stored:
                seen = np.zeros((len(photos), stored["track"].max() + 1), np.float32)
                seen[stored["image"], stored["track"]] = 1
            first, second = np.nonzero(np.triu(seen @ seen.T >= SHARED, 1))
            true |= {*zip((first + number).tolist(), (second + number).tolist(), strict=True)}
        number += len(photos)
    return true


def cut_views(args: argparse.Namespace) -> set[tuple[int, int]]:
    """Write views of photos spread over all folders, and return the true pairs."""
    photos = [path for folder in args.photos for path in list_photos(folder)]
    wanted = args.count // VIEWS
    if not 0 < wanted <= len(photos):
        raise InputError(f"--count: from {VIEWS} to {VIEWS * len(photos)} for {len(photos)} photos")
    spread = np.linspace(0, len(photos) - 1, wanted).round().astype(int)
    return write_views([photos[place] for place in spread], args.out / "photos")


def run(args: argparse.Namespace) -> None:
    """Make and describe the photos, retrieve pairs, and count."""
    if args.out.exists():
        raise InputError(f"{args.out} exists: choose another folder")
    if args.tracks:
        true = join_photos(args.photos, args.tracks, args.out / "photos")
    else:
        true = cut_views(args)
    if not true:
        raise InputError("no true pairs: give folders that --tracks has files of")
    describer = load(args.weights)
    photographs, _ = read_collection(args.out / "photos")
    files = FeatureFiles(args.out / "features", describer.feature_settings(args.keypoints))
    describe_missing(photographs, describer, files)
    seconds, found = program.timed(
        lambda: set(most_similar(aggregate(photographs, files), args.neighbours))
    )
    hits, pairs = len(found & true), f"{len(found):,} pairs with {args.neighbours} neighbours"
    print(f"{len(photographs)} photos, {pairs} in {seconds:.1f} s")
    print(f"{hits} of {len(true)} true pairs, recall {hits / len(true):.1%}")


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("photos", type=Path, nargs="+", help="folders of photos")
    add("--out", type=Path, required=True, help="new folder for views and features")
    add("--tracks", type=Path, help="folder of tracks: use the photos as they are")
    add("--count", type=int, default=200, help="number of views (default: 200)")
    add("--neighbours", type=int, default=20, help="neighbours per view (default: 20)")
    add("--keypoints", type=int, default=2000, help="maximum per view (default: 2000)")
    add("--weights", default="fast", help="weights of the descriptor (default: fast)")


if __name__ == "__main__":
    run_script(main)
