"""Write docs/gallery.md and its pictures: what kjax does, on scikit-image's photos.

    python benchmarks/gallery.py --out docs/gallery

Nothing is downloaded: the photos are in scikit-image's wheel, the weights in kjax. Pictures go to
the folder --out, and the page beside it. Takes about a minute on two CPU cores.
"""

import argparse
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import program
from jaxtyping import Bool, Float, Float32, UInt8
from keypoint_descriptors import load_keypoint_descriptors
from PIL import Image
from scipy.spatial import cKDTree
from tqdm import tqdm

from kjax.data.cutting.keypoints import Keypoints, detect
from kjax.data.cutting.photographs import grey_values, whole_greys
from kjax.data.embedded import stereo_patch_pairs, visible_in_right
from kjax.data.selfsupervised import ViewConfig, random_view
from kjax.eval.similarity_maps import draw_similarity_maps, similarity_maps
from kjax.extras import require
from kjax.files.atomic import write_text, write_whole
from kjax.images.draw import draw_matches
from kjax.images.extract import extract_patches
from kjax.images.features import Matches
from kjax.images.geometry import one_per_location, project, verify
from kjax.images.match import match
from kjax.interrupts import run_script
from kjax.weights.source import load_shipped

NAMES = {"best": "best", "rootsift": "RootSIFT"}
"""Descriptors under comparison: ours first."""
OURS = "best"
MAPPED = ("best", "hardnet")
"""Shipped weights whose similarity maps are drawn."""
POSITIONS = ((2, 2), (3, 5), (5, 4))
"""Rows and columns on the 8×8 grid."""
PATCH_PAIR_SEED = 0
VIEWED = "astronaut"
VIEWS = 3
SEED = 0
THRESHOLD = 3.0
"""Maximum error of a right match in pixels."""
QUERIES, RANKS = 6, 5
RIGHT, WRONG = "#1fa2ff", "#ff5a36"
WIDTH = 900
"""Width of a picture in pixels."""
JPEG = {"quality": 75, "optimize": True}
LINES = 150
"""Maximum number of matches drawn per pair."""

Grey = UInt8[np.ndarray, "height width"]
Homography = Float[np.ndarray, "3 3"]
Picture = Callable[[Path], Any]
"""Writes a picture to a file."""


class PhotoDescriptors(NamedTuple):
    """A photo, its keypoints, and their descriptors by name."""

    photo: Grey
    keypoints: Keypoints
    rows: dict[str, Float32[np.ndarray, "N dim"]]


class StereoPair(NamedTuple):
    """A rectified pair: pixel (x, y) of `left` is at (x − disparity[y, x], y) of `right`."""

    left: UInt8[np.ndarray, "height width 3"]
    right: UInt8[np.ndarray, "height width 3"]
    disparity: Float32[np.ndarray, "height width"]
    """Not finite where it was not measured."""


def agrees_with_disparity(
    stereo: StereoPair, xy_left: Float[np.ndarray, "K 2"], xy_right: Float[np.ndarray, "K 2"]
) -> tuple[Bool[np.ndarray, " K"], Bool[np.ndarray, " K"]]:
    """Return which matches the measured disparity confirms, and for which it is known."""
    columns, rows = np.rint(xy_left).astype(np.int64).T
    shift = stereo.disparity[rows, columns]
    known = np.isfinite(shift)
    expected = xy_left - np.stack([np.where(known, shift, 0), np.zeros_like(shift)], axis=1)
    near = np.linalg.norm(expected - xy_right, axis=1) <= THRESHOLD
    return known & near, known


def judged_matches(
    first: PhotoDescriptors, second: PhotoDescriptors, name: str, homography: Homography
) -> tuple[Matches, Bool[np.ndarray, " K"]]:
    """Return mutual nearest neighbours, one per location, and whether they are right."""
    xy_a, xy_b = first.keypoints.xy, second.keypoints.xy
    found = match(first.rows[name], second.rows[name], method="mutual")
    once = found.keep(one_per_location(found, xy_a, xy_b))
    expected = project(homography, xy_a[once.indices[:, 0]])
    off = np.linalg.norm(expected - xy_b[once.indices[:, 1]], axis=1)
    return once, off <= THRESHOLD


