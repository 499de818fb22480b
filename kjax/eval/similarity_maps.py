"""Similarity maps: what position p of one patch responds to in another (the paper's figure).

Every head turns position p of a patch into an encoding g(φ^p, p) such that the unnormalised
descriptor is Σ_p g(φ^p, p) (`Descriptor.local_encodings`). The similarity of two patches is then
Σ_pq g(φ_a^p, p)ᵀ g(φ_b^q, q). One row of that table, as an n×n image, is a similarity map.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from PIL import Image

from kjax.data.embedded import stereo_patch_pairs
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.images import open_image
from kjax.model.descriptor import Descriptor, build, receptive_field
from kjax.weights import shipped
from kjax.weights.files import load_variables
from kjax.weights.source import load_shipped

Position = tuple[int, int]
"""Row and column on the n×n grid."""
Method = tuple[Descriptor, Any]
"""A model with its variables."""

HEADS = ("xy", "polar", "combined", "hardnet")
"""Default columns of the figure."""
POSITIONS: tuple[Position, ...] = ((2, 2), (3, 5), (5, 4))
"""Default rows of the figure."""
TITLES = {
    "xy": r"$\psi^{xy}$",
    "polar": r"$\psi^{\rho\theta}$",
    "combined": r"$\psi^{c}$",
    "combined_star": r"${}^\star\psi^{c}$",
    "hardnet": "HardNet+",
    "sum": r"$\psi^{sum}$",
    "cat": r"$\psi^{cat}$",
}


def similarity_map(
    encodings_a: Float[Array, "*batch p dim"],
    encodings_b: Float[Array, "*batch q dim"],
    *,
    row: int,
    column: int,
) -> Float[Array, "*batch n n"]:
    """Compute the similarity of position (row, column) of patch a with every position of b."""
    side = round(encodings_b.shape[-2] ** 0.5)
    position = row * round(encodings_a.shape[-2] ** 0.5) + column
    similarities = jnp.einsum("...d,...qd->...q", encodings_a[..., position, :], encodings_b)
    return similarities.reshape(*similarities.shape[:-1], side, side)


def rescale_to_unit(similarities: Float[Array, "*batch n m"]) -> Float[Array, "*batch n m"]:
    """Shift and scale each map to [0, 1], as in the paper; a constant map becomes 0."""
    lowest = similarities.min(axis=(-2, -1), keepdims=True)
    spread = similarities.max(axis=(-2, -1), keepdims=True) - lowest
    return (similarities - lowest) / jnp.where(spread > 0, spread, 1)


def similarity_maps(
    method: Method, patch_a: np.ndarray, patch_b: np.ndarray, positions: Sequence[Position]
) -> Float[np.ndarray, "positions n n"]:
    """Compute the maps of several positions, scaled to [0, 1] and without w_p, as in the paper."""
    model, variables = method
    encode = jax.jit(
        lambda variables, patches: model.apply(
            variables, patches, weighted=False, method="local_encodings"
        )
    )
    encodings_a, encodings_b = encode(variables, np.stack([patch_a, patch_b]))
    side = round(encodings_a.shape[0] ** 0.5)
    for row, column in positions:
        if not (0 <= row < side and 0 <= column < side):
            raise InputError(f"position {row},{column} lies outside the {side}×{side} grid")
    maps = [
        similarity_map(encodings_a, encodings_b, row=row, column=column)
        for row, column in positions
    ]
    return np.asarray(rescale_to_unit(jnp.stack(maps)))


def draw_similarity_maps(
    methods: Mapping[str, Method],
    patch_a: np.ndarray,
    patch_b: np.ndarray,
    positions: Sequence[Position],
    path: str | Path | io.BytesIO,
    *,
    caption: str = "",
) -> None:
    """Write the figure: patch a with the receptive field of p, patch b, one map per method.

    Args:
        methods: models by column title.
        patch_a: patch that the positions are chosen on.
        patch_b: patch that they are compared with.
        positions: one row of the figure each.
        path: image file, or a stream for PNG.
        caption: a line below the figure.
    """
    require("matplotlib", "drawing similarity maps").use("agg")
    from matplotlib import pyplot

    maps = {
        title: similarity_maps(method, patch_a, patch_b, positions)
        for title, method in methods.items()
    }
    size = len(positions), 2 + len(maps)
    figure, axes = pyplot.subplots(
        *size, figsize=(1.5 * size[1], 1.5 * size[0] + 0.6), squeeze=False, layout="constrained"
    )
    for i, position in enumerate(positions):
        _draw_patch(axes[i, 0], patch_a, position)
        axes[i, 0].set_ylabel(f"p = {position[0]}, {position[1]}")
        _draw_patch(axes[i, 1], patch_b)
        for axis, method_maps in zip(axes[i, 2:], maps.values(), strict=True):
            axis.imshow(method_maps[i], cmap="jet", vmin=0, vmax=1)
    for axis, title in zip(axes[0], ("patch a, RF of p", "patch b", *maps), strict=True):
        axis.set_title(title, fontsize=10)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.supxlabel(caption, fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_paper_figure(
    path: Path,
    patches: Sequence[Path] = (),
    *,
    heads: Sequence[str] = HEADS,
    weights: Mapping[str, str] | None = None,
    s: int = 2,
    patch_size: int = 32,
    positions: Sequence[Position] = POSITIONS,
    seed: int = 0,
) -> str:
    """Write the paper's figure, and return its caption: which heads have random weights.

    Args:
        path: image file to write.
        patches: two square images; by default, a sample stereo pair.
        heads: columns of the figure.
        weights: file or shipped name by head. Other heads have random weights.
        s: number of frequencies.
        patch_size: N; images are resized to N×N.
        positions: rows and columns on the N/4×N/4 grid.
        seed: of random weights and of the sample pair.
    """
    weights = dict(weights or {})
    if unused := sorted(weights.keys() - set(heads)):
        raise InputError(f"weights for {unused[0]!r}, which is not one of {', '.join(heads)}")
    if len(patches) not in (0, 2):
        raise InputError(f"give two patches, or none for the sample pair: not {len(patches)}")
    if patches:
        patch_a, patch_b = (read_patch(patch, patch_size) for patch in patches)
    else:
        patch_a, patch_b = stereo_patch_pairs(1, size=patch_size, seed=seed)[0]
    methods: dict[str, Method] = {}
    for head in heads:
        model = build(head, s=s, patch_size=patch_size)
        source = weights.get(head)
        if source is None:
            variables = jax.jit(model.init)(jax.random.key(seed), patch_a[None])
        elif shipped.find(source) is None:
            variables = load_variables(source, model)
        else:
            own = load_shipped(source)
            model, variables = own.model, own.variables
            if (model.head, model.patch_size) != (head, patch_size):
                raise InputError(
                    f"{source} has head {model.head} and {model.patch_size}×{model.patch_size} "
                    "patches: change the head or the patch size"
                )
        methods[TITLES[head]] = model, variables
    random = [head for head in heads if head not in weights]
    caption = f"random weights: {', '.join(random)}" if random else ""
    draw_similarity_maps(methods, patch_a, patch_b, positions, path, caption=caption)
    return caption


def read_patch(path: Path, size: int) -> np.ndarray:
    """Read a square grey image, resized to size×size."""
    with open_image(path) as image:
        grey = image.convert("L")
    if grey.width != grey.height:
        raise InputError(f"{path} is {grey.width}×{grey.height}: a patch must be square")
    return np.asarray(grey.resize((size, size), Image.Resampling.BILINEAR))


def _draw_patch(axis: Any, patch: np.ndarray, position: Position | None = None) -> None:
    axis.imshow(patch, cmap="gray")
    if position is None:
        return
    from matplotlib.patches import Rectangle

    top, bottom, left, right = np.clip(receptive_field(*position), 0, patch.shape[0]).tolist()
    box = Rectangle((left - 0.5, top - 0.5), right - left, bottom - top)
    box.set(edgecolor="red", facecolor="none", linewidth=2)
    axis.add_patch(box)
    axis.plot(4 * position[1], 4 * position[0], "r+")
