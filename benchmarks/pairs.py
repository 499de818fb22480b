"""How many pairs that show the same retrieval finds, among photographs whose pairs are known.

    python benchmarks/pairs.py photos/sceaux photos/castle --count 200 --out out/pairs

Views are cut from photographs of the folders by random homographies: turned by up to 25 degrees, of
55 to 95 % of the height, in perspective, lighter or darker. Two views of one photograph are a true
pair if each shows at least a quarter of the other. Views of other photographs of the same scene
compete with them for the places among a photograph's neighbours, though they may well match.

What it should print: with 20 neighbours, a recall of at least 95 %.
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError, exit_code
from kjax.extras import require
from kjax.images.collection.describing import FeatureFiles, describe_missing
from kjax.images.collection.pairs import aggregate, most_similar
from kjax.images.collection.photographs import read_collection
from kjax.images.describer import load
from kjax.interrupts import run_script

SIZE = np.array([960, 720])
"""Of a view, in pixels."""
VIEWS = 5
"""Of each photograph."""
TURN, SCALES, PERSPECTIVE, GAMMA = 25.0, (0.55, 0.95), (0.85, 1.1), (0.7, 1.4)
"""Degrees; and the ranges of a view's size, of its corners' distances, and of its grey values."""
OVERLAP = 0.25

Homography = Float[np.ndarray, "3 3"]


def random_view(size: tuple[int, int], generator: np.random.Generator) -> Homography:
    """From the pixels of a photograph to those of a view."""
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
    """The smaller share of two views of one photograph that the other shows."""
    cv2 = require("cv2", "warping")
    grid = np.stack(np.meshgrid(*(np.linspace(0, side, 20) for side in SIZE)), -1).reshape(-1, 1, 2)
    shares = []
    for one, other in ((first, second), (second, first)):
        seen = cv2.perspectiveTransform(grid, other @ np.linalg.inv(one))[:, 0]
        shares.append(((seen >= 0) & (seen <= SIZE)).all(axis=1).mean())
    return float(min(shares))


def write_views(sources: Sequence[Path], out: Path) -> set[tuple[int, int]]:
    """Writes the views of all photographs; returns which are true pairs."""
    cv2 = require("cv2", "warping")
    generator = np.random.default_rng(0)
    out.mkdir(parents=True)
    true = set()
    for number, source in enumerate(sources):
        photo = cv2.imread(str(source))
        if photo is None:
            raise InputError(f"cannot read {source}: give a JPEG, PNG or the like")
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


def run(args: argparse.Namespace) -> None:
    """Makes views, describes them, retrieves, counts."""
    photos = [path for folder in args.photos for path in list_photos(folder)]
    wanted = args.count // VIEWS
    if not 0 < wanted <= len(photos):
        raise InputError(f"--count: from {VIEWS} to {VIEWS * len(photos)} for {len(photos)} photos")
    if args.out.exists():
        raise InputError(f"{args.out} exists: choose another folder")
    spread = np.linspace(0, len(photos) - 1, wanted).round().astype(int)
    true = write_views([photos[place] for place in spread], args.out / "photos")
    describer = load(args.weights)
    photographs, _ = read_collection(args.out / "photos")
    files = FeatureFiles(args.out / "features", describer.feature_settings(args.keypoints))
    describe_missing(photographs, describer, files)
    found = set(most_similar(aggregate(photographs, files), args.neighbours))
    print(
        f"{len(photographs)} photographs, {len(found):,} pairs with {args.neighbours} neighbours: "
        f"{len(found & true)} of {len(true)} true pairs, recall {len(found & true) / len(true):.1%}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("photos", type=Path, nargs="+", help="folders of photographs")
    add("--out", type=Path, required=True, help="new folder for views and features")
    add("--count", type=int, default=200, help="of views (200)")
    add("--neighbours", type=int, default=20, help="of each (20)")
    add("--keypoints", type=int, default=2000, help="at most per view (2000)")
    add("--weights", default="fast", help="what describes (fast)")
    args = parser.parse_args(argv)
    return exit_code("pairs", lambda: run(args))


if __name__ == "__main__":
    run_script(main)
