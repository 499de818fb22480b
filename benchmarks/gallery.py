"""Makes docs/gallery.md and its pictures: what kjax does, on photographs that anyone has.

    python benchmarks/gallery.py --out docs/gallery

The photographs are those inside scikit-image's wheel, the weights those inside kjax; nothing is
downloaded. Pictures go to the folder --out and the page beside it, into a file of its name; the
numbers of the page come from this run. About a minute on two CPU cores.

What it should print: the page's name, and one line for each picture with its size.
"""

import argparse
import functools
import io
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8
from keypoint_descriptors import KeypointDescriptor, load_keypoint_descriptors
from PIL import Image
from tqdm import tqdm

from kjax.data.cutting.keypoints import Keypoints, detect
from kjax.data.cutting.photographs import grey_values, whole_greys
from kjax.data.embedded import stereo_patch_pairs, visible_in_right
from kjax.data.selfsupervised import ViewConfig, random_view
from kjax.errors import InputError, exit_code
from kjax.eval.similarity_maps import Method, draw_similarity_maps, similarity_maps
from kjax.extras import require
from kjax.files.atomic import write_text, write_whole
from kjax.images.correct_matches import Count, one_per_location, project
from kjax.images.drawing import draw_matches
from kjax.images.extraction import extract_patches
from kjax.images.geometry import verify
from kjax.images.matching import Matches, match
from kjax.interrupts import run_script
from kjax.weights import shipped
from kjax.weights.source import load_shipped

OURS, RIVAL = "best", "rootsift"
MAPPED = ("combined-star", "hardnet")
"""Shipped weights whose similarity maps are drawn."""
POSITIONS = ((2, 2), (3, 5), (5, 4))
"""Rows and columns on the 8×8 grid: those of `kjax similarity-maps`."""
PATCH_PAIR_SEED = 0
VIEWED = "astronaut"
VIEWS = 3
SEED = 0
THRESHOLD = 3.0
"""Pixels that a right match may be off."""
QUERIES, RANKS = 6, 5
RIGHT, WRONG = "#1fa2ff", "#ff5a36"
WIDTH = 900
"""Of a picture in pixels."""
LINES = 150
"""Most matches that are drawn of a pair; more would hide the photographs."""

Grey = UInt8[np.ndarray, "height width"]


class Stereo(NamedTuple):
    """A rectified pair: pixel (x, y) of `left` is at (x − disparity[y, x], y) of `right`."""

    left: UInt8[np.ndarray, "height width 3"]
    right: UInt8[np.ndarray, "height width 3"]
    disparity: Float32[np.ndarray, "height width"]
    """Not finite where it was not measured."""


class Described(NamedTuple):
    """A photograph's keypoints, and their descriptors by the words of the command line."""

    photo: Grey
    keypoints: Keypoints
    rows: dict[str, Float32[np.ndarray, "N dim"]]


class Section(NamedTuple):
    """Part of the page."""

    title: str
    picture: str
    """Name of the file."""
    write: Callable[[Path], Any]
    """Writes the picture."""
    text: str


class Judged(NamedTuple):
    """Matches at most once per location, and which of them the true homography confirms."""

    matches: Matches
    right: Bool[np.ndarray, " K"]

    @property
    def count(self) -> Count:
        """For captions."""
        return Count(int(self.right.sum()), len(self.right))


# Photographs


def read_stereo() -> Stereo:
    """The Middlebury scene "motorcycle"."""
    return Stereo(*_skimage_data().stereo_motorcycle())


def read_photo(name: str) -> Grey:
    """One of scikit-image's photographs in grey."""
    return grey(getattr(_skimage_data(), name)())


def grey(photo: UInt8[np.ndarray, "height width *colours"]) -> Grey:
    """As the descriptors of keypoints take it."""
    return whole_greys(grey_values(photo))


def _skimage_data() -> ModuleType:
    return require("skimage.data", "the gallery")


# Matching


def describe(
    photo: Grey,
    descriptors: Mapping[str, KeypointDescriptor],
    *,
    max_keypoints: int,
    tick: Callable[[], object],
) -> Described:
    """The same keypoints of a photograph for all descriptors."""
    keypoints = detect(photo, max_keypoints=max_keypoints)
    rows = {}
    for word, descriptor in descriptors.items():
        rows[word] = descriptor.describe(photo, keypoints)
        tick()
    return Described(photo, keypoints, rows)


