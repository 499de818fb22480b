r"""Estimate FPR@95 on PhotoTourism's Notre Dame patches, whose labels are lost, and label them.

    python benchmarks/notredame.py rootsift sift mkd-pcawt=FILE tfeat=FILE ddesc=FILE \
        best kjax-hardnet fast tiny --notredame MOSAICS --check data/castle data/garden
    python benchmarks/notredame.py rootsift mkd-pcawt=FILE tfeat=FILE ddesc=FILE \
        --notredame MOSAICS --write data/notredame

prints a table per set and appends a line per descriptor and set to results/notredame.jsonl.
MOSAICS is `data/notredame` of the public repository marioavdullaj/SIFT: 406 mosaics, 103,936
patches, no labels. Run the same command to resume: finished descriptors are read from --out.

Patches of one 3-D point follow each other. Witnesses are RootSIFT, MKD, TFeat and DeepDesc, as far
as they are among the arguments. Each one's distances are standardised by those of random pairs, and
the mean over witnesses is the evidence. A descriptor's own kind is never its witness.

FPR@95: pairs of neighbours are a mixture. A share b of them shows two points; their distances are
like those of patches 300 apart, and a part of them like those of patches 20 to 40 apart, which may
overlap. The rest matches, and its evidence ends in an exponential tail. Least squares in a window
of the evidence gives b and the part. Both give the distances of matching neighbours, and the
threshold that 95 % of them pass. Other windows give the range.

Labels for training (--write) are a list of boundaries. The evidence at a boundary is the smallest
one among pairs at most two apart that span it: below LOW both patches show the same point, above
HIGH a new point begins. In between, both patches are left out, and points of more than MOST patches
as well, since they are often several points. LOW and HIGH were chosen on castle.

--check takes sets with known labels, hides these, and reports the true FPR@95 of neighbours beside
the estimate, and precision and recall of the boundaries. --cell PX orders a set's points by
their photo and by cells of so many pixels, so that neighbouring points overlap as in Notre Dame.

This is an estimate, not the official 100,000 pairs. Where points are in random order, it differs
from the truth by 10 % in the median. Where neighbouring points overlap, it may be several times too
large.
"""

import argparse
import datetime
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import program
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from scipy.optimize import least_squares
from tqdm import tqdm

from kjax.data.phototour import (
    decode_folder,
    decode_mosaic,
    read_interest,
    sample_test_pairs,
    write_phototour,
)
from kjax.errors import InputError
from kjax.eval.entries import find_entry
from kjax.interrupts import run_script
from kjax.metrics import pair_distances

WITNESSES = ("rootsift", "mkd", "tfeat", "ddesc")
FAMILIES = {"sift": "rootsift"}
"""Descriptors that are of a witness's kind under another name."""
LOW, HIGH = -2.6, -1.4
"""Evidence below which patches belong together, and above which they do not."""
SPAN = 2
"""Maximum distance in the sequence of two patches that are compared."""
MOST = 8
"""Maximum number of patches of a point that is written."""
RANDOM_PAIRS, SEED = 400_000, 0
RECALL = 0.95
OVERLAPPING, FAR = range(20, 40, 2), range(300, 320, 2)
"""Distances in the sequence of pairs that may overlap, and of pairs that do not."""
WINDOWS = ((-2.5, -0.5), (-2.5, 0.5), (-2.5, 1.5), (-2.0, 1.0))
"""Ranges of evidence; the first gives the estimate."""
STEP = 0.1

Rows = Float32[np.ndarray, "patches dim"]
Distances = Mapping[str, Float[np.ndarray, " pairs"]]
"""Of neighbours, overlapping, far and random pairs."""


class PatchSequence(NamedTuple):
    """Patches in their order, and their points if they are known."""

    name: str
    patches: UInt8[np.ndarray, "patches 64 64"]
    point_ids: Int64[np.ndarray, " patches"] | None = None


class Labels(NamedTuple):
    """Decisions about the boundary after each patch but the last."""

    new_point: Bool[np.ndarray, " boundaries"]
    undecided: Bool[np.ndarray, " boundaries"]

    def kept(self) -> Bool[np.ndarray, " patches"]:
        """Return which patches touch no undecided boundary."""
        none = np.zeros(1, bool)
        return ~(np.concatenate([self.undecided, none]) | np.concatenate([none, self.undecided]))

    def point_ids(self) -> Int64[np.ndarray, " patches"]:
        """Number the points; an undecided boundary separates two."""
        return np.concatenate([[0], np.cumsum(self.new_point | self.undecided)])


