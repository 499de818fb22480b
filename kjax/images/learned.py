"""A learned matcher, ready to use on the features of two images."""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from kjax.errors import InputError
from kjax.files.atomic import sha256 as file_sha256
from kjax.images.extract import padded_count
from kjax.images.features import Features, Matches
from kjax.images.sift import ROOT_SIFT
from kjax.matcher.assignment import LEAST_SCORE, NONE, MutualMatches, matches_in_blocks
from kjax.matcher.network import Embedding, Layer, LayerOutput, MatcherInput, layer_of
from kjax.matcher.weights import MatcherWeights, find_matcher, read_matcher
from kjax.weights import shipped
from kjax.weights.shipped import DEFAULT

SURE, ENOUGH = 0.9, 0.85
"""Minimum confidence of a keypoint, and the fraction of such keypoints at which layers stop."""
BLOCK = 512
"""Keypoints of the first image whose matches are found at a time."""


def load_matcher(source: str = DEFAULT) -> "Matcher":
    """Load a matcher by the name of shipped weights, a training's workdir, or a file."""
    path = find_matcher(source)
    return Matcher(read_matcher(path), name=str(source), sha256=file_sha256(path))


class Matcher:
    """A network with its weights, compiled for few shapes.

    `described_with` are the weights whose descriptors it matches, `remarks` notes on its training.
    `name` and `sha256` are the source and the checksum of weights that were loaded.
    """

    def __init__(
        self, weights: MatcherWeights, *, name: str | None = None, sha256: str | None = None
    ) -> None:
        """Copy the weights to the device; `name` and `sha256` are for records."""
        self.name, self.sha256, self.remarks = name, sha256, weights.remarks
        self.described_with, self.layers = weights.described_with, weights.model.layers
        self._model = weights.model
        params = jax.tree.map(jnp.asarray, weights.params)
        self._embedding = params["embedding"]
        self._layers = [layer_of(params, number) for number in range(self.layers)]

    def __repr__(self) -> str:
        return (
            f"Matcher({self.name!r}, layers={self.layers}, width={self._model.width}, "
            f"descriptors={self.described_with.name!r})"
        )

    def match(
        self,
        first: Features,
        second: Features,
        *,
        least_score: float = LEAST_SCORE,
        layers: int | None = None,
        early: bool = True,
    ) -> Matches:
        """Match the keypoints of two images.

        Args:
            first: features with the descriptors that the matcher is for; kjax's need scales.
            second: those of the other image.
            least_score: minimum score of a match, from 0 to 1.
            layers: maximum number of layers; fewer are faster.
            early: stop as soon as a layer is sure of nearly all keypoints.
        """
        for features in (first, second):
            self.check(features)
        if layers is not None and not 1 <= layers <= self.layers:
            raise InputError(f"layers is {layers}: the matcher has 1 to {self.layers}")
        if not len(first) or not len(second):
            return Matches.none()
        orders = [canonical_order(features) for features in (first, second)]
        points, most = _network_input(first, second, orders), layers or self.layers
        counts, layer = points.counts, Layer(self._model, attention="blocked")
        there = jnp.arange(points.angles.shape[-1])[None, None] < counts[:, :, None]
        tokens, rotation = _apply(Embedding(self._model), self._embedding, points)
        for number in range(most):
            tokens, output = _apply(layer, self._layers[number], tokens, rotation, counts)
            # No need to ask the last layer; in the first half too few keypoints are sure.
            if early and most // 2 <= number + 1 < most:
                sure = there & (jax.nn.sigmoid(output.confidence) > SURE)
                if float(sure.sum() / counts.sum()) > ENOUGH:
                    break
        found = jax.device_get(_matches(output, counts, jnp.float32(least_score)))
        partners, scores = np.empty(len(first), np.int32), np.empty(len(first), np.float32)
        partners[orders[0]] = np.append(orders[1], NONE)[found.first[0, : len(first)]]
        scores[orders[0]] = found.scores[0, : len(first)]
        rows = np.flatnonzero(partners != NONE)
        indices = np.stack([rows, partners[rows]], axis=1).astype(np.int32)
        apart = first.descriptors[indices[:, 0]] - second.descriptors[indices[:, 1]]
        distances = np.linalg.norm(apart, axis=1).astype(np.float32)
        return Matches(indices, distances, 1 - scores[rows])

    def check(self, features: Features) -> None:
        """Raise InputError if the matcher is not for these features."""
        if features.scales is None and self.described_with.sha256:
            raise InputError("learned matching needs the keypoints' scales: use describe_image's")
        self.check_weights(features.weights_sha256, features.descriptors.shape[1])

    def check_weights(self, sha256: str | None, dimension: int) -> None:
        """Raise InputError if the matcher is not for descriptors of these weights."""
        own = self.described_with
        others = (own.sha256 or own == ROOT_SIFT) and sha256 not in (None, own.sha256)
        if others or dimension != own.dimension:
            raise InputError(
                f"the matcher {self.name} is for descriptors of {own.name} with {own.dimension} "
                "numbers, not for these: describe with those weights, or train a matcher for "
                "these (kjax build-views)"
            )


@functools.partial(jax.jit, static_argnums=0)
def _apply(module: nn.Module, params: Any, *inputs: Any) -> Any:
    """Run the embedding or a layer. All layers share a program: only their parameters differ."""
    return module.apply({"params": params}, *inputs)


@jax.jit
def _matches(output: LayerOutput, counts: jax.Array, least_score: jax.Array) -> MutualMatches:
    block = math.gcd(output.projected.shape[2], BLOCK)
    return matches_in_blocks(output, counts, least_score, block=block)


def canonical_order(features: Features) -> Int[np.ndarray, " N"]:
    """Return the indices that sort keypoints by x, then y, scale and angle.

    Every Nth of them, at which self-attention looks, then does not depend on the given order.
    """
    keys = (features.angles, features.scales, features.xy[:, 1], features.xy[:, 0])
    return np.lexsort([key for key in keys if key is not None])


def _network_input(first: Features, second: Features, orders: list[np.ndarray]) -> MatcherInput:
    """Stack both images, each in its order, as a batch of one pair, padded to one of few sizes."""
    room = padded_count(max(len(first), len(second)))
    sides = []
    for features, order in zip((first, second), orders, strict=True):
        size = np.array(features.image_size, np.float32)
        unit = size.max() / 2
        scales, radians, descriptors = features.for_matcher()
        positions = (features.xy - (size - 1)[None] / 2) / unit
        columns = (positions, np.log(scales / unit), radians, descriptors)
        missing = (0, room - len(features))
        sides.append(
            [
                np.pad(column[order], [missing, *[(0, 0)] * (column.ndim - 1)]).astype("f4")
                for column in columns
            ]
        )
    stacked = (jnp.asarray(np.stack(column)[None]) for column in zip(*sides, strict=True))
    counts = jnp.array([[len(first), len(second)]], jnp.int32)
    return MatcherInput(*[*stacked, counts])


def own_matcher(features: Features) -> str:
    """Return the name of the shipped matcher for the features' weights, or the default's."""
    for name in shipped.list_weights():
        if shipped.card(name).sha256 == features.weights_sha256:
            return name
    return DEFAULT


def cached_matcher(source: str = DEFAULT) -> Matcher:
    """Call `load_matcher`, or return one of its last results if the file is still the same."""
    path = find_matcher(source)
    state = path.stat() if path.is_file() else None
    return _cached(str(source), state and (state.st_ino, state.st_size, state.st_mtime_ns))


_cached = functools.lru_cache(maxsize=2)(lambda source, _: load_matcher(source))
