"""How fast, and in how much memory, descriptors are matched, beside PyTorch, faiss and OpenCV.

    python benchmarks/match.py                      # 20,000 × 20,000; a minute on two CPU cores
    python benchmarks/match.py --count 100000 --peers torch --forms float32 uint8 binary
    python benchmarks/match.py --many 1000 --count 2000 --peers torch

Half of the second photograph's descriptors are noisy copies of the first's, the others have nothing
to match. PyTorch compares blocks of distances from one matrix product, in float32, with both ways
of the ratio test; faiss has its flat index, OpenCV its brute-force matcher. All take turns, and the
best time counts. What kjax finds does not depend on rounding: the last column says how much of it
the others find. To reach: 100,000 × 100,000 in memory that does not grow with their product, whose
distances alone would fill 37 GiB.
"""

import argparse
import importlib.util
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import kjax
from kjax.errors import InputError, exit_code
from kjax.interrupts import run_script

SEED = 0
RATIO = 0.9
NOISE = 1.7
"""Of a copy, relative to the descriptor's norm: then the test keeps some and loses some."""
BLOCK = 4096
"""Descriptors of the first photograph that PyTorch compares with all others at once."""
GIB = 2**30
FORMS = ("float32", "uint8", "binary")
PACKAGES = {"torch": "torch", "faiss": "faiss", "opencv": "cv2"}

Matcher = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Descriptors of two photographs to the places of their matches, [K, 2]."""


def random_descriptors(count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of two photographs."""
    rng = np.random.default_rng(SEED)
    first, second = rng.normal(size=(2, count, dim)).astype(np.float32)
    half = count // 2
    scale = NOISE * np.linalg.norm(first[:half], axis=1, keepdims=True) / np.sqrt(dim)
    second[:half] = first[:half] + scale * rng.normal(size=(half, dim)).astype(np.float32)
    shuffled = second[rng.permutation(count)]
    return tuple(rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (first, shuffled))


def distance_of(form: str) -> Any:
    """What compares descriptors of a form."""
    return "Hamming" if form == "binary" else "L2"


def kjax_matches(form: str) -> Matcher:
    """Mutual matches that pass the ratio test both ways."""
    options: Any = {"method": "mutual_ratio", "ratio": RATIO, "distance": distance_of(form)}
    return lambda first, second: kjax.match(first, second, **options).indices


def torch_matches(form: str) -> Matcher | None:
    """The same with PyTorch, on the accelerator where there is one."""
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


def from_two_nearest(search: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Matcher:
    """Matches by a search for the distances and places of the two nearest."""

    def matches(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        (apart, forward), (back_apart, back) = search(first, second), search(second, first)
        passing, back_passing = (
            d[:, 0] <= RATIO * np.maximum(d[:, 1], 1e-12) for d in (apart, back_apart)
        )
        here, there = np.arange(len(first)), forward[:, 0]
        kept = passing & back_passing[there] & (back[there, 0] == here)
        return np.stack([here[kept], there[kept]], axis=1)

    return matches


def faiss_matches(form: str) -> Matcher:
    """The same with faiss's flat index, on the CPU."""
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


def opencv_matches(form: str) -> Matcher:
    """The same with OpenCV's matcher, on the CPU."""
    import cv2

    norm = cv2.NORM_HAMMING if form == "binary" else cv2.NORM_L2

    def search(queries: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = cv2.BFMatcher(norm).knnMatch(queries, targets, k=2)
        apart = np.array([[one.distance, other.distance] for one, other in found])
        return apart, np.array([[one.trainIdx, other.trainIdx] for one, other in found])

    return from_two_nearest(search)


PEERS: dict[str, Callable[[str], Matcher | None]] = {
    "torch": torch_matches,
    "faiss": faiss_matches,
    "opencv": opencv_matches,
}


def peak_memory() -> tuple[str, float]:
    """Where, and how many bytes at most so far."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics:
        return "device", statistics["peak_bytes_in_use"]
    return "process", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(args: argparse.Namespace) -> None:
    """Prints the tables."""
    if min(args.count, args.dim) < 2:
        raise InputError("--count and --dim must be at least 2")
    arrays = random_descriptors(args.count, args.dim)
    print(
        f"{args.count:,} × {args.count:,} descriptors of {args.dim} numbers, mutual, "
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
    """The table of one pair of photographs."""
    _, before = peak_memory()
    made = {"kjax": kjax_matches(form)} | {peer: PEERS[peer](form) for peer in peers}
    matchers = {name: matcher for name, matcher in made.items() if matcher is not None}
    seconds, found = take_turns({n: (lambda m=m: m(*arrays)) for n, m in matchers.items()}, args)
    place, peak = peak_memory()
    whole = 4 * args.count**2 / GIB
    print(
        f"\n{form}: at most {(peak - before) / GIB:.2f} GiB more of the {place}'s memory, where "
        f"all distances would take {whole:.1f}\n"
    )
    print("| | first, s | best, s | kjax is … times as fast | matches | of kjax's |")
    print("|---|---:|---:|---:|---:|---:|")
    ours = set(map(tuple, found["kjax"].tolist()))
    for name, matches in found.items():
        ratio = min(seconds[name]) / min(seconds["kjax"])
        share = len(ours & set(map(tuple, matches.tolist()))) / max(1, len(ours))
        print(
            f"| {name} | {seconds[name][0]:.2f} | {min(seconds[name]):.3f} | {ratio:.2f} | "
            f"{len(matches):,} | {share:.2%} |"
        )


def measure_many(
    args: argparse.Namespace, arrays: Sequence[np.ndarray], form: str, peers: Sequence[str]
) -> None:
    """The table of many pairs: photographs in turn, each with those that follow it."""
    photographs = max(2, args.many // 20)
    rng = np.random.default_rng(SEED)
    sets = [arrays[i % 2][rng.permutation(args.count)] for i in range(photographs)]
    pairs = [(i % photographs, (i + 1 + i // photographs) % photographs) for i in range(args.many)]
    options: Any = {"method": "mutual_ratio", "ratio": RATIO, "distance": distance_of(form)}
    runs: dict[str, Callable[[], Any]] = {"kjax": lambda: kjax.match_many(sets, pairs, **options)}
    for peer in peers:
        if (matcher := PEERS[peer](form)) is not None:
            runs[peer] = lambda m=matcher: [m(sets[i], sets[j]) for i, j in pairs]
    seconds, _ = take_turns(runs, args)
    print(f"\n{form}: {args.many} pairs of {photographs} photographs\n\n| | s | pairs/s |")
    print("|---|---:|---:|")
    for name, times in seconds.items():
        print(f"| {name} | {min(times):.2f} | {args.many / min(times):.0f} |")


def take_turns(
    runs: dict[str, Callable[[], Any]], args: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of all repetitions, and what the last one found."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    found = {}
    for _ in range(args.repeats):
        for name, run in runs.items():
            begun = time.perf_counter()
            found[name] = run()
            seconds[name].append(time.perf_counter() - begun)
    return seconds, found


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000, help="of descriptors a photograph")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--peers", nargs="*", choices=tuple(PEERS), default=list(PEERS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["float32"])
    parser.add_argument("--many", type=int, help="so many pairs in one call, instead of one")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    return exit_code("match", lambda: measure(args))


if __name__ == "__main__":
    run_script(main)
