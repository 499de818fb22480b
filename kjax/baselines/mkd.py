"""MKD, the multiple-kernel descriptor (Mukundan, Tolias and Chum), on kjax's own kernels.

Every pixel's gradient is lifted by a von Mises feature map of its orientation (s=3, κ=8), weighted
by the root of its magnitude, and aggregated over positions encoded as in `position_encoding`:

| kernel | orientation                    | positions         | dimensions |
|--------|--------------------------------|-------------------|------------|
| polar  | relative to the position's φ   | f(φ)⊗f(ρ), s=2    | 7·25 = 175 |
| cart   | as it is                       | f(x)⊗f(y), s=1    | 7·9  = 63  |
| concat | polar, then cart               |                   | 238        |

Whitening, then ℓ2 normalisation, takes it to 128 dimensions:

| mode  | after subtracting the mean                                                          |
|-------|-------------------------------------------------------------------------------------|
| lw    | the supervised, learned projection                                                  |
| pca   | rotates to the principal components, then signed square roots                       |
| pcaws | whitens by shrunk eigenvalues (1−α)λ + α, where α is the eigenvalue of index 40      |
| pcawt | whitens by attenuated eigenvalues, λ^(−t/2), t = 0.7                                |

A whitening is read from the released `mkd-concat-64.pth` (as kornia downloads it) or from an `.npz`
with the names `<training set>/<lw or pca>/{mean, eigvecs, eigvals}`. The release's own `.pkl` is a
pickle, which can run any code, and is refused.
"""

import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from kjax.baselines.descriptor import PatchDescriptor, batched, check_arrays, count, read_arrays
from kjax.errors import InputError, unknown_name
from kjax.model.aggregation import aggregate, l2_normalize
from kjax.model.position_encoding import PositionKernel, feature_map, polar_grid, position_matrix

KernelType = Literal["polar", "cart", "concat"]
MODES = ("lw", "pca", "pcaws", "pcawt")
PATCH_SIZE = 32
ORIENTATION_S, ORIENTATION_KAPPA = 3, 8.0
DIMENSIONS = {"polar": 175, "cart": 63, "concat": 238}
WHITENED_DIMENSION = 128
SMOOTHING = 1.4
"""Standard deviation of the blur, in pixels of a 64×64 patch."""
SHRINKAGE_INDEX = 40
"""Index of the eigenvalue that pcaws shrinks by."""
ATTENUATION = 0.7
"""t of pcawt; 1 would whiten in full, 0 only rotate."""
EPSILON = 1e-8


class Whitening(NamedTuple):
    """A mean and a basis of raw descriptors, best directions first."""

    mean: Float[np.ndarray, " dim"]
    eigvecs: Float[np.ndarray, "dim dim"]
    """One direction per column."""
    eigvals: Float[np.ndarray, " dim"]
    """Variances along the directions."""
    training_set: str


def describe_raw(
    patches: Float[Array, "batch n n"],
    *,
    kernel: KernelType = "concat",
    magnitude_epsilon: float = EPSILON,
) -> Float[Array, "batch dim"]:
    """Compute raw descriptors of unit norm, before whitening, from grey values of 0 to 1.

    `magnitude_epsilon` is added to squared gradient magnitudes. The authors' code adds 1e-8, kornia
    0.9 nothing. It matters where a patch is flat: there gradients and their orientations are
    rounding errors.
    """
    n = patches.shape[1]
    # One pixel is subtracted first: a constant patch then has no gradients, not even by rounding.
    shifted = patches - patches[:, :1, :1]
    blur = jnp.asarray(_blur_matrix(n), patches.dtype)
    smooth = jnp.einsum("ip,bpq,jq->bij", blur, shifted, blur)
    padded = jnp.pad(smooth, ((0, 0), (1, 1), (1, 1)), mode="edge")
    along_x = padded[:, 1:-1, :-2] - padded[:, 1:-1, 2:]
    along_y = padded[:, :-2, 1:-1] - padded[:, 2:, 1:-1]
    magnitude = jnp.sqrt(along_x * along_x + along_y * along_y + magnitude_epsilon)
    orientation = jnp.arctan2(along_y, along_x).reshape(-1, n * n)
    weights = jnp.sqrt(magnitude + EPSILON).reshape(-1, n * n, 1)
    parts = []
    if kernel in ("polar", "concat"):
        angles = orientation - jnp.asarray(polar_grid(n)[1], orientation.dtype)[None]
        positions = position_matrix(n, PositionKernel(s=2), "polar")
        # The released whitenings want the angle's map slowest, then the radius's.
        positions = positions.reshape(n * n, 5, 5).swapaxes(1, 2).reshape(n * n, 25)
        parts.append((angles, positions))
    if kernel in ("cart", "concat"):
        parts.append((orientation, position_matrix(n, PositionKernel(s=1), "xy")))
    described = []
    for angles, positions in parts:
        lifted = feature_map(angles, kappa=ORIENTATION_KAPPA, s=ORIENTATION_S)
        encoded = aggregate(lifted * weights, jnp.asarray(positions, angles.dtype))
        described.append(l2_normalize(encoded))
    return l2_normalize(jnp.concatenate(described, axis=-1))


