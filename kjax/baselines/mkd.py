"""MKD, the multiple-kernel descriptor (Mukundan, Tolias and Chum), on kjax's own kernels.

Every pixel's gradient is lifted by a von Mises feature map of its orientation (s=3, κ=8), weighted
by the root of its magnitude, and aggregated over positions encoded as in `position_encoding`:

| kernel | orientation                    | positions         | dimensions |
|--------|--------------------------------|-------------------|------------|
| polar  | relative to the position's φ   | f(φ)⊗f(ρ), s=2    | 7·25 = 175 |
| cart   | as it is                       | f(x)⊗f(y), s=1    | 7·9  = 63  |
| concat | polar, then cart               |                   | 238        |

Whitening, then ℓ2 normalisation, takes it to 128 dimensions:

| mode  | what it does after subtracting the mean                                             |
|-------|-------------------------------------------------------------------------------------|
| lw    | the supervised, learned projection                                                  |
| pca   | rotates to the principal components, then signed square roots                       |
| pcaws | whitens by shrunk eigenvalues (1−α)λ + α, where α is the eigenvalue of index 40      |
| pcawt | whitens by attenuated eigenvalues, λ^(−t/2), t = 0.7                                |

A whitening is read from the released `mkd-concat-64.pth` (as kornia downloads it) or from an `.npz`
with the names `<training set>/<lw or pca>/{mean, eigvecs, eigvals}`. The release's own `.pkl` is a
pickle, which can run any code, and is refused. Or fit one: `fit_mkd` and `fit_pca`.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, UInt8

from kjax.baselines.descriptor import PatchDescriptor
from kjax.baselines.networks import batched, check_arrays, count, read_arrays
from kjax.errors import InputError, unknown_name
from kjax.files.npz import write_npz
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
ATTENUATION = 0.7
_EPSILON = 1e-8
_PARTS = ("mean", "eigvecs", "eigvals")


@dataclasses.dataclass(frozen=True)
class Whitening:
    """A mean and a basis of raw descriptors, best directions first.

    Attributes:
        mean: of the descriptors that it was made from.
        eigvecs: one direction per column.
        eigvals: variances along them.
        algorithm: "pca" (unsupervised) or "lw" (learned from matching pairs).
        training_set: what it was made from.
    """

    mean: Float[np.ndarray, " dim"]
    eigvecs: Float[np.ndarray, "dim dim"]
    eigvals: Float[np.ndarray, " dim"]
    algorithm: str
    training_set: str


def describe_raw(
    patches: Float[Array, "batch n n"],
    *,
    kernel: KernelType = "concat",
    magnitude_epsilon: float = _EPSILON,
) -> Float[Array, "batch dim"]:
    """Raw descriptors of unit norm, before whitening.

    Args:
        patches: grey values from 0 to 1, any side.
        kernel: which of the two spatial kernels.
        magnitude_epsilon: added to squared gradient magnitudes. The authors' code adds 1e-8;
            kornia 0.9 adds nothing. That matters where a patch is flat: there a gradient is
            nothing but rounding, and so is its orientation.
    """
    magnitude, orientation = _gradients(_smooth(patches), magnitude_epsilon)
    names: tuple[Literal["polar", "cart"], ...] = (
        ("polar", "cart") if kernel == "concat" else (kernel,)
    )
    parts = [_encode(magnitude, orientation, patches.shape[1], name) for name in names]
    return l2_normalize(jnp.concatenate(parts, axis=-1))


def fit_pca(descriptors: Float[np.ndarray, "count dim"], *, fitted_on: str) -> Whitening:
    """Principal components of raw descriptors, for the modes pca, pcaws and pcawt."""
    number, dimension = descriptors.shape
    if number < dimension:
        raise InputError(
            f"{number} descriptors of {dimension} dimensions cannot fit a whitening: give more"
        )
    if not np.isfinite(descriptors).all():
        raise InputError("descriptors to fit a whitening to must be finite")
    mean = descriptors.mean(axis=0, dtype=np.float64)
    centred = descriptors - mean
    eigvals, eigvecs = np.linalg.eigh(centred.T @ centred / number)
    # What lies below the resolution of float32 is rounding, and whitening would magnify it.
    floor = max(eigvals[-1] * np.finfo(np.float32).eps, np.finfo(np.float32).tiny)
    descending = np.maximum(eigvals[::-1], floor)
    return Whitening(mean, eigvecs[:, ::-1].copy(), descending, "pca", fitted_on)


def whiten(
    raw: Float[Array, "batch dim"],
    mean: Float[Array, " dim"],
    matrix: Float[Array, "dim out"],
    *,
    power: float,
) -> Float[Array, "batch out"]:
    """Descriptors centred, projected, raised to a power with their signs, of unit norm."""
    projected = (raw - mean[None]) @ matrix
    powered = jnp.sign(projected) * jnp.abs(projected) ** power
    return l2_normalize(powered)


def projection(
    whitening: Whitening,
    mode: str,
    *,
    dimension: int = WHITENED_DIMENSION,
    shrinkage_index: int = SHRINKAGE_INDEX,
    attenuation: float = ATTENUATION,
) -> tuple[Float32[np.ndarray, "dim out"], float]:
    """Matrix and power for `whiten`.

    Args:
        whitening: of the algorithm that the mode needs.
        mode: one of `MODES`.
        dimension: kept, at most.
        shrinkage_index: of the eigenvalue that pcaws shrinks by.
        attenuation: t of pcawt; 1 whitens in full, 0 only rotates.
    """
    if _algorithm(mode) != whitening.algorithm:
        raise InputError(f"{mode} needs a whitening of the kind {_algorithm(mode)}")
    basis = whitening.eigvecs[:, :dimension].astype(np.float64)
    kept = whitening.eigvals[:dimension].astype(np.float64)
    match mode:
        case "pcaws":
            alpha = float(whitening.eigvals[shrinkage_index])
            basis = basis * ((1 - alpha) * kept + alpha) ** -0.5
        case "pcawt":
            basis = basis * kept ** (-0.5 * attenuation)
    return basis.astype(np.float32), 0.5 if mode == "pca" else 1.0


def load_whitening(path: Path, mode: str, training_set: str | None = None) -> Whitening:
    """The whitening for a mode from a file.

    Args:
        path: `.npz`, or torch's `.pth`.
        mode: one of `MODES`.
        training_set: which of the sets in the file; by default its only one, else Liberty.
    """
    algorithm = _algorithm(mode)
    arrays = read_arrays(path)
    sets = {name.rsplit("/", 2)[0] for name in arrays if name.endswith(f"/{algorithm}/mean")}
    if not sets:
        raise InputError(f"{path}: holds no whitening of the kind {algorithm}, for {mode}")
    chosen = training_set or (next(iter(sets)) if len(sets) == 1 else "liberty")
    if chosen not in sets:
        raise unknown_name("training set", chosen, sorted(sets))
    names = {part: f"{chosen}/{algorithm}/{part}" for part in _PARTS}
    size = DIMENSIONS["concat"]
    shapes = ((size,), (size, size), (size,))
    check_arrays(path, arrays, dict(zip(names.values(), shapes, strict=True)))
    mean, eigvecs, eigvals = (arrays[name] for name in names.values())
    return Whitening(mean, eigvecs, eigvals, algorithm, chosen)


def save_whitening(path: Path, whitening: Whitening) -> None:
    """Writes an `.npz` that `load_whitening` reads, whole or not at all."""
    if path.suffix != ".npz":
        raise InputError(f"{path}: a whitening is written as .npz")
    prefix = f"{whitening.training_set}/{whitening.algorithm}"
    parts = {f"{prefix}/{part}": getattr(whitening, part) for part in _PARTS}
    write_npz(path, {name: array.astype(np.float32) for name, array in parts.items()})


@functools.cache  # so that it is compiled once, however often it is asked for
def raw_mkd() -> PatchDescriptor:
    """MKD without whitening: nothing is learned."""
    describe = batched(lambda _, patches: _raw(patches), ())
    source = "its definition, not whitened"
    return PatchDescriptor("MKD", source, "L2", DIMENSIONS["concat"], None, describe)


def load(mode: str, path: Path, training_set: str | None = None) -> PatchDescriptor:
    """MKD with a released or saved whitening."""
    whitening = load_whitening(path, mode, training_set)
    return _whitened_mkd(whitening, mode, source=f"{path.name} ({whitening.training_set})")


def fit_mkd(
    mode: str, patches: UInt8[np.ndarray, "patches n n"], *, fitted_on: str, progress: bool = False
) -> PatchDescriptor:
    """MKD with a PCA whitening fitted here, for want of a released one; its source says so."""
    if mode == "lw":
        raise InputError("lw is learned from matching pairs and cannot be fitted here: use pcawt")
    whitening = fit_pca(raw_mkd().describe(patches, progress=progress), fitted_on=fitted_on)
    source = f"PCA fitted by kjax on {len(patches)} patches of {fitted_on}"
    return _whitened_mkd(whitening, mode, source=source)


def _whitened_mkd(whitening: Whitening, mode: str, *, source: str) -> PatchDescriptor:
    """MKD with a whitening."""
    matrix, power = projection(whitening, mode)
    learned = jnp.asarray(whitening.mean, jnp.float32), jnp.asarray(matrix)

    def apply(learned: Any, patches: Array) -> Array:
        return whiten(_raw(patches), *learned, power=power)

    describe = batched(apply, learned)
    return PatchDescriptor(f"MKD {mode}", source, "L2", matrix.shape[1], count(learned), describe)


def resize_area(
    patches: Float[Array, "batch side side"], size: int
) -> Float[Array, "batch {size} {size}"]:
    """Resizes by the mean over each pixel's area, rounded to whole grey values, as OpenCV does."""
    side = patches.shape[1]
    if side == size:
        return patches
    shares = jnp.asarray(_area_shares(side, size), jnp.float32)
    resized = jnp.einsum("ip,bpq,jq->bij", shares, patches, shares)
    # OpenCV has a routine of its own for whole factors, and it rounds halves up.
    return jnp.floor(resized + 0.5) if side % size == 0 else jnp.round(resized)


