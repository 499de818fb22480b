"""Similarity maps: what position p of one patch responds to in another (the paper's figure).

Every head turns position p of a patch into an encoding g(φ^p, p) such that the unnormalised
descriptor is Σ_p g(φ^p, p) (`Descriptor.local_encodings`). The similarity of two patches is then
Σ_pq g(φ_a^p, p)ᵀ g(φ_b^q, q). One row of that table, as an n×n image, is a similarity map.
"""

import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from kjax.data.embedded import stereo_patch_pairs
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.images import open_image
from kjax.model.descriptor import Descriptor, receptive_field
from kjax.model.patches import resize_patches

Position = tuple[int, int]
"""Row and column on the n×n grid."""
Method = tuple[Descriptor, Any]
"""A model with its variables."""


def similarity_maps(
    method: Method, patch_a: np.ndarray, patch_b: np.ndarray, positions: Sequence[Position]
) -> Float[np.ndarray, "positions n n"]:
    """Compute the maps of several positions, scaled to [0, 1] and without w_p, as in the paper.

    A constant map becomes 0.
    """
    model, variables = method
    encode = jax.jit(functools.partial(model.apply, weighted=False, method="local_encodings"))
    encodings_a, encodings_b = encode(variables, np.stack([patch_a, patch_b]))
    side = round(encodings_a.shape[0] ** 0.5)
    for row, column in positions:
        if not (0 <= row < side and 0 <= column < side):
            raise InputError(f"position {row},{column} lies outside the {side}×{side} grid")
    chosen = encodings_a[np.array([row * side + column for row, column in positions])]
    similarities = jnp.einsum("pd,qd->pq", chosen, encodings_b)
    lowest = similarities.min(axis=1, keepdims=True)
    spread = similarities.max(axis=1, keepdims=True) - lowest
    maps = (similarities - lowest) / jnp.where(spread > 0, spread, 1)
    return np.asarray(maps.reshape(-1, side, side))


def draw_similarity_maps(
    methods: Mapping[str, Method],
    patch_a: np.ndarray,
    patch_b: np.ndarray,
    positions: Sequence[Position],
    path: str | Path | io.BytesIO,
) -> None:
    """Write the figure: patch a with the receptive field of p, patch b, one map per method.

    Positions are the rows of the figure; if there are none, three around the centre are chosen. A
    stream gets a PNG.
    """
    require("matplotlib", "drawing similarity maps")
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    q = len(patch_a) // 16  # a quarter of the grid
    positions = positions or [(q, q), (2 * q, 2 * q), (q, 3 * q)]
    maps = {
        title: similarity_maps(method, patch_a, patch_b, positions)
        for title, method in methods.items()
    }
    rows, columns = len(positions), 2 + len(maps)
    figure = Figure((1.5 * columns, 1.5 * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for i, (row, column) in enumerate(positions):
        top, bottom, left, right = np.clip(receptive_field(row, column), 0, len(patch_a)).tolist()
        box = Rectangle((left - 0.5, top - 0.5), right - left, bottom - top)
        box.set(edgecolor="red", facecolor="none", linewidth=2)
        axes[i, 0].imshow(patch_a, cmap="gray")
        axes[i, 0].add_patch(box)
        axes[i, 0].plot(4 * column, 4 * row, "r+")
        axes[i, 0].set_ylabel(f"p = {row}, {column}")
        axes[i, 1].imshow(patch_b, cmap="gray")
        for axis, method_maps in zip(axes[i, 2:], maps.values(), strict=True):
            axis.imshow(method_maps[i], cmap="jet", vmin=0, vmax=1)
    for axis, title in zip(axes[0], ("patch a, RF of p", "patch b", *maps), strict=True):
        axis.set_title(title, fontsize=10, parse_math=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=150)


def draw_similarity_maps_of(
    methods: Mapping[str, Method | None],
    patches: Sequence[Path] | None,
    positions: Sequence[Position],
    path: Path,
) -> None:
    """Write the figure for two image files, or for a sample pair if there are none."""
    models = {name: method for name, method in methods.items() if method is not None}
    for name in methods.keys() - models.keys():
        raise InputError(f"{name} has no similarity maps: choose kjax models")
    size, *others = {model.patch_size for model, _ in models.values()}
    if others:
        raise InputError("the models have different patch sizes: draw one figure for each size")
    pair = [read_patch(file, size) for file in patches or ()]
    first, second = pair or stereo_patch_pairs(1, size=size, seed=0)[0]
    draw_similarity_maps(models, first, second, positions, path)


def read_patch(path: Path, size: int) -> UInt8[np.ndarray, "{size} {size}"]:
    """Read a square grey image, resized to size×size."""
    with open_image(path) as image:
        grey = image.convert("L")
    if grey.width != grey.height:
        raise InputError(f"{path} is {grey.width}×{grey.height}: a patch must be square")
    return np.asarray(grey.resize((size, size), Image.Resampling.BILINEAR))


def similarity_figures(
    methods: Mapping[str, Method], pair: UInt8[np.ndarray, "2 height width"]
) -> dict[str, bytes]:
    """Draw a PNG figure per patch size of the models, by the models' names."""
    by_size: dict[int, dict[str, Method]] = {}
    for name, method in methods.items():
        by_size.setdefault(method[0].patch_size, {})[name] = method
    figures = {}
    for size, of_size in by_size.items():
        patches = np.asarray(resize_patches(jnp.asarray(pair), size, rounded=True)).astype(np.uint8)
        picture = io.BytesIO()
        draw_similarity_maps(of_size, patches[0], patches[1], (), picture)
        figures[", ".join(of_size)] = picture.getvalue()
    return figures
