"""Visualizing patch similarity: the paper's figure of similarity maps.

One row per chosen position p: patch a with the receptive field of p, patch b, and for every method
the map of similarities between p and all positions of patch b, red where it is largest.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kjax.errors import InputError
from kjax.extras import require
from kjax.model.descriptor import Descriptor, receptive_field
from kjax.model.match_kernel import rescale_to_unit, similarity_map

Position = tuple[int, int]
"""Row and column on the n×n grid."""


class ComparedModel(NamedTuple):
    """A model with its weights."""

    model: Descriptor
    variables: Any


def similarity_maps(
    method: ComparedModel, patch_a: np.ndarray, patch_b: np.ndarray, positions: Sequence[Position]
) -> Float[np.ndarray, "positions n n"]:
    """The maps of several positions, each scaled to [0, 1]; w_p is left out, as in the paper."""
    encode = jax.jit(
        lambda variables, patches: method.model.apply(
            variables, patches, weighted=False, method="local_encodings"
        )
    )
    encodings_a, encodings_b = encode(method.variables, np.stack([patch_a, patch_b]))
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
    methods: Mapping[str, ComparedModel],
    patch_a: np.ndarray,
    patch_b: np.ndarray,
    positions: Sequence[Position],
    path: str | Path | io.BytesIO,
    *,
    caption: str = "",
) -> None:
    """Writes the figure as an image file.

    Args:
        methods: column titles and what to draw under them.
        patch_a: patch that the positions are chosen on.
        patch_b: patch that they are compared with.
        positions: one row of the figure each.
        path: image file to write, whose suffix chooses the format; or a stream, for PNG.
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