def read_mosaics(folder: Path) -> PatchSequence:
    """Read the patches of all mosaics in a folder, which needs no `info.txt`."""
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    names = {path.name for path in folder.iterdir() if re.fullmatch(r"patches\d+\.bmp", path.name)}
    wanted = [f"patches{number:04d}.bmp" for number in range(len(names))]
    if not names or set(wanted) != names:
        gap = next((name for name in wanted if name not in names), "patches0000.bmp")
        raise InputError(f"{folder} lacks {gap}: give a folder with all mosaics of a set")
    blocks = [decode_mosaic(folder / name) for name in tqdm(wanted, f"decoding {folder.name}")]
    return PatchSequence("notredame", np.concatenate(blocks))


def read_check_set(folder: Path, count: int | None, cell: float | None) -> PatchSequence:
    """Read the first patches of a labelled set in which the patches of a point are neighbours."""
    blocks, point_ids = decode_folder(folder)
    interest = read_interest(folder, patch_count=len(point_ids))
    patches, point_ids = np.concatenate(list(blocks))[:count], point_ids[:count]
    if 1 + np.count_nonzero(np.diff(point_ids)) != len(np.unique(point_ids)):
        raise InputError(f"{folder}: patches of a point do not follow each other: use another set")
    if not cell:
        return PatchSequence(folder.name, patches, point_ids)
    if interest is None:
        raise InputError(f"{folder} has no interest.txt, which --cell needs")
    order = order_by_place(interest[: len(patches)], point_ids, cell)
    return PatchSequence(f"{folder.name}, {cell:g} px", patches[order], point_ids[order])