def agrees_with_disparity(
    stereo: Stereo, xy_left: Float[np.ndarray, "K 2"], xy_right: Float[np.ndarray, "K 2"]
) -> tuple[Bool[np.ndarray, " K"], Bool[np.ndarray, " K"]]:
    """Which matches the measured disparity confirms, and for which there is one."""
    columns, rows = np.rint(xy_left).astype(np.int64).T
    shift = stereo.disparity[rows, columns]
    known = np.isfinite(shift)
    expected = xy_left - np.stack([np.where(known, shift, 0), np.zeros_like(shift)], axis=1)
    near = np.linalg.norm(expected - xy_right, axis=1) <= THRESHOLD
    return known & near, known


def judge(
    first: Described, second: Described, word: str, homography: Float[np.ndarray, "3 3"]
) -> Judged:
    """Mutual nearest neighbours, by the rules of `benchmarks/correct_matches.py`."""
    xy_a, xy_b = first.keypoints.xy, second.keypoints.xy
    found = match(first.rows[word], second.rows[word], method="mutual")
    once = found.keep(one_per_location(found, xy_a, xy_b))
    expected = project(homography, xy_a[once.indices[:, 0]])
    off = np.linalg.norm(expected - xy_b[once.indices[:, 1]], axis=1)
    return Judged(once, off <= THRESHOLD)


# Sections


def stereo_section(
    stereo: Stereo, left: Described, right: Described, names: Mapping[str, str]
) -> Section:
    """What `kjax match --geometry fundamental` draws, for both descriptors."""
    pictures, lines = [], []
    for word, name in names.items():
        found = match(left.rows[word], right.rows[word], method="mutual_ratio", ratio=0.9)
        xy_a = left.keypoints.xy[found.indices[:, 0]]
        xy_b = right.keypoints.xy[found.indices[:, 1]]
        kept = verify(xy_a, xy_b, model="fundamental", threshold=3.0).inliers
        agrees, known = agrees_with_disparity(stereo, xy_a[kept], xy_b[kept])
        picture = draw_matches(
            stereo.left, stereo.right, xy_a[kept], xy_b[kept], max_width=WIDTH, max_lines=LINES
        )
        pictures.append(picture)
        lines.append(
            f"| {name} | {len(found)} | {int(kept.sum())} | {int(agrees.sum())} of "
            f"{int(known.sum())} |"
        )
    text = f"""\
Above `{OURS}`, below RootSIFT, on the two photographs of the Middlebury scene "motorcycle"
(D. Scharstein et al., *High-resolution stereo datasets with subpixel-accurate ground truth*, GCPR
2014). Both get the same {len(left.keypoints.xy):,} and {len(right.keypoints.xy):,} SIFT keypoints.
The rules are those of `kjax match left.png right.png --geometry fundamental`: mutual nearest
neighbours, ratio at most 0.9 both ways, that agree with one epipolar geometry; {LINES} of them are
drawn. Colours follow the position in the left photograph.

Epipolar geometry cannot see errors along its lines. The scene's measured disparity can: the last
column says how many of the matches that agree are right to {THRESHOLD:g} pixels, of those whose
disparity is known.

| | matches | agree with one geometry | right by the disparity |
|---|---:|---:|---:|
{chr(10).join(lines)}"""
    return Section(
        "Matching a stereo pair",
        "stereo.jpg",
        functools.partial(save_jpeg, stack(pictures)),
        text,
    )


def views_section(
    photo: Described,
    views: Sequence[tuple[Described, Float[np.ndarray, "3 3"]]],
    names: Mapping[str, str],
) -> Section:
    """Matches with warped and relit views, right and wrong ones; the first view is drawn."""
    judged = [
        {word: judge(photo, view, word, homography) for word in names} for view, homography in views
    ]
    lines = [
        f"| view {number} | " + " | ".join(_share(row[word].count) for word in names) + " |"
        for number, row in enumerate(judged, start=1)
    ]
    text = f"""\
One photograph (`{VIEWED}`, NASA, public domain) and {len(views)} views of it, made by
`kjax.data.selfsupervised.random_view` with its default ranges (rotation to 30°, zoom to 1.4,
stretch to 1.5, perspective, gamma to 1.6, contrast, brightness, blur to σ = 1, noise to 6 grey
levels), seed {SEED}; beyond its border the photograph is repeated. The picture shows the first
view: above `{OURS}`, below RootSIFT; blue matches are right to {THRESHOLD:g} pixels by the known
homography, red ones wrong; {LINES} are drawn for either. Mutual nearest neighbours of at most
{len(photo.keypoints.xy):,} keypoints, the same for both, no ratio test, each location counted once.

| right matches of all | {" | ".join(names.values())} |
|---|{"---:|" * len(names)}
{chr(10).join(lines)}

Views of a flat picture, made by computing, are an easy case, and RootSIFT is a strong rival there.
`kjax info {OURS}` gives results on real changes of viewpoint and light, the Oxford sequences."""
    first_view = views[0][0]
    return Section(
        "A photograph warped and relit",
        "views.jpg",
        lambda path: draw_judged(photo, first_view, judged[0], names, path),
        text,
    )


