"""Measure how fast patches are cut out of a photo, beside kornia, on a CPU.

    python benchmarks/extract.py               # one megapixel, 8,000 keypoints; half a minute
    python benchmarks/extract.py --threads 1

Both get the image as float32 and the keypoints as arrays of their own library, and take turns.
Expected: 3 times kornia's speed with the default pyramid.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import program

from kjax.interrupts import run_script

SIZE = 32
EXTENT = 12.0
SEED = 0
PYRAMIDS = {"thirds": "the default", "octaves": "least memory", "kornia": "equal to kornia"}


def random_keypoints(count: int, side: int) -> tuple[np.ndarray, ...]:
    """Return positions, σ distributed like SIFT's octaves, and angles in degrees."""
    rng = np.random.default_rng(SEED)
    sigma = 1.6 * 2 ** rng.exponential(0.7, count)
    values = rng.uniform(0, side, (count, 2)), sigma, rng.uniform(0, 360, count)
    return tuple(value.astype(np.float32) for value in values)


def kornia_call(image: np.ndarray, count: int, threads: int) -> Callable[[], Any]:
    """Return one extraction by kornia."""
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
    """Return one extraction by kjax."""
    import jax
    import jax.numpy as jnp

    from kjax.images.extract import extract_patches

    pixels = jnp.asarray(image)
    keypoints = [jnp.asarray(values) for values in random_keypoints(count, len(image))]

    def call() -> Any:
        found = extract_patches(
            pixels, *keypoints, size=SIZE, extent=EXTENT, size_is="sigma", pyramid=pyramid
        )
        return jax.block_until_ready(found).patches

    return call


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    # XLA starts one thread per core that the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    os.environ["JAX_PLATFORMS"] = "cpu"

    import kornia

    image = np.random.default_rng(SEED).random((args.side, args.side), np.float32)
    reference = f"kornia {kornia.__version__}"
    calls = {reference: kornia_call(image, args.keypoints, args.threads)}
    for pyramid, purpose in PYRAMIDS.items():
        calls[f'kjax, `pyramid="{pyramid}"` ({purpose})'] = kjax_call(
            image, args.keypoints, pyramid
        )
    seconds, found = program.take_turns(calls, 1 + args.repeats, warm_up=False)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    print(
        f"{args.keypoints:,} patches of {SIZE}×{SIZE} out of {args.side}×{args.side} pixels, "
        f"float32, CPU, {args.threads} thread(s), median of {args.repeats} calls in turns\n"
    )
    rows = [
        [
            name,
            f"{1e3 * median:.0f}",
            f"{args.keypoints / median:,.0f}",
            f"{medians[reference] / median:.1f}",
            f"{seconds[name][0]:.1f}",
        ]
        for name, median in medians.items()
    ]
    print(program.table(("", "ms", "patches/s", "× kornia", "first call, s"), rows))
    theirs, *_, ours = map(np.asarray, found.values())
    print(f"\nLargest difference of the last row from kornia: {np.abs(ours - theirs).max():.1e}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = program.make_parser(__doc__)
    add = parser.add_argument
    add("--side", type=int, default=1000, help="of the image in pixels (default: 1000)")
    add("--keypoints", type=int, default=8000, help="(default: 8000)")
    add("--repeats", type=int, default=7, help="rounds (default: 7)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all cores)")
    return program.run_main(run, parser, argv)


if __name__ == "__main__":
    run_script(main)
