"""Measure time and memory of matching descriptors, beside PyTorch, faiss and OpenCV.

    python benchmarks/match.py                      # 20,000 × 20,000; a minute on two CPU cores
    python benchmarks/match.py --count 100000 --peers torch --forms float32 uint8 binary
    python benchmarks/match.py --many 1000 --count 2000 --peers torch

Half of the second photo's descriptors are noisy copies of the first's; the others have no match.
PyTorch compares blocks of distances from one float32 matrix product; faiss uses its flat index,
OpenCV its brute-force matcher. All take turns, and the best time counts. The last column is the
share of kjax's matches that others find; they differ by rounding. Expected: 100,000 × 100,000
without memory for all distances, which would take 37 GiB.
"""

import argparse
import functools
import importlib.util
import resource
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import program

import kjax
from kjax.interrupts import run_script

SEED = 0
DIMENSION = 128
RATIO = 0.9
NOISE = 1.7
"""Noise of a copy, relative to the descriptor's norm, so that some copies fail the test."""
BLOCK = 4096
"""Number of descriptors that PyTorch compares with all others at once."""
GIB = 2**30
FORMS = ("float32", "uint8", "binary")
PACKAGES = {"torch": "torch", "faiss": "faiss", "opencv": "cv2"}

MatchArrays = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From descriptors of two photos to the indices of their matches, [K, 2]."""


def random_descriptors(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors of two photos."""
    rng = np.random.default_rng(SEED)
    first, second = rng.normal(size=(2, count, DIMENSION)).astype(np.float32)
    half = count // 2
    scale = NOISE * np.linalg.norm(first[:half], axis=1, keepdims=True) / np.sqrt(DIMENSION)
    second[:half] = first[:half] + scale * rng.normal(size=(half, DIMENSION)).astype(np.float32)
    shuffled = second[rng.permutation(count)]
    return tuple(rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (first, shuffled))


def kjax_options(form: str) -> Any:
    """Return the options of a mutual match with the ratio test both ways."""
    distance = "Hamming" if form == "binary" else "L2"
    return {"method": "mutual_ratio", "ratio": RATIO, "distance": distance}


