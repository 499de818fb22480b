r"""Measure descriptors under changed appearance: season, night, infrared and extreme views.

    python benchmarks/hard.py best best+0.95 best+learned aliked aliked+lightglue \
        --evd data/evd --labelled data/ComputerVision --half develop

prints two tables and appends a line per method and set to results/hard.jsonl. Methods are named as
in benchmarks/peer_table/methods.py. `best:aside` matches as `kjax match` does, with the
weights' own ratio: weak pairs are tried again upright, then with tilted views. Photos are grey,
with a long side of at most 1,024 pixels.

--evd       EVD's folders 1, 2 and h: pairs of photos with homographies
--labelled  `Multimodal_Image_Matching_Datasets/ComputerVision` of the public repository
            StaRainJ/Multi-modality-image-matching-database-metrics-methods: .mat files, each with
            a pair and its landmarks. The SHA-256 of the stem decides on the half.

Ranked first: share of landmarks whose true place in the second photo is more similar than 2,000
corners at least 8 px from all landmarks. The patches are upright. Their side is 1/20 of the photos'
mean side for every descriptor; ALIKED is sampled at the same points.

End to end: SIFT-steady keypoints with orientation and upright, or the method's own; a homography
(3 px) and a fundamental matrix (1 px) by MAGSAC++. All figures are means over pairs:

detected     share of landmarks within 6 px of a keypoint in both photos; also within 3 px
within 5 px  the homography's median landmark error is below 5 px; pairs whose landmarks follow no
             homography are left out
epipolar     share of landmarks within 1, 2, … 10 px of their epipolar lines in both photos
EVD          the homography's mean error, where the second photo shows the first, is within 1 to
             20 px (10 thresholds in equal ratios)
"""

import argparse
import contextlib
import datetime
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import program
from homography_sequences import read_homography
from jaxtyping import Float
from keypoint_descriptors import load_keypoint_descriptors
from peer_table import geometry, methods
from peer_table.scenes import LONG_SIDE, resized, resizing
from scipy.io import loadmat
from scipy.spatial import cKDTree
from tqdm import tqdm

from kjax.baselines.descriptor import Unavailable
from kjax.data.cutting.keypoints import NO_ANGLE, Keypoints
from kjax.data.cutting.photographs import grey_values, read_grey, whole_greys
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.describer import load
from kjax.images.features import Features, Matches
from kjax.images.geometry import SEED
from kjax.images.pairs import match_photos
from kjax.interrupts import run_script

DISTRACTORS, APART = 2000, 8.0
SIDE = 1 / 20
"""Side of a patch over the mean side of both photos, chosen on the develop half: RootSIFT and
`fast` prefer it to 1/12, 1/8 and 1/5, an earlier model with context 1/18 and 1/26 to 1/12."""
SIFT_SIDE = 6.0
"""Side of SIFT's own window over `KeyPoint.size`."""
NEAR, CORRECT = {"detected": 6.0, "detected, 3 px": 3.0}, 5.0
"""Maximum errors in pixels of a detected landmark, and of a correct homography."""
EVD, EVD_PIXELS, EVD_STEP = "evd", np.geomspace(1, 20, 10), 8
HALVES = ("develop", "test")
ASIDE = "aside"

DescribePoints = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
Record = Mapping[str, Any]


class HardPair(NamedTuple):
    """Two grey photos and points of the same places in both: landmarks, or a grid on EVD."""

    name: str
    kind: str
    a: np.ndarray
    b: np.ndarray
    xy_a: Float[np.ndarray, "K 2"]
    xy_b: Float[np.ndarray, "K 2"]