def _raw(patches: Float[Array, "batch side side"]) -> Float[Array, "batch 238"]:
    return describe_raw(resize_area(patches, PATCH_SIZE) / 255)


def _algorithm(mode: str) -> str:
    if mode not in MODES:
        raise unknown_name("whitening", mode, MODES)
    return "lw" if mode == "lw" else "pca"


def _smooth(patches: Float[Array, "batch n n"]) -> Float[Array, "batch n n"]:
    # One pixel is subtracted first: a constant patch then has no gradients, not even by rounding.
    shifted = patches - patches[:, :1, :1]
    blur = jnp.asarray(_blur_matrix(patches.shape[1]), patches.dtype)
    return jnp.einsum("ip,bpq,jq->bij", blur, shifted, blur)


def _gradients(
    patches: Float[Array, "batch n n"], epsilon: float
) -> tuple[Float[Array, "batch n n"], Float[Array, "batch n n"]]:
    """Magnitude and orientation of central differences, which the border repeats into."""
    padded = jnp.pad(patches, ((0, 0), (1, 1), (1, 1)), mode="edge")
    along_x = padded[:, 1:-1, :-2] - padded[:, 1:-1, 2:]
    along_y = padded[:, :-2, 1:-1] - padded[:, 2:, 1:-1]
    magnitude = jnp.sqrt(along_x * along_x + along_y * along_y + epsilon)
    return magnitude, jnp.arctan2(along_y, along_x)