def stereo_section(
    stereo: StereoPair, left: PhotoDescriptors, right: PhotoDescriptors
) -> tuple[Picture, str]:
    """Matches that `kjax match --geometry fundamental` draws, for both descriptors."""
    pictures, rows = [], []
    for name, label in NAMES.items():
        found = match(left.rows[name], right.rows[name], method="mutual_ratio", ratio=0.9)
        xy_a = left.keypoints.xy[found.indices[:, 0]]
        xy_b = right.keypoints.xy[found.indices[:, 1]]
        kept = verify(xy_a, xy_b, model="fundamental", threshold=3.0).inliers
        agrees, known = agrees_with_disparity(stereo, xy_a[kept], xy_b[kept])
        ends, size = (xy_a[kept], xy_b[kept]), {"max_width": WIDTH, "max_lines": LINES}
        pictures.append(draw_matches(*stereo[:2], *ends, **size, caption=False))
        rows.append([label, len(found), int(kept.sum()), f"{agrees.sum()} of {known.sum()}"])
    text = f"""\
Above `{OURS}`, below RootSIFT, on the two photos of the Middlebury scene "motorcycle".
Both use the same {len(left.keypoints.xy):,} and {len(right.keypoints.xy):,} SIFT keypoints.
The matches are those of `kjax match left.png right.png --geometry fundamental`: mutual nearest
neighbours with a ratio of at most 0.9 that agree with one epipolar geometry; {LINES} are drawn.

Epipolar geometry cannot detect errors along its lines, but the measured disparity can: the last
column counts verified matches within {THRESHOLD:g} pixels of it, of those with a known disparity.

{program.table(("", "matches", "verified", "right by disparity"), rows)}"""
    above, below = map(np.asarray, pictures)
    whole = Image.fromarray(np.concatenate([above, np.full_like(above[:8], 255), below]))
    return lambda path: whole.save(path, "JPEG", **JPEG), text


def views_section(
    photo: PhotoDescriptors, views: Sequence[tuple[PhotoDescriptors, Homography]]
) -> tuple[Picture, str]:
    """Right and wrong matches with warped and relit views; the first view is drawn."""
    judged = [
        {name: judged_matches(photo, view, name, homography) for name in NAMES}
        for view, homography in views
    ]
    rows = []
    for number, found in enumerate(judged, start=1):
        shares = [right for _, right in found.values()]
        cells = (f"{one.sum()} of {len(one)} ({100 * one.mean():.0f} %)" for one in shares)
        rows.append([f"view {number}", *cells])
    text = f"""\
One photo (`{VIEWED}`, NASA, public domain) and {len(views)} random views of it with the default
ranges of `kjax.data.selfsupervised.random_view`, seed {SEED}. The picture shows the first view:
above `{OURS}`, below RootSIFT; blue matches are right within {THRESHOLD:g} pixels by the known
homography, red ones are wrong; {LINES} are drawn for each. Mutual nearest neighbours of at most
{len(photo.keypoints.xy):,} keypoints, the same for both, no ratio test, each location counted once.

{program.table(("right matches", *NAMES.values()), rows)}

Synthetic views of a flat picture are an easy case, in which RootSIFT is strong."""
    return lambda path: draw_judged(photo, views[0][0], judged[0], path), text


def maps_section() -> tuple[Picture, str]:
    """The paper's figure of similarity maps."""
    patch_a, patch_b = stereo_patch_pairs(1, size=32, seed=PATCH_PAIR_SEED)[0]
    compared, spread = {}, {}
    for name in MAPPED:
        source = load_shipped(name)
        compared[name] = source.model, source.variables
        side = source.model.patch_size // 4
        positions = [(row, column) for row in range(side) for column in range(side)]
        maps = similarity_maps(compared[name], patch_a, patch_b, positions)
        spread[name] = float((maps >= 0.5).sum(axis=(1, 2)).mean())
    text = f"""\
Two patches around one point of the motorcycle pair. For a position p of patch a, whose receptive
field is framed, each map shows the similarity of p to every position of patch b, from blue (least)
to red (most); each map is scaled on its own. Before scaling, the descriptors' similarity is a
weighted sum of all maps. On average over all p of this pair, {spread["best"]:.1f} of the 64
positions reach half of a map's range with `best` (⋆ψ^c of the paper, whose position encodings fall
off smoothly by construction) and {spread["hardnet"]:.1f} with `hardnet`, which has learned its
tolerance. [Evaluate](evaluation.md#similarity-maps) draws this for any two patches."""
    return lambda path: draw_similarity_maps(compared, patch_a, patch_b, POSITIONS, path), text


