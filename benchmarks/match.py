"""How fast, and in how much memory, descriptors are matched, beside PyTorch and OpenCV.

    python benchmarks/match.py                      # 20,000 × 20,000; a minute on two CPU cores
    python benchmarks/match.py --count 100000 --peers torch

Half of the second photograph's descriptors are noisy copies of the first's, the others have nothing
to match. PyTorch compares blocks of distances from one matrix product, in float32, with both ways
of the ratio test; OpenCV has its brute-force matcher. What kjax finds does not depend on rounding:
the last column says how much of it the others find. To reach: 100,000 × 100,000 in memory that
does not grow with their product, whose distances alone would fill 37 GiB.
"""

import argparse
import importlib.util
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import kjax
from kjax.errors import InputError, exit_code

SEED = 0
RATIO = 0.9
NOISE = 1.7
"""Of a copy, relative to the descriptor's norm: then the test keeps some and loses some."""
BLOCK = 4096
"""Descriptors of the first photograph that PyTorch compares with all others at once."""
GIB = 2**30

Pairs = set[tuple[int, int]]


def random_descriptors(count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of two photographs."""
    rng = np.random.default_rng(SEED)
    first, second = rng.normal(size=(2, count, dim)).astype(np.float32)
    half = count // 2
    scale = NOISE * np.linalg.norm(first[:half], axis=1, keepdims=True) / np.sqrt(dim)
    second[:half] = first[:half] + scale * rng.normal(size=(half, dim)).astype(np.float32)
    shuffled = second[rng.permutation(count)]
    return tuple(rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (first, shuffled))


def kjax_pairs(first: np.ndarray, second: np.ndarray) -> Pairs:
    """Mutual matches that pass the ratio test both ways."""
    found = kjax.match(first, second, method="mutual_ratio", ratio=RATIO)
    return set(map(tuple, found.indices.tolist()))


def torch_pairs(first: np.ndarray, second: np.ndarray) -> Pairs:
    """The same with PyTorch, on the accelerator where there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    @torch.inference_mode()
    def two_nearest(queries: Any, targets: Any) -> tuple[Any, Any]:
        parts = []
        for block in queries.split(BLOCK):
            similarity, places = (block @ targets.T).topk(2)
            distances = (2 - 2 * similarity).clamp(min=0).sqrt()
            parts.append((places[:, 0], distances[:, 0] / distances[:, 1]))
        nearest, ratios = zip(*parts, strict=True)
        return torch.cat(nearest), torch.cat(ratios)

    a, b = (torch.from_numpy(rows).to(device) for rows in (first, second))
    (forward, ratios), (back, back_ratios) = two_nearest(a, b), two_nearest(b, a)
    here = torch.arange(len(a), device=device)
    kept = (back[forward] == here) & (ratios <= RATIO) & (back_ratios[forward] <= RATIO)
    return set(zip(here[kept].tolist(), forward[kept].tolist(), strict=True))


def opencv_pairs(first: np.ndarray, second: np.ndarray) -> Pairs:
    """The same with OpenCV's matcher, on the CPU."""
    import cv2

    def passing(queries: np.ndarray, targets: np.ndarray) -> Pairs:
        found = cv2.BFMatcher(cv2.NORM_L2).knnMatch(queries, targets, k=2)
        return {
            (one.queryIdx, one.trainIdx)
            for one, other in found
            if one.distance <= RATIO * other.distance
        }

    back = {(one, other) for other, one in passing(second, first)}
    return passing(first, second) & back


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], Pairs]] = {
    "kjax": kjax_pairs,
    "torch": torch_pairs,
    "opencv": opencv_pairs,
}

PACKAGES = {"torch": "torch", "opencv": "cv2"}


def peak_memory() -> tuple[str, float]:
    """Where, and how many bytes at most so far."""
    statistics = jax.local_devices()[0].memory_stats()
    if statistics:
        return "device", statistics["peak_bytes_in_use"]
    return "process", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    if min(args.count, args.dim) < 2:
        raise InputError("--count and --dim must be at least 2")
    for peer in args.peers:
        if importlib.util.find_spec(PACKAGES[peer]) is None:
            raise InputError(f"{peer} is not installed: leave it out of --peers")
    arrays = random_descriptors(args.count, args.dim)
    _, before = peak_memory()
    seconds: dict[str, float] = {}
    pairs: dict[str, Pairs] = {}
    for name in ("kjax", *args.peers):
        for _ in range(2 if args.warm else 1):
            begun = time.perf_counter()
            pairs[name] = METHODS[name](*arrays)
            seconds[name] = time.perf_counter() - begun
        if name == "kjax":
            place, peak = peak_memory()
    whole = 4 * args.count**2 / GIB
    print(
        f"{args.count:,} × {args.count:,} descriptors of {args.dim} numbers, mutual, "
        f"ratio {RATIO}, {jax.devices()[0].device_kind}; kjax adds {(peak - before) / GIB:.2f} GiB "
        f"to the {place}'s memory, where all distances would take {whole:.1f}\n"
    )
    print("| | s | kjax is … times as fast | matches | of kjax's |")
    print("|---|---:|---:|---:|---:|")
    for name, found in pairs.items():
        ratio = seconds[name] / seconds["kjax"]
        share = len(found & pairs["kjax"]) / max(1, len(pairs["kjax"]))
        print(f"| {name} | {seconds[name]:.2f} | {ratio:.1f} | {len(found):,} | {share:.2%} |")


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000, help="of descriptors a photograph")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument(
        "--peers", nargs="*", choices=("torch", "opencv"), default=["torch", "opencv"]
    )
    parser.add_argument("--warm", action="store_true", help="time the second run, not the first")
    args = parser.parse_args(argv)
    return exit_code("match", lambda: measure(args))


if __name__ == "__main__":
    sys.exit(main())