def _encode(
    magnitude: Float[Array, "batch n n"],
    orientation: Float[Array, "batch n n"],
    n: int,
    kernel: Literal["polar", "cart"],
) -> Float[Array, "batch dim"]:
    angles = orientation.reshape(-1, n * n)
    if kernel == "polar":
        angles = angles - jnp.asarray(polar_grid(n)[1], angles.dtype)[None]
    lifted = feature_map(angles, kappa=ORIENTATION_KAPPA, s=ORIENTATION_S)
    weights = jnp.sqrt(magnitude + _EPSILON).reshape(-1, n * n, 1)
    positions = jnp.asarray(_positions(n, kernel), angles.dtype)
    return l2_normalize(aggregate(lifted * weights, positions))


@functools.lru_cache(maxsize=16)
def _positions(n: int, kernel: str) -> Float[np.ndarray, "p k"]:
    if kernel == "cart":
        return position_matrix(n, PositionKernel(s=1), "xy")
    matrix = position_matrix(n, PositionKernel(s=2), "polar")
    # The released whitenings want the angle's map slowest, then the radius's.
    return matrix.reshape(n * n, 5, 5).swapaxes(1, 2).reshape(n * n, 25)


@functools.lru_cache(maxsize=16)
def _blur_matrix(n: int) -> Float[np.ndarray, "{n} {n}"]:
    """A Gaussian of five taps along one axis; the border is repeated."""
    offsets = np.arange(-2, 3)
    taps = np.exp(-((offsets / (SMOOTHING * n / 64)) ** 2) / 2)
    matrix = np.zeros((n, n))
    for offset, tap in zip(offsets, taps / taps.sum(), strict=True):
        np.add.at(matrix, (np.arange(n), np.clip(np.arange(n) + offset, 0, n - 1)), tap)
    return matrix


@functools.lru_cache(maxsize=16)
def _area_shares(side: int, size: int) -> Float[np.ndarray, "{size} {side}"]:
    """The share of each source pixel in the area of each new one: row i in [i, i+1)·side/size."""
    edges = np.arange(size + 1)[:, None] * (side / size)
    pixels = np.arange(side)[None, :]
    overlap = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return np.maximum(overlap, 0) * (size / side)
