"""A learned matcher as one file that JAX runs, or onnxruntime, without kjax, flax, or the weights.

    exported = jax.export.deserialize(bytearray(Path("matcher.stablehlo").read_bytes()))
    partners, scores = exported.call(xy, scales, angles, descriptors, sizes, counts)

    session = onnxruntime.InferenceSession("matcher.onnx")
    partners, scores = session.run(None, {"xy": xy, "scales": scales, …})

Both photographs are stacked on the first axis, the one with fewer keypoints filled up with anything
finite. All layers are passed: a program cannot stop early.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, Bool, Float32, Int32

from kjax.data.cutting.keypoints import NO_ANGLE
from kjax.errors import InputError
from kjax.export import onnx as export_onnx
from kjax.export import stablehlo as export_stablehlo
from kjax.export.function import LIMIT, write_checked
from kjax.export.matcher_graph import matcher_graph
from kjax.extras import require
from kjax.images.features import LEAST_SCALE, Features
from kjax.images.learned import Matcher
from kjax.matcher.assignment import (
    LEAST_SCORE,
    NONE,
    Assignment,
    assign,
    log_scores,
    mutual_matches,
)
from kjax.matcher.network import Embedding, Layer, MatcherInput
from kjax.matcher.weights import MatcherWeights
from kjax.version import __version__

STABLEHLO, ONNX = ".stablehlo", ".onnx"
_TRIED = 48
"""Keypoints of the photographs that are compared, if any number will do."""


class Pair(NamedTuple):
    """What the function takes, in the units of `kjax.images.features.Features`."""

    xy: Float32[Array, "2 N 2"]
    scales: Float32[Array, "2 N"]
    angles: Float32[Array, "2 N"]
    descriptors: Float32[Array, "2 N D"]
    sizes: Float32[Array, "2 2"]
    """Widths and heights of the photographs."""
    counts: Int32[Array, "2"]
    """Keypoints of each; others are padding."""


class Partners(NamedTuple):
    """What it gives for each keypoint of the first photograph."""

    partners: Int32[Array, " N"]
    """Its match among the second's, or −1."""
    scores: Float32[Array, " N"]
    """From 0 to 1; 0 without a match."""


def export_matcher(path: Path, weights: MatcherWeights, *, keypoints: int | None = None) -> float:
    """Writes a matcher, and checks what was written.

    Args:
        path: a new file, or one to replace: `.stablehlo` or `.onnx`.
        weights: of the matcher.
        keypoints: N, if the function shall take no other.

    Returns:
        The largest difference to kjax's own scores that was seen.

    Raises:
        InputError: it is too large, or a package is missing. No file is left, and what was at
            `path` before stays.
    """
    if path.suffix not in (STABLEHLO, ONNX):
        raise InputError(f"{path}: matchers are exported to {STABLEHLO} or {ONNX}")
    origin = weights.described_with
    about = {
        "matcher of": f"descriptors of {origin.name}, {origin.dimension} numbers",
        **weights.remarks,
        "written by": f"kjax {__version__}",
    }

    def write_and_compare(partial: Path) -> float:
        if path.suffix == ONNX:
            export_onnx.write(partial, matcher_graph(weights, keypoints), about)
        else:
            export_stablehlo.write(partial, _export(weights, keypoints), about)
        return _difference(partial, weights, keypoints or _TRIED)

    return write_checked(path, write_and_compare)


def load_exported_matcher(path: Path) -> Callable[[Pair], Partners]:
    """The function in a file."""
    if path.suffix == ONNX:
        session = export_onnx.read(path)
        return lambda pair: Partners(
            *session.run(None, {name: np.asarray(value) for name, value in pair._asdict().items()})
        )
    exported = export_stablehlo.read(path)
    return lambda pair: Partners(*exported.call(*pair))


def _export(weights: MatcherWeights, keypoints: int | None) -> export.Exported:
    require("flatbuffers", export_stablehlo.STABLEHLO_FILES)
    count = keypoints or export.symbolic_shape("keypoints")[0]
    rows = (2, count)
    numbers = ((*rows, 2), rows, rows, (*rows, weights.model.dimension), (2, 2))
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in numbers]
    shapes.append(jax.ShapeDtypeStruct((2,), jnp.int32))

    def match(*columns: Any) -> tuple[Any, Any]:
        return _match(weights, Pair(*columns))

    with jax.default_matmul_precision("highest"):
        return export.export(jax.jit(match), platforms=export_stablehlo.PLATFORMS)(*shapes)


def _match(weights: MatcherWeights, pair: Pair) -> tuple[Any, Any]:
    """All layers, as `kjax.images.learned.Matcher` without early exit."""
    found = mutual_matches(_assign(weights, pair), LEAST_SCORE)
    partners = found.first[0]
    # Padding finds padding, and so does everything if there is nothing else.
    there = (jnp.arange(partners.shape[0]) < pair.counts[0]) & (partners < pair.counts[1])
    return jnp.where(there, partners, NONE), jnp.where(there, found.scores[0], 0.0)