def whiten(
    raw: Float[Array, "batch dim"],
    mean: Float[Array, " dim"],
    matrix: Float[Array, "dim out"],
    *,
    power: float,
) -> Float[Array, "batch out"]:
    """Centre and project descriptors, raise them to a signed power, and normalise."""
    projected = (raw - mean[None]) @ matrix
    return l2_normalize(jnp.sign(projected) * jnp.abs(projected) ** power)


def projection(whitening: Whitening, mode: str) -> tuple[Float32[np.ndarray, "dim out"], float]:
    """Return matrix and power for `whiten`."""
    basis = whitening.eigvecs[:, :WHITENED_DIMENSION].astype(np.float64)
    kept = whitening.eigvals[:WHITENED_DIMENSION].astype(np.float64)
    if mode == "pcaws":
        alpha = float(whitening.eigvals[SHRINKAGE_INDEX])
        basis = basis * ((1 - alpha) * kept + alpha) ** -0.5
    elif mode == "pcawt":
        basis = basis * kept ** (-0.5 * ATTENUATION)
    return basis.astype(np.float32), 0.5 if mode == "pca" else 1.0


def load_whitening(path: Path, mode: str, training_set: str | None = None) -> Whitening:
    """Load the whitening for one of `MODES`; by default the file's only one, or Liberty's."""
    algorithm = "lw" if mode == "lw" else "pca"
    arrays = read_arrays(path)
    sets = {name.rsplit("/", 2)[0] for name in arrays if name.endswith(f"/{algorithm}/mean")}
    if not sets:
        raise InputError(f"holds no {algorithm} whitening, which {mode} needs")
    chosen = training_set or (next(iter(sets)) if len(sets) == 1 else "liberty")
    if chosen not in sets:
        raise unknown_name("training set", chosen, sorted(sets))
    size = DIMENSIONS["concat"]
    shapes = {"mean": (size,), "eigvecs": (size, size), "eigvals": (size,)}
    prefix = f"{chosen}/{algorithm}"
    check_arrays(arrays, {f"{prefix}/{part}": shape for part, shape in shapes.items()})
    mean, eigvecs, eigvals = (arrays[f"{prefix}/{part}"] for part in shapes)
    return Whitening(mean, eigvecs, eigvals, chosen)


@functools.cache  # compiled once
def load_raw() -> PatchDescriptor:
    """Return MKD without whitening: nothing is learned."""
    describe = batched(lambda _, patches: _describe(patches), ())
    return PatchDescriptor("MKD", "not whitened", "L2", DIMENSIONS["concat"], None, describe)


def load(mode: str, path: Path, training_set: str | None = None) -> PatchDescriptor:
    """Load MKD with a released whitening."""
    whitening = load_whitening(path, mode, training_set)
    matrix, power = projection(whitening, mode)
    learned = jnp.asarray(whitening.mean, jnp.float32), jnp.asarray(matrix)

    def apply(learned: Any, patches: Array) -> Array:
        return whiten(_describe(patches), *learned, power=power)

    source, dimension = f"{path.name} ({whitening.training_set})", matrix.shape[1]
    describe = batched(apply, learned)
    return PatchDescriptor(f"MKD {mode}", source, "L2", dimension, count(learned), describe)


def resize_area(
    patches: Float[Array, "batch side side"], size: int
) -> Float[Array, "batch {size} {size}"]:
    """Resize by the mean over each pixel's area, rounded to whole grey values, as OpenCV does."""
    side = patches.shape[1]
    if side == size:
        return patches
    # Each pixel's share of each new one's area: row i covers [i, i+1)·side/size.
    edges, pixels = np.arange(size + 1)[:, None] * (side / size), np.arange(side)[None, :]
    overlap = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    shares = jnp.asarray(np.maximum(overlap, 0) * (size / side), jnp.float32)
    resized = jnp.einsum("ip,bpq,jq->bij", shares, patches, shares)
    # OpenCV has a separate routine for whole factors, which rounds halves up.
    return jnp.floor(resized + 0.5) if side % size == 0 else jnp.round(resized)


def _describe(patches: Float[Array, "batch side side"]) -> Float[Array, "batch 238"]:
    return describe_raw(resize_area(patches, PATCH_SIZE) / 255)


def _blur_matrix(n: int) -> Float[np.ndarray, "{n} {n}"]:
    """Return a Gaussian of five taps along one axis; the border is repeated."""
    offsets = np.arange(-2, 3)
    taps = np.exp(-((offsets / (SMOOTHING * n / 64)) ** 2) / 2)
    matrix = np.zeros((n, n))
    for offset, tap in zip(offsets, taps / taps.sum(), strict=True):
        np.add.at(matrix, (np.arange(n), np.clip(np.arange(n) + offset, 0, n - 1)), tap)
    return matrix