def retrieval_section(
    stereo: StereoPair, left: PhotoDescriptors, right: PhotoDescriptors
) -> tuple[Picture, str]:
    """Query patches of the left photo and the nearest ones of the right photo."""
    truth = right_answers(stereo, left.keypoints, right.keypoints)
    answerable = np.flatnonzero(truth.any(axis=1))
    ranked, hits = {}, {}
    for name in NAMES:
        _, ranked[name] = cKDTree(right.rows[name]).query(left.rows[name][answerable], RANKS)
        hits[name] = np.take_along_axis(truth[answerable], ranked[name], axis=1)
    chosen = np.random.default_rng(SEED).choice(len(answerable), QUERIES, replace=False)
    rows = [
        [label, *(f"{program.percent(one.mean())} %" for one in (hit[:, 0], hit.any(axis=1)))]
        for label, hit in zip(NAMES.values(), hits.values(), strict=True)
    ]
    header = ("", "nearest is right", f"one of the {RANKS} nearest is right")
    text = f"""\
Left: patches of the motorcycle pair's left photo, cut with the extent of `{OURS}`. Then the {RANKS}
nearest of the right photo's {len(right.keypoints.xy):,} patches by `{OURS}` and by RootSIFT; those
within {THRESHOLD:g} pixels of the measured disparity are framed in blue. The queries are drawn at
random (seed {SEED}) from the {len(answerable)} keypoints that have a right answer. Over all of
these:

{program.table(header, rows)}"""
    answers = ([(ranked[name][i], hits[name][i]) for name in NAMES] for i in chosen)
    shown = list(zip(answerable[chosen], answers, strict=True))
    return lambda path: draw_retrieval(patches_of(left), patches_of(right), shown, path), text


def right_answers(stereo: StereoPair, left: Keypoints, right: Keypoints) -> Bool[np.ndarray, "N M"]:
    """Return which keypoints of the right photo show the point of each one of the left."""
    columns, rows = np.rint(left.xy).astype(np.int64).T
    visible = visible_in_right(stereo.disparity)[rows, columns]
    expected = left.xy.copy()
    expected[:, 0] -= np.where(visible, stereo.disparity[rows, columns], 0)
    off = np.linalg.norm(expected[:, None] - right.xy[None], axis=2)
    return visible[:, None] & (off <= THRESHOLD)


def patches_of(described: PhotoDescriptors) -> Float32[np.ndarray, "N 64 64"]:
    """Return the patches that ours describes."""
    card = program.read_card(OURS)
    assert card is not None
    xy, scales, angles, _ = described.keypoints
    found = extract_patches(described.photo, xy, scales, angles, size=64, extent=card["extent"])
    return np.asarray(found.patches)


def draw_judged(
    first: PhotoDescriptors,
    second: PhotoDescriptors,
    judged: Mapping[str, tuple[Matches, np.ndarray]],
    path: Path,
) -> None:
    """Draw two photos side by side for each descriptor; wrong matches lie above right ones."""
    from matplotlib.collections import LineCollection

    height = max(len(first.photo), len(second.photo))
    shift = first.photo.shape[1] + 8
    canvas = np.full((height, shift + second.photo.shape[1]), 255, np.uint8)
    canvas[: len(first.photo), : first.photo.shape[1]] = first.photo
    canvas[: len(second.photo), shift:] = second.photo
    inches = len(judged) * (WIDTH / 100 * height / canvas.shape[1] + 0.32)
    figure = new_figure(inches, layout="constrained")
    axes = figure.subplots(len(judged), 1, squeeze=False)
    for axis, (name, (matches, right)) in zip(axes[:, 0], judged.items(), strict=True):
        drawn = np.linspace(0, len(right) - 1, min(LINES, len(right))).astype(np.int64)
        starts = first.keypoints.xy[matches.indices[drawn, 0]]
        ends = second.keypoints.xy[matches.indices[drawn, 1]] + (shift, 0)
        segments = np.stack([starts, ends], axis=1)
        axis.imshow(canvas, cmap="gray", vmin=0, vmax=255)
        for chosen, colour in ((right[drawn], RIGHT), (~right[drawn], WRONG)):
            axis.add_collection(LineCollection(segments[chosen], colors=colour, linewidths=0.8))
            axis.plot(*segments[chosen].reshape(-1, 2).T, ".", color=colour, markersize=2.5)
        title = f"{NAMES[name]}: {right.sum()} right, {len(right) - right.sum()} wrong"
        axis.set_title(title, fontsize=11, loc="left")
        axis.set_axis_off()
    save_figure(figure, path)