def _assign(weights: MatcherWeights, pair: Pair) -> Assignment:
    model, params = weights.model, weights.params
    points = _as_points(pair)
    tokens, rotation = Embedding(model).apply({"params": params["embedding"]}, points)
    layer = Layer(model)  # with XLA's attention: blocks would need the number of keypoints
    _, said = jax.lax.scan(
        lambda tokens, own: layer.apply({"params": own}, tokens, rotation, points.counts),
        tokens,
        jax.tree.map(jnp.asarray, params["layers"]),
    )
    last = jax.tree.map(lambda leaf: leaf[-1], said)
    return assign(last, points.counts)


def _as_points(pair: Pair) -> MatcherInput:
    """A batch of one, in the network's units."""
    units = pair.sizes.max(axis=1)[:, None] / 2
    middles = (pair.sizes - 1)[:, None] / 2
    upright = jnp.where(pair.angles == NO_ANGLE, 0.0, pair.angles)
    lengths = jnp.linalg.norm(pair.descriptors, axis=-1, keepdims=True)
    columns = (
        (pair.xy - middles) / units[..., None],
        jnp.log(jnp.maximum(pair.scales, LEAST_SCALE) / units),
        jnp.deg2rad(upright),
        pair.descriptors / jnp.maximum(lengths, 1e-12),
        pair.counts,
    )
    return MatcherInput(*(column[None] for column in columns))


def _difference(path: Path, weights: MatcherWeights, room: int) -> float:
    """Between a file's and kjax's scores of two random photographs; infinite if partners differ.

    Those may differ that rounding decides.
    """
    first, second = _random_photographs(weights.model.dimension, room)
    pair = stack_pair(first, second, room)
    with jax.default_matmul_precision("highest"):  # as in the files, on any device
        found = Matcher(weights).match(first, second, early=False)
    partners, scores = np.full(room, NONE), np.zeros(room)
    partners[found.indices[:, 0]] = found.indices[:, 1]
    scores[found.indices[:, 0]] = 1 - found.ratios
    there = load_exported_matcher(path)(pair)
    same = np.asarray(there.partners) == partners
    if not same.all():
        with jax.default_matmul_precision("highest"):
            own = np.exp(log_scores(_assign(weights, pair))[0, : len(first), : len(second)])
        if not (same | undecided(own)).all():
            return float("inf")
    return float(np.abs(np.asarray(there.scores) - scores).max(where=same, initial=0))


def undecided(scores: Float32[np.ndarray, "N M"]) -> Bool[np.ndarray, " N"]:
    """Of which rows a change of scores by `LIMIT` may change the partner."""

    def is_tie(rows: Float32[np.ndarray, "rows columns"]) -> Bool[np.ndarray, " rows"]:
        second, best = np.sort(np.pad(rows, ((0, 0), (1, 0))), axis=1)[:, -2:].T
        return best - second <= LIMIT

    highest, best = scores.max(axis=1), scores.argmax(axis=1)
    at_least = np.abs(highest - LEAST_SCORE) <= LIMIT
    tied = is_tie(scores) | is_tie(scores.T)[best]
    return at_least | (tied & (highest > LEAST_SCORE))


def stack_pair(first: Features, second: Features, room: int) -> Pair:
    """Two photographs whose keypoints have scales and angles, as the function takes them."""
    sides = (first, second)

    def stacked(name: str) -> Float32[Array, "2 N *D"]:
        columns = [getattr(side, name) for side in sides]
        fill = [((0, room - len(one)), *[(0, 0)] * (one.ndim - 1)) for one in columns]
        return jnp.stack([jnp.pad(one, own) for one, own in zip(columns, fill, strict=True)])

    return Pair(
        stacked("xy"),
        stacked("scales"),
        stacked("angles"),
        stacked("descriptors"),
        jnp.array([side.image_size for side in sides], jnp.float32),
        jnp.array([len(side) for side in sides], jnp.int32),
    )


def _random_photographs(dimension: int, room: int) -> tuple[Features, Features]:
    """The second has moved, and lacks some of the first's keypoints."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(room, dimension))
    xy, scales = rng.uniform(0, 400, (room, 2)), rng.uniform(2, 20, room)
    angles = rng.uniform(0, 360, room)
    fewer = max(1, room - room // 4)

    def photograph(count: int, move: float) -> Features:
        columns = (xy + move, rows + move * rng.normal(size=rows.shape) / 100, scales, angles)
        here, described, sizes, turns = (column[:count].astype(np.float32) for column in columns)
        return Features(here, described, (480, 420), scales=sizes, angles=turns)

    return photograph(room, 0.0), photograph(fewer, 10.0)