def maps_section() -> Section:
    """The paper's figure of similarity maps."""
    patch_a, patch_b = stereo_patch_pairs(1, size=32, seed=PATCH_PAIR_SEED)[0]
    methods = {}
    for name in MAPPED:
        source = load_shipped(name)
        methods[name] = source.model, source.variables
    spread = {name: mean_spread(method, patch_a, patch_b) for name, method in methods.items()}
    text = f"""\
Two patches around one point of the motorcycle pair. For a position p of patch a, whose receptive
field is framed, each map shows how similar p is to every position of patch b, from blue (least) to
red (most); each map is scaled on its own. The descriptors' similarity is, before that scaling and
with a weight for each p, the sum of all maps. In the mean over all p of this pair,
{spread["combined-star"]:.1f} of the 64 positions reach half of a map's range with `combined-star`
(⋆ψ^c of the paper, whose position encodings fall off smoothly by construction) and
{spread["hardnet"]:.1f} with `hardnet`, which has learned its tolerance.
`kjax similarity-maps` draws this for any two patches."""
    return Section(
        "Which positions match",
        "maps.png",
        lambda path: draw_similarity_maps(methods, patch_a, patch_b, POSITIONS, path),
        text,
    )


def mean_spread(method: Method, patch_a: np.ndarray, patch_b: np.ndarray) -> float:
    """How many positions reach half of a map's range, in the mean over all maps."""
    side = method.model.patch_size // 4
    positions = [(row, column) for row in range(side) for column in range(side)]
    maps = similarity_maps(method, patch_a, patch_b, positions)
    return float((maps >= 0.5).sum(axis=(1, 2)).mean())


def retrieval_section(
    stereo: Stereo, left: Described, right: Described, names: Mapping[str, str]
) -> Section:
    """Query patches of the left photograph and the nearest ones of the right photograph."""
    truth = right_answers(stereo, left.keypoints, right.keypoints)
    answerable = np.flatnonzero(truth.any(axis=1))
    ranked = {
        word: rank(left.rows[word][answerable], right.rows[word], count=RANKS) for word in names
    }
    hits = {
        word: np.take_along_axis(truth[answerable], found, axis=1) for word, found in ranked.items()
    }
    chosen = np.random.default_rng(SEED).choice(len(answerable), QUERIES, replace=False)
    lines = [
        f"| {name} | {_percent(hits[word][:, 0])} | {_percent(hits[word].any(axis=1))} |"
        for word, name in names.items()
    ]
    text = f"""\
Left: patches of the motorcycle pair's left photograph, cut as `{OURS}` sees them. Then, nearest
first, the {RANKS} nearest of the right photograph's {len(right.keypoints.xy):,} by `{OURS}`, and by
RootSIFT; framed in blue are those that lie within {THRESHOLD:g} pixels of where the measured
disparity puts the query.
The queries are drawn at random (seed {SEED}) from the {len(answerable)} keypoints that have such a
patch at all. Over all of these:

| | the nearest is right | one of the {RANKS} nearest is right |
|---|---:|---:|
{chr(10).join(lines)}"""
    rows = [
        (answerable[i], [(ranked[word][i], hits[word][i]) for word in names])
        for i in chosen.tolist()
    ]
    return Section(
        "Retrieving patches",
        "retrieval.jpg",
        lambda path: draw_retrieval(patches_of(left), patches_of(right), rows, names, path),
        text,
    )


def right_answers(stereo: Stereo, left: Keypoints, right: Keypoints) -> Bool[np.ndarray, "N M"]:
    """Which keypoints of the right photograph show the place of each one of the left."""
    columns, rows = np.rint(left.xy).astype(np.int64).T
    visible = visible_in_right(stereo.disparity)[rows, columns]
    expected = left.xy.copy()
    expected[:, 0] -= np.where(visible, stereo.disparity[rows, columns], 0)
    off = np.linalg.norm(expected[:, None] - right.xy[None], axis=2)
    return visible[:, None] & (off <= THRESHOLD)


