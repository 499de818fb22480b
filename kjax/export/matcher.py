"""A learned matcher as one file that runs in JAX or onnxruntime, without kjax.

    exported = jax.export.deserialize(bytearray(Path("matcher.stablehlo").read_bytes()))
    partners, scores = exported.call(xy, scales, angles, descriptors, sizes, counts)

    session = onnxruntime.InferenceSession("matcher.onnx")
    partners, scores = session.run(None, {"xy": xy, "scales": scales, …})

Both photographs are stacked on the first axis; the one with fewer keypoints is padded with any
finite numbers. All layers run: an exported function cannot stop early. `partners` has the match of
each keypoint of the first photograph among the second's, or −1; `scores` are from 0 to 1, and 0
without a match. Sort keypoints as `kjax.images.learned.canonical_order` does.
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
from kjax.export import files
from kjax.export.matcher_graph import matcher_graph
from kjax.export.matcher_slots import Program, seen_by, slot_graph, slot_inputs, slot_matches
from kjax.images.features import LEAST_SCALE, Features
from kjax.images.learned import Matcher
from kjax.images.sift import ROOT_SIFT
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

TESTED_KEYPOINTS = 48
"""Keypoints per photograph in the check, if the number is not fixed."""


class MatcherArguments(NamedTuple):
    """Arguments of the function, in the units of `kjax.images.features.Features`."""

    xy: Float32[Array, "2 N 2"]
    scales: Float32[Array, "2 N"]
    angles: Float32[Array, "2 N"]
    descriptors: Float32[Array, "2 N D"]
    sizes: Float32[Array, "2 2"]
    """Widths and heights of the photographs."""
    counts: Int32[Array, "2"]
    """Numbers of keypoints; the rest is padding."""


def export_matcher(
    path: Path,
    weights: MatcherWeights,
    *,
    keypoints: int | None = None,
    program: Program | None = None,
) -> float:
    """Write a matcher as `.stablehlo` or `.onnx`, for `keypoints` per photograph or any number.

    With `program`, write the `.onnx` file that COLMAP or OpenCV takes. Return the largest
    difference from kjax's own scores; a file that differs is not kept.
    """
    files.check_suffix(path)
    if program and (keypoints or path.suffix != files.ONNX):
        raise InputError(f"{program} takes an .onnx file for any number of keypoints")
    origin = weights.described_with
    facts = {
        "matcher of": f"descriptors of {origin.name}, {origin.dimension} numbers",
        **weights.remarks,
        "order of keypoints": "any"
        if program
        else "as given; kjax sorts by x, then y, scale and angle",
        "written by": f"kjax {__version__}",
    }

    def write_and_compare(partial: Path) -> float:
        if program:
            files.write_onnx(partial, slot_graph(weights, program), facts)
        elif path.suffix == files.ONNX:
            files.write_onnx(partial, matcher_graph(weights, keypoints), facts)
        else:
            count = keypoints or export.symbolic_shape("keypoints")[0]
            rows, shape = (2, count), jax.ShapeDtypeStruct
            numbers = ((*rows, 2), rows, rows, (*rows, weights.model.dimension), (2, 2))
            shapes = [*(shape(one, jnp.float32) for one in numbers), shape((2,), jnp.int32)]
            with jax.default_matmul_precision("highest"):
                files.write_stablehlo(partial, jax.jit(matching_function(weights)), shapes, facts)
        return _difference(partial, weights, keypoints or TESTED_KEYPOINTS, program)

    return files.write_checked(path, write_and_compare)


def load_exported_matcher(path: Path) -> Callable[[MatcherArguments], tuple[Any, Any]]:
    """Return the function in a file: from its arguments to partners and scores."""
    if path.suffix == files.ONNX:
        session = files.read_onnx(path)
        return lambda arguments: tuple(
            session.run(None, {name: np.asarray(one) for name, one in arguments._asdict().items()})
        )
    exported = files.read_stablehlo(path)
    return lambda arguments: tuple(exported.call(*arguments))


def matching_function(weights: MatcherWeights) -> Callable[..., tuple[Array, Array]]:
    """Return `kjax.images.learned.Matcher` without early exit, as a function of arrays."""

    def match(*columns: Any) -> tuple[Array, Array]:
        arguments = MatcherArguments(*columns)
        found = mutual_matches(_assign(weights, arguments), LEAST_SCORE)
        partners = found.first[0]
        # Padding matches padding, and so does everything if there is nothing else.
        first, second = arguments.counts
        real = (jnp.arange(partners.shape[0]) < first) & (partners < second)
        return jnp.where(real, partners, NONE), jnp.where(real, found.scores[0], 0.0)

    return match


def _assign(weights: MatcherWeights, arguments: MatcherArguments) -> Assignment:
    model, params = weights.model, weights.params
    units = arguments.sizes.max(axis=1)[:, None] / 2
    middles = (arguments.sizes - 1)[:, None] / 2
    upright = jnp.where(arguments.angles == NO_ANGLE, 0.0, arguments.angles)
    lengths = jnp.linalg.norm(arguments.descriptors, axis=-1, keepdims=True)
    columns = (
        (arguments.xy - middles) / units[..., None],
        jnp.log(jnp.maximum(arguments.scales, LEAST_SCALE) / units),
        jnp.deg2rad(upright),
        arguments.descriptors / jnp.maximum(lengths, 1e-12),
        arguments.counts,
    )
    points = MatcherInput(*(column[None] for column in columns))  # a batch of one
    tokens, rotation = Embedding(model).apply({"params": params["embedding"]}, points)
    layer = Layer(model)  # with XLA's attention: blocks would need the number of keypoints
    _, outputs = jax.lax.scan(
        lambda tokens, own: layer.apply({"params": own}, tokens, rotation, points.counts),
        tokens,
        jax.tree.map(jnp.asarray, params["layers"]),
    )
    last = jax.tree.map(lambda leaf: leaf[-1], outputs)
    return assign(last, points.counts)


def _difference(path: Path, weights: MatcherWeights, room: int, program: Program | None) -> float:
    """Compare scores on random photographs; infinity if partners differ by more than rounding."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(room, weights.model.dimension))
    if weights.described_with == ROOT_SIFT:
        rows = abs(rows)
    # In the canonical order, as kjax sorts them.
    xy, scales = np.sort(rng.uniform(0, 400, (room, 2)), axis=0), rng.uniform(2, 20, room)
    angles = rng.uniform(0, 360, room)

    def photograph(count: int, move: float) -> Features:
        columns = (xy + move, rows + move * rng.normal(size=rows.shape) / 100, scales, angles)
        here, described, sizes, turns = (column[:count].astype(np.float32) for column in columns)
        return Features(here, described, (480, 420), scales=sizes, angles=turns)

    # The second has moved, and lacks some keypoints of the first.
    first, second = photograph(room, 0.0), photograph(max(1, room - room // 4), 10.0)
    if program:
        matches, rated = files.read_onnx(path).run(None, slot_inputs(program, first, second))
        exported_partners, exported_scores = slot_matches(matches, rated, room)
        first, second = (seen_by(program, one, weights) for one in (first, second))
    arguments = stack_photographs(first, second, room)
    if not program:
        exported_partners, exported_scores = load_exported_matcher(path)(arguments)
    with jax.default_matmul_precision("highest"):  # as in the files, on any device
        found = Matcher(weights).match(first, second, early=False)
    partners, scores = np.full(room, NONE), np.zeros(room)
    partners[found.indices[:, 0]] = found.indices[:, 1]
    scores[found.indices[:, 0]] = 1 - found.ratios
    same = np.asarray(exported_partners) == partners
    if not same.all():
        with jax.default_matmul_precision("highest"):
            own = np.exp(log_scores(_assign(weights, arguments))[0, : len(first), : len(second)])
        if not (same | undecided(own)).all():
            return float("inf")
    return float(np.abs(np.asarray(exported_scores) - scores).max(where=same, initial=0))


def undecided(scores: Float32[np.ndarray, "N M"]) -> Bool[np.ndarray, " N"]:
    """Return the rows whose partner may change if scores change by `LIMIT`."""

    def is_tie(rows: Float32[np.ndarray, "rows columns"]) -> Bool[np.ndarray, " rows"]:
        second, best = np.sort(np.pad(rows, ((0, 0), (1, 0))), axis=1)[:, -2:].T
        return best - second <= files.LIMIT

    highest, best = scores.max(axis=1), scores.argmax(axis=1)
    at_least = np.abs(highest - LEAST_SCORE) <= files.LIMIT
    tied = is_tie(scores) | is_tie(scores.T)[best]
    return at_least | (tied & (highest > LEAST_SCORE))


def stack_photographs(first: Features, second: Features, room: int) -> MatcherArguments:
    """Return the arguments for two photographs, padded to `room` keypoints."""
    sides = (first, second)

    def stacked(name: str) -> Float32[Array, "2 N *D"]:
        columns = [getattr(side, name) for side in sides]
        fill = [((0, room - len(one)), *[(0, 0)] * (one.ndim - 1)) for one in columns]
        return jnp.stack([jnp.pad(one, own) for one, own in zip(columns, fill, strict=True)])

    xy, scales, angles, descriptors = map(stacked, MatcherArguments._fields[:4])
    sizes = jnp.array([side.image_size for side in sides], jnp.float32)
    counts = jnp.array([len(side) for side in sides], jnp.int32)
    return MatcherArguments(xy, scales, angles, descriptors, sizes, counts)