def transfer(matrix: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Map points by a homography, also where the first photo's origin is behind the camera."""
    moved = np.column_stack([xy, np.ones(len(xy))]) @ matrix.T
    return moved[:, :2] / moved[:, 2:]


def reduced(photo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a large photo; also return the homography of pixels."""
    small = resized(photo) if max(photo.shape) > LONG_SIDE else photo
    return small, resizing(photo.shape, small.shape)


def read_labelled(path: Path) -> HardPair:
    """Read a pair with landmarks, which count from 1."""
    read = loadmat(path, simplify_cells=True)
    photos = (whole_greys(grey_values(read[name])) for name in ("I_fix", "I_move"))
    (a, to_a), (b, to_b) = map(reduced, photos)
    xy_a, xy_b = (read["Landmarks"][name] - 1.0 for name in ("LMfix", "LMmov"))
    return HardPair(path.stem, path.parent.name, a, b, transfer(to_a, xy_a), transfer(to_b, xy_b))


def read_evd(path: Path) -> HardPair:
    """Read a pair of EVD from the path of its homography."""
    paths = (path.parents[1] / number / f"{path.stem}.png" for number in "12")
    (a, to_a), (b, to_b) = (reduced(read_grey(one)) for one in paths)
    xy_a = np.argwhere(np.ones_like(a[::EVD_STEP, ::EVD_STEP]))[:, ::-1] * float(EVD_STEP)
    xy_b = transfer(to_b @ read_homography(path) @ np.linalg.inv(to_a), xy_a)
    shown = ((xy_b >= 0) & (xy_b <= np.array(b.shape[::-1]) - 1)).all(axis=1)
    return HardPair(path.stem, EVD, a, b, xy_a[shown], xy_b[shown])


def read_sets(args: argparse.Namespace) -> dict[str, list[HardPair]]:
    """Read the pairs that the arguments name."""
    found = {}
    if args.labelled:
        found[args.half] = [
            read_labelled(path)
            for path in sorted(args.labelled.rglob("*.mat"))
            if HALVES[hashlib.sha256(path.stem.encode()).digest()[0] // 128] == args.half
        ]
    if args.evd:
        found[EVD] = [read_evd(one) for one in sorted((args.evd / "h").glob("*.txt"))]
    if not found or not all(found.values()):
        raise InputError("no pairs: give the folders with --evd and --labelled")
    return found


def point_describer(features: str, device: str) -> DescribePoints:
    """Return a function that describes points of a photo, given the side of upright patches."""
    name = features.partition("@")[0]
    if methods.parse(features).is_peer:
        return methods.point_describer(features, device)
    loaded = load_keypoint_descriptors([name], extent=1.0)[name]

    def describe(photo: np.ndarray, xy: np.ndarray, side: float) -> np.ndarray:
        sizes = np.full(len(xy), side / (SIFT_SIDE if name == "rootsift" else 1), np.float32)
        ones = np.ones_like(sizes)
        return loaded.describe(photo, Keypoints(np.float32(xy), sizes, NO_ANGLE * ones, ones))

    return describe


def rank(describe: DescribePoints, pair: HardPair) -> dict[str, Any]:
    """Compare landmarks with their true places and with distractors."""
    find = require("cv2", "corners").goodFeaturesToTrack
    corners = find(pair.b, 4 * DISTRACTORS, 1e-5, 3, blockSize=5)[:, 0]
    others = corners[cKDTree(pair.xy_b).query(corners)[0] >= APART][:DISTRACTORS]
    side = SIDE * float(np.mean(pair.a.shape + pair.b.shape))
    rows = describe(pair.a, pair.xy_a, side)
    similar = rows @ describe(pair.b, np.concatenate([pair.xy_b, others]), side).T
    first = float((np.diag(similar) > similar[:, len(rows) :].max(axis=1)).mean())
    return {"name": pair.name, "ranked first": first, pair.kind: first}


def photo_matcher(method: methods.Method, keypoints: int, learned: str) -> Callable[..., Any]:
    """Return a function of two grey photos that matches them as `kjax match` does."""
    describer = load(method.features, max_keypoints=keypoints)
    how: Any = {"method": methods.LEARNED, "matcher": learned}
    if method.matcher != methods.LEARNED:
        how = {"ratio": float(method.matcher) if method.matcher else None}
    return lambda a, b: match_photos(a, b, describer, **how)[:3]


def judge(pair: HardPair, a: Features, b: Features, matches: Matches) -> dict[str, Any]:
    """Estimate models from the matches of a pair and compare them with its points."""
    cv2 = require("cv2", "MAGSAC++")
    ends = [np.float64(one.xy[rows]) for one, rows in zip((a, b), matches.indices.T, strict=True)]

    def fit(estimate: Callable[..., Any], threshold: float) -> np.ndarray:
        cv2.setRNGSeed(SEED)
        found, options = None, {"confidence": 0.9999, "maxIters": 10_000}
        with contextlib.suppress(cv2.error):  # too few matches, or degenerate ones
            found = estimate(*ends, cv2.USAC_MAGSAC, threshold, **options)[0]
        return found if np.shape(found) == (3, 3) else np.full((3, 3), np.nan)

    def error(matrix: Float[np.ndarray, "3 3"]) -> float:
        off = np.linalg.norm(transfer(matrix, pair.xy_a) - pair.xy_b, axis=1)
        return float(np.nan_to_num(off.mean() if pair.kind == EVD else np.median(off), nan=1e9))

    found = {"name": pair.name, "error": error(fit(cv2.findHomography, geometry.HOMOGRAPHY_PIXELS))}
    if pair.kind == EVD:
        return {**found, "EVD": float(np.mean(found["error"] <= EVD_PIXELS))}
    matrix = fit(cv2.findFundamentalMat, geometry.ESSENTIAL_PIXELS)
    off = geometry.epipolar_distance(pair.xy_a, pair.xy_b, matrix)
    near = [cKDTree(one.xy).query(xy)[0] for one, xy in ((a, pair.xy_a), (b, pair.xy_b))]
    found |= {name: float((np.maximum(*near) <= most).mean()) for name, most in NEAR.items()}
    found["matches"] = len(matches)
    found["epipolar"] = float(np.mean([off <= pixels for pixels in geometry.PIXELS]))
    if error(cv2.findHomography(pair.xy_a, pair.xy_b)[0]) < CORRECT:
        found["within 5 px"] = float(found["error"] < CORRECT)
    return found


def measure(args: argparse.Namespace, subset: str, pairs: Sequence[HardPair]) -> Iterator[Record]:
    """Measure and record all methods on a set."""

    def record(name: str, measured: Iterable[Record], matcher: str = "") -> Record:
        made = {
            "method": name,
            "set": subset,
            "keypoints": args.keypoints,
            "weights": methods.parse(name).digest,
            "matcher": methods.matcher_digest(name, matcher),
            "pairs": list(tqdm(measured, f"{name}, {subset}", len(pairs), leave=False)),
            "versions": {**program.software(), "date": datetime.date.today().isoformat()},
        }
        program.append_record(args.results, made)
        return made

    for given in dict.fromkeys(name.split("+")[0] for name in args.methods):
        method, selections = methods.parse(given), [given]
        if method.keypoints == ASIDE:
            selections = []
        elif not method.is_peer and ":" not in given:
            selections = [f"{given}:steady", f"{given}:upright"]
        matchers = [one.removeprefix(given) for one in args.methods if one.split("+")[0] == given]
        own = method.own_matcher
        try:
            if subset != EVD and given != "disk":
                describe = point_describer(method.features, args.device)
                yield record(method.features, (rank(describe, pair) for pair in pairs))
            if args.ranks:
                continue
            for name in (given + one for one in matchers if method.keypoints == ASIDE):
                pair_up = photo_matcher(methods.parse(name), args.keypoints, args.matcher or own)
                found = (judge(one, *pair_up(one.a, one.b)) for one in pairs)
                yield record(name, found, args.matcher or own)
            for selected in selections:
                extract = methods.describer(methods.parse(selected), args.keypoints, args.device)
                described = [(one, extract(one.a), extract(one.b)) for one in tqdm(pairs, selected)]
                for name in (selected + matcher for matcher in matchers):
                    match = methods.matcher(methods.parse(name), args.device, args.matcher or own)
                    judged = (judge(*one, match(*one[1:])) for one in described)
                    yield record(name, judged, args.matcher or own)
        except Unavailable as error:
            print(f"missing: {given}: {error}", file=sys.stderr)


def run(args: argparse.Namespace) -> None:
    """Measure, and print the means over pairs and their number."""
    sets = read_sets(args)
    tables: dict[bool, dict[str, dict[str, str]]] = {True: {}, False: {}}
    for one in (one for subset in sets for one in measure(args, subset, sets[subset])):
        pairs = one["pairs"]
        row = tables["ranked first" in pairs[0]].setdefault(one["method"], {})
        for column in dict.fromkeys(key for pair in pairs for key in pair):
            if column not in ("name", "error"):
                values = [pair[column] for pair in pairs if column in pair]
                digits = 0 if column == "matches" else 3
                row[f"{column} ({len(values)})"] = f"{np.mean(values):.{digits}f}"
    for ranks, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        cells = [(name, *(row.get(one, "–") for one in columns)) for name, row in rows.items()]
        if rows:
            header = "at landmarks" if ranks else "end to end"
            print(f"\n{program.table((header, *columns), cells)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = program.make_parser(__doc__)
    add = parser.add_argument
    add("methods", nargs="+", metavar="NAME", help="FEATURES[:KEYPOINTS][+MATCHER]")
    add("--evd", type=Path, help="folder of EVD")
    add("--labelled", type=Path, help="folder of .mat files")
    add("--half", choices=HALVES, default=HALVES[0], help="(default: develop)")
    add("--keypoints", type=int, default=2048, help="maximum per photo (default: 2048)")
    add("--ranks", action="store_true", help="make only the first table")
    add("--matcher", help="weights of +learned (default: the features' own, or best's)")
    add("--device", default="cpu", help="PyTorch device: cpu or cuda (default: cpu)")
    add("--results", type=Path, default=Path("results/hard.jsonl"), help="file of records")
    return program.run_main(run, parser, argv)


if __name__ == "__main__":
    run_script(main)