def rank(
    queries: Float32[np.ndarray, "Q dim"], targets: Float32[np.ndarray, "M dim"], *, count: int
) -> Int[np.ndarray, "Q {count}"]:
    """The nearest targets of each query, nearest first."""
    squared = (targets**2).sum(axis=1)[None] - 2 * queries @ targets.T
    return np.argsort(squared, axis=1, kind="stable")[:, :count]


def patches_of(described: Described) -> Float32[np.ndarray, "N 64 64"]:
    """What ours sees of each keypoint."""
    xy, scales, angles, _ = described.keypoints
    extent = shipped.card(OURS).extent
    found = extract_patches(described.photo, xy, scales, angles, size=64, extent=extent)
    return np.asarray(found.patches)


def _share(count: Count) -> str:
    return f"{count.correct} of {count.matches} ({100 * count.precision:.0f} %)"


def _percent(hits: Bool[np.ndarray, " Q"]) -> str:
    return f"{100 * hits.mean():.1f} %"


# Pictures


def draw_judged(
    first: Described,
    second: Described,
    judged: Mapping[str, Judged],
    names: Mapping[str, str],
    path: Path,
) -> None:
    """Two photographs side by side for each descriptor; wrong matches lie above right ones."""
    from matplotlib.collections import LineCollection

    canvas, shift = _beside(first.photo, second.photo)
    height, width = canvas.shape
    inches = WIDTH / 100
    figure, axes = _pyplot().subplots(
        len(names),
        1,
        figsize=(inches, len(names) * (inches * height / width + 0.32)),
        squeeze=False,
        layout="constrained",
    )
    for axis, (word, name) in zip(axes[:, 0], names.items(), strict=True):
        own = judged[word]
        drawn = np.linspace(0, len(own.right) - 1, min(LINES, len(own.right))).astype(np.int64)
        right = own.right[drawn]
        starts = first.keypoints.xy[own.matches.indices[drawn, 0]]
        ends = second.keypoints.xy[own.matches.indices[drawn, 1]] + (shift, 0)
        segments = np.stack([starts, ends], axis=1)
        axis.imshow(canvas, cmap="gray", vmin=0, vmax=255)
        for chosen, colour in ((right, RIGHT), (~right, WRONG)):
            axis.add_collection(LineCollection(segments[chosen], colors=colour, linewidths=0.8))
            axis.plot(*segments[chosen].reshape(-1, 2).T, ".", color=colour, markersize=2.5)
        count = own.count
        title = f"{name}: {count.correct} right, {count.matches - count.correct} wrong"
        axis.set_title(title, fontsize=11, loc="left")
        axis.set_axis_off()
    save_figure(figure, path)


def draw_retrieval(
    queries: Float32[np.ndarray, "N 64 64"],
    targets: Float32[np.ndarray, "M 64 64"],
    rows: Sequence[tuple[int, list[tuple[np.ndarray, np.ndarray]]]],
    names: Mapping[str, str],
    path: Path,
) -> None:
    """A row for each query: the query, then each descriptor's answers.

    Args:
        queries: all patches that a row may ask with.
        targets: all patches that may answer.
        rows: the query's number, then for each descriptor its answers' numbers and which are right.
        names: the descriptors.
        path: JPEG file to write.
    """
    ranks = len(rows[0][1][0][0])
    widths = [1.0] + [part for _ in names for part in (0.35, *([1.0] * ranks))]
    figure, axes = _pyplot().subplots(
        len(rows),
        len(widths),
        figsize=(WIDTH / 100, WIDTH / 100 * (len(rows) + 0.4) / sum(widths)),
        squeeze=False,
        gridspec_kw={"width_ratios": widths, "wspace": 0.08, "hspace": 0.08},
    )
    figure.subplots_adjust(left=0.005, right=0.995, bottom=0.01, top=1 - 0.4 / (len(rows) + 0.4))
    for axis in axes.flat:
        axis.set_axis_off()
    axes[0, 0].set_title("query", fontsize=10)
    for line, (query, answers) in zip(axes, rows, strict=True):
        _show_patch(line[0], queries[query])
        for block, (found, right) in enumerate(answers):
            start = 2 + block * (ranks + 1)
            for axis, target, hit in zip(line[start:], found, right, strict=False):
                _show_patch(axis, targets[target], framed=bool(hit))
    for block, name in enumerate(names.values()):
        for number in range(ranks):
            title = f"{name}: 1" if number == 0 else f"{number + 1}"
            axes[0, 2 + block * (ranks + 1) + number].set_title(title, fontsize=10)
    save_figure(figure, path)


