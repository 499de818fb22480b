"""How fast patches are cut out of a photograph, against kornia in the same run, on a CPU.

    python benchmarks/extract.py               # one megapixel, 8,000 keypoints; half a minute
    python benchmarks/extract.py --threads 1

Both get the image as float32 and the keypoints as arrays of their own library, and are timed in
turns, so that a busy machine slows both. To reach: 3 times kornia's speed with the default pyramid.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kjax.errors import exit_code
from kjax.interrupts import run_script

SIZE = 32
EXTENT = 12.0
SEED = 0
PYRAMIDS = {"thirds": "the default", "octaves": "least memory", "kornia": "equal to kornia"}
"""Kinds of pyramid, and what each is for."""


def random_keypoints(count: int, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, σ as SIFT's octaves spread them, and angles in degrees."""
    rng = np.random.default_rng(SEED)
    sigma = 1.6 * 2 ** rng.exponential(0.7, count)
    values = rng.uniform(0, side, (count, 2)), sigma, rng.uniform(0, 360, count)
    return tuple(value.astype(np.float32) for value in values)


def kornia_call(image: np.ndarray, count: int, threads: int) -> Callable[[], Any]:
    """One extraction by kornia."""
    import torch
    from kornia.feature import extract_patches_from_pyramid, laf_from_center_scale_ori

    torch.set_num_threads(threads)
    xy, sigma, degrees = map(torch.tensor, random_keypoints(count, len(image)))
    half = EXTENT * sigma[None, :, None, None]
    lafs = laf_from_center_scale_ori(xy[None], half, -degrees[None, :, None])
    pixels = torch.tensor(image)[None, None]

    def call() -> Any:
        with torch.inference_mode():
            return extract_patches_from_pyramid(pixels, lafs, SIZE)[0, :, 0].numpy()

    return call


def kjax_call(image: np.ndarray, count: int, pyramid: str) -> Callable[[], Any]:
    """One extraction by kjax."""
    import jax
    import jax.numpy as jnp

    from kjax.images.extraction import extract_patches

    pixels = jnp.asarray(image)
    keypoints = [jnp.asarray(values) for values in random_keypoints(count, len(image))]

    def call() -> Any:
        found = extract_patches(
            pixels, *keypoints, size=SIZE, extent=EXTENT, size_is="sigma", pyramid=pyramid
        )
        return jax.block_until_ready(found).patches

    return call


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    import kornia

    image = np.random.default_rng(SEED).random((args.side, args.side), np.float32)
    calls = {f"kornia {kornia.__version__}": kornia_call(image, args.keypoints, args.threads)}
    for pyramid, purpose in PYRAMIDS.items():
        name = f'kjax, `pyramid="{pyramid}"` ({purpose})'
        calls[name] = kjax_call(image, args.keypoints, pyramid)
    first = {name: timed(call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.repeats):
        for name, call in calls.items():
            seconds[name].append(timed(call))
    print(
        f"{args.keypoints:,} patches of {SIZE}×{SIZE} out of {args.side}×{args.side} pixels, "
        f"float32, CPU, {args.threads} thread(s), median of {args.repeats} calls in turns\n"
    )
    print("| | ms | patches/s | × kornia | first call, s |")
    print("|---|---:|---:|---:|---:|")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = next(iter(medians.values()))
    for name, median in medians.items():
        rate = args.keypoints / median
        ratio = base / median
        print(f"| {name} | {1e3 * median:.0f} | {rate:,.0f} | {ratio:.1f} | {first[name]:.1f} |")
    theirs, ours = (np.asarray(calls[name]()) for name in (next(iter(calls)), name))
    print(f"\nLargest difference of the last row from kornia: {np.abs(ours - theirs).max():.1e}")


def main() -> None:
    """Reads the flags, fixes the threads, measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--side", type=int, default=1000, help="of the image, in pixels")
    parser.add_argument("--keypoints", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    # XLA takes one thread per core that the process may run on, asked when it starts.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    os.environ["JAX_PLATFORMS"] = "cpu"
    measure(args)


if __name__ == "__main__":
    run_script(lambda argv: exit_code("extract", main))
