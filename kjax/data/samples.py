"""Real patches without a download: a stereo pair that ships inside scikit-image's wheel."""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from kjax.errors import InputError
from kjax.extras import require
from kjax.files.arrays import read_npz
from kjax.files.images import open_image


def stereo_patch_pairs(
    count: int, *, size: int, seed: int = 0
) -> UInt8[np.ndarray, "count 2 size size"]:
    """Axis-aligned crops of the motorcycle stereo pair around the same points of the scene.

    Only points whose disparity is known, whose crops have texture (a standard deviation of at least
    12 grey levels) and look alike (a correlation of at least 0.5: nothing comes between).
    """
    left, right, disparity = _motorcycle()
    height, width = disparity.shape
    half = size // 2
    rng = np.random.default_rng(seed)
    candidates = rng.permutation(height * width)
    pairs: list[np.ndarray] = []
    for index in candidates:
        row, column = divmod(int(index), width)
        if not np.isfinite(disparity[row, column]):
            continue
        other = column - round(float(disparity[row, column]))
        rows = slice(row - half, row + half)
        if row < half or row > height - half or not half <= other <= column <= width - half:
            continue
        crops = left[rows, column - half : column + half], right[rows, other - half : other + half]
        if min(crop.std() for crop in crops) >= 12 and _correlation(*crops) >= 0.5:
            pairs.append(np.stack(crops))
        if len(pairs) == count:
            return np.stack(pairs)
    raise InputError(
        f"the stereo pair has no {count} textured crops of {size}×{size}: ask for fewer"
    )


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


def _motorcycle() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # The wheel's own files, so that scikit-image never reaches for the network.
    folder = Path(str(require("skimage.data", "the sample of real patches").__file__)).parent
    left, right = (_grey(folder / f"motorcycle_{side}.png") for side in ("left", "right"))
    return left, right, read_npz(folder / "motorcycle_disp.npz")["arr_0"]


def _grey(path: Path) -> np.ndarray:
    with open_image(path) as image:
        return np.asarray(image.convert("L"))