def torch_matches(form: str) -> MatchArrays | None:
    """Match with PyTorch, on the accelerator if there is one; None for binary descriptors."""
    import torch

    if form == "binary":
        return None
    device = "cuda" if torch.cuda.is_available() else "cpu"

    @torch.inference_mode()
    def two_nearest(queries: Any, targets: Any) -> tuple[Any, Any]:
        parts = []
        squares = (targets * targets).sum(dim=1)
        for block in queries.split(BLOCK):
            own = (block * block).sum(dim=1, keepdim=True)
            apart, places = (squares - 2 * (block @ targets.T)).topk(2, largest=False)
            distances = (apart + own).clamp(min=0).sqrt()
            parts.append((places[:, 0], distances[:, 0] / distances[:, 1]))
        nearest, ratios = zip(*parts, strict=True)
        return torch.cat(nearest), torch.cat(ratios)

    def matches(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        a, b = (torch.from_numpy(rows).to(device).float() for rows in (first, second))
        (forward, ratios), (back, back_ratios) = two_nearest(a, b), two_nearest(b, a)
        here = torch.arange(len(a), device=device)
        kept = (back[forward] == here) & (ratios <= RATIO) & (back_ratios[forward] <= RATIO)
        return torch.stack([here[kept], forward[kept]], dim=1).cpu().numpy()

    return matches


def from_two_nearest(search: Callable[..., tuple[np.ndarray, np.ndarray]]) -> MatchArrays:
    """Match by a search for the distances and indices of the two nearest."""

    def matches(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        (apart, forward), (back_apart, back) = search(first, second), search(second, first)
        passing, back_passing = (
            d[:, 0] <= RATIO * np.maximum(d[:, 1], 1e-12) for d in (apart, back_apart)
        )
        here, there = np.arange(len(first)), forward[:, 0]
        kept = passing & back_passing[there] & (back[there, 0] == here)
        return np.stack([here[kept], there[kept]], axis=1)

    return matches


def faiss_matches(form: str) -> MatchArrays:
    """Match with faiss's flat index, on the CPU."""
    import faiss

    def search(queries: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if form == "binary":
            index = faiss.IndexBinaryFlat(8 * targets.shape[1])
            index.add(targets)
            return index.search(queries, 2)
        index = faiss.IndexFlatL2(targets.shape[1])
        index.add(targets.astype(np.float32))
        squared, places = index.search(queries.astype(np.float32), 2)
        return np.sqrt(np.maximum(squared, 0)), places

    return from_two_nearest(search)


def opencv_matches(form: str) -> MatchArrays:
    """Match with OpenCV's brute-force matcher, on the CPU."""
    import cv2

    norm = cv2.NORM_HAMMING if form == "binary" else cv2.NORM_L2

    def search(queries: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = cv2.BFMatcher(norm).knnMatch(queries, targets, k=2)
        apart = np.array([[one.distance, other.distance] for one, other in found])
        return apart, np.array([[one.trainIdx, other.trainIdx] for one, other in found])

    return from_two_nearest(search)


PEERS = {"torch": torch_matches, "faiss": faiss_matches, "opencv": opencv_matches}


def peak_memory() -> tuple[str, float]:
    """Return where memory is measured, and its peak in bytes."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics:
        return "device", statistics["peak_bytes_in_use"]
    return "process", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(args: argparse.Namespace) -> None:
    """Print the tables."""
    arrays = random_descriptors(args.count)
    print(
        f"{args.count:,} × {args.count:,} descriptors of {DIMENSION} numbers, mutual, "
        f"ratio {RATIO}, {jax.devices()[0].device_kind}"
    )
    missing = [peer for peer in args.peers if importlib.util.find_spec(PACKAGES[peer]) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}")
    peers = [peer for peer in args.peers if peer not in missing]
    for form in args.forms:
        stored = arrays if form == "float32" else [kjax.quantize(rows, form) for rows in arrays]
        if args.many:
            measure_many(args, stored, form, peers)
        else:
            measure_one(args, stored, form, peers)


def measure_one(
    args: argparse.Namespace, arrays: Sequence[np.ndarray], form: str, peers: Sequence[str]
) -> None:
    """Print the table of one pair of photos."""
    _, before = peak_memory()
    options = kjax_options(form)
    runs = {"kjax": lambda: kjax.match(*arrays, **options).indices}
    for peer in peers:
        if (matcher := PEERS[peer](form)) is not None:
            runs[peer] = functools.partial(matcher, *arrays)
    seconds, found = program.take_turns(runs, args.repeats, warm_up=False)
    place, peak = peak_memory()
    whole = 4 * args.count**2 / GIB
    print(
        f"\n{form}: at most {(peak - before) / GIB:.2f} GiB more of the {place}'s memory; "
        f"all distances would take {whole:.1f}\n"
    )
    rows = []
    ours = set(map(tuple, found["kjax"].tolist()))
    for name, matches in found.items():
        ratio = min(seconds[name]) / min(seconds["kjax"])
        share = len(ours & set(map(tuple, matches.tolist()))) / max(1, len(ours))
        times = f"{seconds[name][0]:.2f}", f"{min(seconds[name]):.3f}"
        rows.append([name, *times, f"{ratio:.2f}", f"{len(matches):,}", f"{share:.2%}"])
    header = ("", "first, s", "best, s", "× kjax's time", "matches", "of kjax's")
    print(program.table(header, rows))


def measure_many(
    args: argparse.Namespace, arrays: Sequence[np.ndarray], form: str, peers: Sequence[str]
) -> None:
    """Print the table of many pairs: photos in turn, each with those that follow it."""
    photographs = max(2, args.many // 20)
    rng = np.random.default_rng(SEED)
    sets = [arrays[i % 2][rng.permutation(args.count)] for i in range(photographs)]
    pairs = [(i % photographs, (i + 1 + i // photographs) % photographs) for i in range(args.many)]
    options = kjax_options(form)
    runs: dict[str, Callable[[], Any]] = {"kjax": lambda: kjax.match_many(sets, pairs, **options)}
    for peer in peers:
        if (matcher := PEERS[peer](form)) is not None:
            runs[peer] = lambda m=matcher: [m(sets[i], sets[j]) for i, j in pairs]
    seconds, _ = program.take_turns(runs, args.repeats, warm_up=False)
    print(f"\n{form}: {args.many} pairs of {photographs} photos\n")
    best = {name: min(times) for name, times in seconds.items()}
    rows = [[name, f"{one:.2f}", f"{args.many / one:.0f}"] for name, one in best.items()]
    print(program.table(("", "s", "pairs/s"), rows))


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("--count", type=int, default=20_000, help="descriptors per photo")
    add("--peers", nargs="*", choices=tuple(PEERS), default=list(PEERS))
    add("--forms", nargs="+", choices=FORMS, default=["float32"])
    add("--many", type=int, help="number of pairs in one call, instead of one")
    add("--repeats", type=int, default=3)


if __name__ == "__main__":
    run_script(main)