def draw_retrieval(
    queries: Float32[np.ndarray, "N 64 64"],
    targets: Float32[np.ndarray, "M 64 64"],
    rows: Sequence[tuple[int, list[tuple[np.ndarray, np.ndarray]]]],
    path: Path,
) -> None:
    """Draw a row for each query: the query, then each descriptor's answers.

    `rows` are the query's index, then for each descriptor its answers and which are right.
    """
    ranks = len(rows[0][1][0][0])
    widths = [1.0] + [part for _ in NAMES for part in (0.35, *([1.0] * ranks))]
    height = len(rows) + 0.4
    figure = new_figure(WIDTH / 100 * height / sum(widths))
    grid = {"width_ratios": widths, "wspace": 0.08, "hspace": 0.08}
    axes = figure.subplots(len(rows), len(widths), squeeze=False, gridspec_kw=grid)
    figure.subplots_adjust(left=0.005, right=0.995, bottom=0.01, top=1 - 0.4 / height)
    for axis in axes.flat:
        axis.set_axis_off()
    axes[0, 0].set_title("query", fontsize=10)
    for line, (query, answers) in zip(axes, rows, strict=True):
        line[0].imshow(queries[query], cmap="gray")
        for block, (found, right) in enumerate(answers):
            start = 2 + block * (ranks + 1)
            for axis, target, hit in zip(line[start:], found, right, strict=False):
                axis.imshow(targets[target], cmap="gray")
                if hit:
                    axis.set_axis_on()
                    axis.set(xticks=[], yticks=[])
                    for spine in axis.spines.values():
                        spine.set(color=RIGHT, linewidth=3)
    for block, name in enumerate(NAMES.values()):
        for number in range(ranks):
            title = f"{name}: 1" if number == 0 else f"{number + 1}"
            axes[0, 2 + block * (ranks + 1) + number].set_title(title, fontsize=10)
    save_figure(figure, path)


def new_figure(inches: float, **options: Any) -> Any:
    """Return an empty matplotlib figure of this height."""
    figure = require("matplotlib.figure", "the gallery").Figure
    return figure(figsize=(WIDTH / 100, inches), **options)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as a JPEG file small enough for a repository."""
    figure.savefig(path, dpi=100, format="jpeg", pil_kwargs=JPEG)


def make_sections(*, max_keypoints: int, quiet: bool) -> dict[str, tuple[Picture, str]]:
    """Describe the photos, and return the sections by title."""
    data = require("skimage.data", "the gallery")
    descriptors = load_keypoint_descriptors(NAMES)
    stereo = StereoPair(*data.stereo_motorcycle())
    left, right, viewed = (
        whole_greys(grey_values(photo)) for photo in (*stereo[:2], getattr(data, VIEWED)())
    )
    rng = np.random.default_rng(SEED)
    views = [random_view(rng, viewed, config=ViewConfig()) for _ in range(VIEWS)]
    described = []
    photos = [left, right, viewed, *(view.pixels for view in views)]
    for photo in tqdm(photos, desc="describing", unit="photo", disable=quiet):
        keypoints = detect(photo, max_keypoints=max_keypoints)
        rows = {name: one.describe(photo, keypoints) for name, one in descriptors.items()}
        described.append(PhotoDescriptors(photo, keypoints, rows))
    homographies = [view.homography for view in views]
    seen = list(zip(described[3:], homographies, strict=True))
    return {
        "Matching a stereo pair": stereo_section(stereo, *described[:2]),
        "A photo warped and relit": views_section(described[2], seen),
        "Positions that match": maps_section(),
        "Retrieving patches": retrieval_section(stereo, *described[:2]),
    }


def run(args: argparse.Namespace) -> None:
    """Write the pictures, then the page."""
    sections = make_sections(max_keypoints=args.max_keypoints, quiet=args.quiet)
    packages = f"JAX {version('jax')}, scikit-image {version('scikit-image')}"
    parts = [
        f"""\
# Gallery

Shipped weights on photos that ship with scikit-image, listed under
[Licences](licences.md#the-default-data). The weights were not trained on them. This page and its
pictures are written by

```bash
python benchmarks/gallery.py --out docs/gallery
```

with `pip install 'kjax[photos,figures]'` (here: CPU, {platform.machine()}, {packages}).
"""
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    files = ("stereo.jpg", "views.jpg", "maps.png", "retrieval.jpg")
    for file, (title, (picture, text)) in zip(files, sections.items(), strict=True):
        path = args.out / file
        write_whole(path, picture)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        parts.append(f"## {title}\n\n![{title}]({args.out.name}/{file})\n\n{text}\n")
    target = args.out.with_suffix(".md")
    write_text(target, "\n".join(parts))
    print(f"wrote {target}")


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("--out", type=Path, default=Path("docs/gallery"), help="folder (default: docs/gallery)")
    add("--max-keypoints", type=int, default=1000, help="maximum per photo (default: 1000)")
    add("--quiet", action="store_true", help="show no progress bar")


if __name__ == "__main__":
    run_script(main)
