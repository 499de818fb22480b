"""Pictures' contents for the report: training curves, similarity maps."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from kjax.eval.entries import Entry
from kjax.eval.results import Curve, SimilarityFigure, TrainingCurves
from kjax.eval.similarity_maps import draw_similarity_maps
from kjax.model.patches import resize_patches
from kjax.train.metrics_log import read_metrics

_CURVE_POINTS = 300


def training_curves(entry: Entry) -> TrainingCurves | None:
    """What a run logged; None if the entry is no run, or logged nothing."""
    if entry.workdir is None:
        return None
    points: dict[str, dict[int, float]] = {}
    for row in read_metrics(entry.workdir):
        for name, value in row.items():
            values = [one for one in np.atleast_1d(value) if one is not None]
            if name != "step" and values:
                points.setdefault(name, {})[int(row["step"])] = float(np.mean(values))
    curves = {name: _thinned(found) for name, found in points.items()}
    return TrainingCurves(entry.name, curves) if curves else None


def similarity_figures(
    entries: Sequence[Entry], pair: UInt8[np.ndarray, "2 height width"]
) -> Iterator[SimilarityFigure]:
    """Our models' similarity maps on one pair of patches, a figure per patch size."""
    methods: dict[int, dict[str, Any]] = {}
    for entry in entries:
        method = entry.members[0].method if entry.members else None
        if method is not None:
            methods.setdefault(method[0].patch_size, {})[entry.name] = method
    for size, of_size in methods.items():
        patches = np.asarray(resize_patches(jnp.asarray(pair), size, rounded=True)).astype(np.uint8)
        quarter = size // 16  # on the grid of n = N/4 positions
        middle = (2 * quarter, 2 * quarter)
        picture = io.BytesIO()
        positions = [(quarter, quarter), middle, (quarter, 3 * quarter)]
        draw_similarity_maps(of_size, patches[0], patches[1], positions, picture)
        yield SimilarityFigure(", ".join(of_size), picture.getvalue())


def _thinned(points: dict[int, float]) -> Curve:
    steps = np.array(sorted(points))
    kept = np.unique(np.linspace(0, len(steps) - 1, _CURVE_POINTS).astype(int))
    return Curve([float(step) for step in steps[kept]], [points[int(step)] for step in steps[kept]])