def _show_patch(axis: Any, patch: np.ndarray, *, framed: bool = False) -> None:
    axis.imshow(patch, cmap="gray")
    if framed:
        axis.set_axis_on()
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set(color=RIGHT, linewidth=3)


def _beside(first: Grey, second: Grey, *, gap: int = 8) -> tuple[Grey, int]:
    """Both photographs on white, and by how much the second is shifted."""
    height = max(len(first), len(second))
    shift = first.shape[1] + gap
    canvas = np.full((height, shift + second.shape[1]), 255, np.uint8)
    canvas[: len(first), : first.shape[1]] = first
    canvas[: len(second), shift:] = second
    return canvas, shift


def stack(pictures: Sequence[Image.Image], *, gap: int = 8) -> Image.Image:
    """Pictures of one width above each other, on white."""
    size = pictures[0].width, sum(one.height + gap for one in pictures) - gap
    whole = Image.new("RGB", size, "white")
    top = 0
    for one in pictures:
        whole.paste(one, (0, top))
        top += one.height + gap
    return whole


def save_figure(figure: Any, path: Path) -> None:
    """Writes a matplotlib figure as a JPEG file."""
    stream = io.BytesIO()
    figure.savefig(stream, dpi=100, format="png")
    _pyplot().close(figure)
    save_jpeg(Image.open(stream).convert("RGB"), path)


def save_jpeg(picture: Image.Image, path: Path) -> None:
    """Small enough for a repository, fine enough for thin lines."""
    picture.save(path, format="JPEG", quality=75, optimize=True)


def _pyplot() -> Any:
    require("matplotlib", "the gallery").use("agg")
    from matplotlib import pyplot

    return pyplot


# The page


def make_sections(*, max_keypoints: int, quiet: bool) -> list[Section]:
    """Describes what the page needs, and prepares its parts."""
    descriptors = load_keypoint_descriptors((OURS, RIVAL))
    names = {word: descriptor.name for word, descriptor in descriptors.items()}
    stereo, photo = read_stereo(), read_photo(VIEWED)
    rng = np.random.default_rng(SEED)
    views = [random_view(rng, photo, config=ViewConfig()) for _ in range(VIEWS)]
    photos = [grey(stereo.left), grey(stereo.right), photo, *(view.pixels for view in views)]
    with tqdm(
        total=len(photos) * len(names), desc="describing", unit="photo", disable=quiet
    ) as bar:
        left, right, plain, *seen = (
            describe(one, descriptors, max_keypoints=max_keypoints, tick=bar.update)
            for one in photos
        )
    homographies = [view.homography for view in views]
    return [
        stereo_section(stereo, left, right, names),
        views_section(plain, list(zip(seen, homographies, strict=True)), names),
        maps_section(),
        retrieval_section(stereo, left, right, names),
    ]


def page(sections: Sequence[Section], folder: str) -> str:
    """The page in Markdown."""
    packages = f"JAX {version('jax')}, scikit-image {version('scikit-image')}"
    parts = [
        f"""\
# Gallery

What kjax does, with weights that ship with it, on photographs that ship with scikit-image
([data.md](data.md) lists their origins and licences). The weights were trained on none of them.
This page, its pictures and its numbers are written by

```bash
python benchmarks/gallery.py --out docs/gallery
```

with `pip install 'kjax[photos,figures]'` (here: CPU, {platform.machine()}, {packages}).
"""
    ]
    parts += [
        f"## {section.title}\n\n![{section.title}]({folder}/{section.picture})\n\n{section.text}\n"
        for section in sections
    ]
    return "\n".join(parts)


def run(args: argparse.Namespace) -> None:
    """Writes the pictures, then the page."""
    if args.max_keypoints < RANKS:
        raise InputError(f"--max-keypoints is {args.max_keypoints}: give at least {RANKS}")
    sections = make_sections(max_keypoints=args.max_keypoints, quiet=args.quiet)
    args.out.mkdir(parents=True, exist_ok=True)
    for section in sections:
        path = args.out / section.picture
        write_whole(path, section.write)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    target = args.out.with_suffix(".md")
    write_text(target, page(sections, args.out.name))
    print(f"wrote {target}")


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("docs/gallery"), help="folder (%(default)s)")
    add("--max-keypoints", type=int, default=1000, help="per photograph (%(default)s)")
    add("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)
    return exit_code("gallery", lambda: run(args))


if __name__ == "__main__":
    run_script(main)