def order_by_place(
    interest: Float[np.ndarray, "patches 5"], point_ids: np.ndarray, cell: float
) -> Int64[np.ndarray, " patches"]:
    """Order points by the photo and the cell of their first patch, at random within a cell."""
    _, first, points = np.unique(point_ids, return_index=True, return_inverse=True)
    photo, x, y = interest[first[points], :3].T
    draws = np.random.default_rng(SEED).random(len(first))[points]
    return np.lexsort((np.arange(len(points)), draws, x // cell, y // cell, photo))


def is_witness(witness: str, ranked: str) -> bool:
    """Whether a descriptor may decide on labels by which another one is ranked."""
    kinds = [name.partition("=")[0].partition("-")[0] for name in (witness, ranked)]
    return kinds[0] in WITNESSES and kinds[0] != FAMILIES.get(kinds[1], kinds[1])


def evidence(
    witnesses: Sequence[Rows], first: np.ndarray, second: np.ndarray
) -> Float[np.ndarray, " pairs"]:
    """Return the mean of the witnesses' distances, each standardised by random pairs."""
    random = np.random.default_rng(SEED).integers(0, len(witnesses[0]), (2, RANDOM_PAIRS))
    total = np.zeros(len(first))
    for rows in witnesses:
        kinds = {"random": random, "given": (first, second)}
        distances = {kind: pair_distances(rows, *pairs) for kind, pairs in kinds.items()}
        total += standardised(distances, "given")
    return total / len(witnesses)


def standardised(distances: Distances, kind: str) -> np.ndarray:
    """Return distances in standard deviations of random pairs, from their mean."""
    random = distances["random"]
    return (distances[kind] - random.mean()) / max(random.std(), 1e-9)


def label_by_order(witnesses: Sequence[Rows]) -> Labels:
    """Decide at which patches of a sequence a new point begins."""
    if not witnesses:
        raise InputError(f"no witness is left: add {', '.join(WITNESSES)}, at least two of them")
    numbers = np.arange(len(witnesses[0]))
    least = np.full(len(numbers) - 1, np.inf)
    for apart in range(1, SPAN + 1):
        found = evidence(witnesses, numbers[:-apart], numbers[apart:])
        for shift in range(apart):  # the pair (a, a + apart) spans these boundaries
            spanned = least[shift : shift + len(found)]
            np.minimum(spanned, found, out=spanned)
    return Labels(least > HIGH, (least >= LOW) & (least <= HIGH))


def boundary_scores(labels: Labels, point_ids: Int64[np.ndarray, " patches"]) -> dict[str, float]:
    """Return precision and recall of the decided boundaries."""
    true, decided = np.diff(point_ids) != 0, ~labels.undecided
    right = int(np.count_nonzero(labels.new_point & true))
    return {
        "precision": right / max(int(np.count_nonzero(labels.new_point)), 1),
        "recall": right / max(int(np.count_nonzero(true & decided)), 1),
    }


def pair_kinds(subset: PatchSequence) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the pairs whose distances are compared; random ones show two points."""
    count = len(subset.patches)
    first, second = np.random.default_rng(SEED).integers(0, count, (2, RANDOM_PAIRS))
    ids = np.arange(count) if subset.point_ids is None else subset.point_ids
    different = ids[first] != ids[second]
    kinds = {"neighbours": (1,), "overlapping": OVERLAPPING, "far": FAR}
    numbers = np.arange(count)
    pairs = {
        name: tuple(
            np.concatenate([numbers[: count - one] + shift * one for one in offsets])
            for shift in (0, 1)
        )
        for name, offsets in kinds.items()
    }
    return {**pairs, "random": (first[different], second[different])}


def shares_below(values: Distances, at: np.ndarray) -> dict[str, np.ndarray]:
    """Return the shares of each kind's pairs at or below some values."""
    return {
        name: np.searchsorted(np.sort(one), at, side="right") / len(one)
        for name, one in values.items()
    }


def fit_mixture(found: Distances, window: tuple[float, float]) -> tuple[float, float]:
    """Return the share of neighbours that show two points, and how far these overlap.

    An overlap of 1 stands for that of patches 20 to 40 apart.
    """
    at = np.arange(window[0], window[1] + STEP / 2, STEP)
    above = {name: 1 - one for name, one in shares_below(found, at).items()}
    neighbours, far = above["neighbours"], above["far"]
    noise = np.sqrt(neighbours * (1 - neighbours) / len(found["neighbours"]))

    def residuals(parameters: np.ndarray) -> np.ndarray:
        share, overlap, start, rate = parameters
        tail = np.exp(start - rate * (at - at[0]))
        model = share * (far + overlap * (above["overlapping"] - far)) + tail
        return (neighbours - model) / noise

    bounds = ((0.01, 0.0, -12.0, 0.05), (0.99, 4.0, 0.0, 9.0))
    share, overlap, *_ = least_squares(residuals, (0.3, 1.0, -3.0, 1.0), bounds=bounds).x
    return float(share), float(overlap)


def mixture_fpr(distances: Distances, share: float, overlap: float) -> float:
    """Return FPR@95 of a descriptor, given the mixture of neighbours."""
    at = np.quantile(distances["neighbours"], np.linspace(0.3, 0.9999, 4000))
    below = shares_below(distances, at)
    different = below["far"] + overlap * (below["overlapping"] - below["far"])
    matching = (below["neighbours"] - share * different) / (1 - share)
    return float(below["random"][np.argmax(matching >= RECALL)])


def score(
    own: Distances, witnesses: Mapping[str, Distances], point_ids: np.ndarray | None
) -> dict[str, Any]:
    """Estimate FPR@95 of a descriptor on a set, and compute it if the labels are known."""
    if not witnesses:
        raise InputError(f"no witness is left: add {', '.join(WITNESSES)}, at least two of them")
    found = {
        kind: np.mean([standardised(one, kind) for one in witnesses.values()], axis=0)
        for kind in own
    }
    fits = [fit_mixture(found, window) for window in WINDOWS]
    estimates = [mixture_fpr(own, *fit) for fit in fits]
    result: dict[str, Any] = {"witnesses": list(witnesses), "two_points": fits[0][0]}
    result |= {"overlap": fits[0][1], "fpr95": estimates[0]}
    result["range"] = (min(estimates), max(estimates))
    if point_ids is not None:
        same = np.diff(point_ids) == 0
        threshold = np.quantile(own["neighbours"][same], RECALL)
        result["truth"] = float((own["random"] < threshold).mean())
        result["truly_two_points"] = float(1 - same.mean())
    return result


def describe(args: argparse.Namespace, subset: PatchSequence) -> dict[str, tuple[Rows, str]]:
    """Describe a set; return the rows and the origin of each descriptor."""
    found = {}
    for given in tqdm(args.descriptors, f"describing {subset.name}", leave=False):
        name, _, path = given.partition("=")
        if path and not Path(path).is_file():
            raise InputError(f"{name}: no such file: {path}")
        entry = find_entry(name, weights={name: path} if path else None, cache_dir=args.out)
        if entry.missing or not entry.describe:
            raise InputError(f"{name}: {entry.missing or 'give a descriptor of patches'}")
        label = f"{name}={Path(path).name}" if path else name
        found[label] = entry.describe[0](subset.patches), entry.source
    return found


def measure(args: argparse.Namespace, subset: PatchSequence) -> Iterator[dict[str, Any]]:
    """Describe a set, then score and record all descriptors."""
    described, kinds = describe(args, subset), pair_kinds(subset)
    distances = {
        name: {kind: pair_distances(rows, *pairs) for kind, pairs in kinds.items()}
        for name, (rows, _) in tqdm(described.items(), f"comparing {subset.name}", leave=False)
    }
    judges = {name.partition("=")[0]: name for name in reversed(described)}  # first of a kind
    label = functools.cache(lambda chosen: label_by_order([described[one][0] for one in chosen]))
    for name, (_, source) in described.items():
        chosen = [one for one in judges.values() if is_witness(one, name)]
        labels = label(tuple(chosen))
        record = {
            "set": subset.name,
            "descriptor": name,
            "source": source,
            "patches": len(subset.patches),
            **score(distances[name], {one: distances[one] for one in chosen}, subset.point_ids),
            "left_out": float(1 - labels.kept().mean()),
        }
        if subset.point_ids is not None:
            record |= boundary_scores(labels, subset.point_ids)
        record["versions"] = {**program.software(), "date": datetime.date.today().isoformat()}
        program.append_record(args.results, record)
        yield record


def show(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a set's table, in percent."""
    columns = [one for one in ("truth", "fpr95", "range") if one in records[0]]
    names = ("truly_two_points", "two_points", "overlap", "left_out", "precision", "recall")
    shares = [one for one in names if one in records[0]]

    def cell(value: Any) -> str:
        ends = value if isinstance(value, tuple) else (value,)
        return " to ".join(program.percent(end, 2) for end in ends)

    rows = [
        [one["descriptor"], *(cell(one[name]) for name in columns)]
        + [f"{one[name]:.4f}" for name in shares]
        for one in records
    ]
    return program.table((records[0]["set"], *columns, *shares), rows)


def write_labelled(args: argparse.Namespace, subset: PatchSequence) -> None:
    """Write the patches that can be labelled, with test pairs, in PhotoTourism's format."""
    described = describe(args, subset)
    witnesses = [rows for name, (rows, _) in described.items() if is_witness(name, "")]
    labels = label_by_order(witnesses)
    point_ids = labels.point_ids()
    kept = labels.kept() & (np.bincount(point_ids)[point_ids] <= MOST)
    patches, point_ids = subset.patches[kept], np.unique(point_ids[kept], return_inverse=True)[1]
    pairs = sample_test_pairs(point_ids, matching=args.pairs, non_matching=args.pairs, seed=SEED)
    write_phototour(args.write, patches, point_ids, pairs=pairs)
    points = int(np.count_nonzero(np.bincount(point_ids) > 1))
    print(f"wrote {args.write}: {len(patches)} patches, {points} points of two patches or more")


def run(args: argparse.Namespace) -> None:
    """Measure every set and print its table, or write Notre Dame with labels."""
    if args.pairs < 1 or (args.patches is not None and args.patches < 2):
        raise InputError("--pairs takes at least 1, --patches at least 2")
    if not args.check and not args.notredame:
        raise InputError("no set: give --notredame MOSAICS or --check FOLDER")
    if args.write and not args.notredame:
        raise InputError("--write needs --notredame MOSAICS")
    for folder in args.check:
        subset = read_check_set(folder, args.patches, args.cell)
        print(f"\n{show(list(measure(args, subset)))}")
    if args.write:
        write_labelled(args, read_mosaics(args.notredame))
    elif args.notredame:
        print(f"\n{show(list(measure(args, read_mosaics(args.notredame))))}")


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("descriptors", nargs="+", metavar="NAME[=FILE]", help="as kjax eval takes them")
    add("--notredame", type=Path, metavar="FOLDER", help="folder of mosaics without labels")
    add("--check", type=Path, nargs="+", default=[], metavar="FOLDER", help="labelled sets")
    add("--cell", type=float, metavar="PX", help="order labelled sets by place (default: as read)")
    add("--patches", type=int, metavar="N", help="first ones of each labelled set (default: all)")
    add("--write", type=Path, metavar="FOLDER", help="write Notre Dame with labels instead")
    add("--pairs", type=int, default=50_000, metavar="N", help="of each kind in it (50,000)")
    add("--out", type=Path, default=Path("out/notredame"), help="cache (default: out/notredame)")
    add("--results", type=Path, default=Path("results/notredame.jsonl"), help="file of records")


if __name__ == "__main__":
    run_script(main)
