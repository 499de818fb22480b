"""A learned matcher, ready to use on the features of two photographs.

matcher = kjax.load_matcher("out/matcher")             # a training's folder, or its matcher.npz
matches = matcher.match(first, second)                 # or kjax.match(…, method="learned")
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int32

from kjax.errors import InputError
from kjax.files.atomic import sha256 as file_sha256
from kjax.images.extraction import padded_count
from kjax.images.features import Features
from kjax.images.matchable import matchable
from kjax.images.matches import Matches
from kjax.matcher.assignment import LEAST_SCORE, Partners, assign, mutual_partners
from kjax.matcher.network import Embedding, Layer, MatcherConfig, Points, Rotation, Said, layer_of
from kjax.matcher.truth import NONE
from kjax.matcher.weights import MatcherWeights, find_matcher, read_matcher
from kjax.weights.shipped import DEFAULT

SURE, ENOUGH = 0.9, 0.85
"""How sure a layer must be of a keypoint, and of which share of them, to be the last."""
BLOCK = 512
"""Keypoints of the first photograph whose matches are looked for at a time."""


def load_matcher(source: str = DEFAULT) -> "Matcher":
    """A matcher that ships with kjax, from the workdir of its training, or from a file.

    Args:
        source: the name of the weights that it is for, "out/matcher", or "matcher.npz".
    """
    path = find_matcher(source)
    return Matcher(read_matcher(path), name=str(source), sha256=file_sha256(path))


class Matcher:
    """A network with its weights, compiled for few shapes.

    Attributes:
        name: where the weights came from, if they were loaded.
        sha256: of their file, if they were loaded.
        described_with: what made the descriptors that it matches.
        layers: how many there are.
        remarks: on how it was trained.
    """

    def __init__(
        self, weights: MatcherWeights, *, name: str | None = None, sha256: str | None = None
    ) -> None:
        """Brings the weights to the device.

        Args:
            weights: as `kjax.matcher.weights` reads them.
            name: where they came from, for people.
            sha256: of their file, for records.
        """
        about = weights.about
        self.name, self.sha256, self.remarks = name, sha256, about.remarks
        self.described_with, self.layers = about.described_with, about.model.layers
        self._model = about.model
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
        """Matches the keypoints of two photographs.

        Args:
            first: keypoints with the descriptors that the matcher is for; of kjax's also scales.
            second: the same of the other photograph.
            least_score: of a match, from 0 to 1.
            layers: at most so many of them; fewer are quicker.
            early: stop before, as soon as a layer is sure of nearly all keypoints.

        Returns:
            At most one match for each keypoint. `ratios` are one minus the scores.

        Raises:
            InputError: features that it is not for.
        """
        for features in (first, second):
            self.check(features)
        if layers is not None and not 1 <= layers <= self.layers:
            raise InputError(f"layers is {layers}: the matcher has 1 to {self.layers}")
        if not len(first) or not len(second):
            return Matches.none()
        points = _as_points(first, second)
        said = self._run(points, layers or self.layers, early)
        found = jax.device_get(_partners(said, points.counts, jnp.float32(least_score)))
        return _as_matches(found, first, second)

    def check(self, features: Features) -> None:
        """Refuses features that the matcher is not for.

        Raises:
            InputError: they have descriptors of other weights, or of kjax's and no scales.
        """
        if features.scales is None and self.described_with.sha256:
            raise InputError("learned matching needs the keypoints' scales: use describe_image's")
        self.check_weights(features.weights_sha256, features.descriptors.shape[1])

    def check_weights(self, sha256: str | None, dimension: int) -> None:
        """Refuses descriptors that the matcher is not for.

        Args:
            sha256: of the weights that described, if it is known. A matcher for descriptors that
                are not kjax's looks at their dimension alone.
            dimension: of a descriptor.

        Raises:
            InputError: they are others'.
        """
        own = self.described_with
        others = own.sha256 and sha256 not in (None, own.sha256)
        if others or dimension != own.dimension:
            raise InputError(
                f"the matcher {self.name} is for descriptors of {own.name} with {own.dimension} "
                "numbers, these are others: describe with those, or train a matcher for these "
                "(kjax build-views)"
            )

    def _run(self, points: Points, most: int, early: bool) -> Said:
        """What the last layer that is needed says."""
        tokens, rotation = _embed(self._model, self._embedding, points)
        for number in range(most):
            params = self._layers[number]
            tokens, said = _pass_layer(self._model, params, tokens, rotation, points.counts)
            # The last one need not be asked; before the middle they are sure of too few matches.
            asked = early and most // 2 <= number + 1 < most
            if asked and float(_sure_share(said, points.counts)) > ENOUGH:
                break
        return said


@functools.partial(jax.jit, static_argnums=0)
def _embed(model: MatcherConfig, params: Any, points: Points) -> tuple[jax.Array, Rotation]:
    return Embedding(model).apply({"params": params}, points)


@functools.partial(jax.jit, static_argnums=0)
def _pass_layer(
    model: MatcherConfig,
    params: Any,
    tokens: jax.Array,
    rotation: Rotation,
    counts: jax.Array,
) -> tuple[jax.Array, Said]:
    """One program for all layers: they differ in their parameters alone."""
    layer = Layer(model, attention="blocked")
    return layer.apply({"params": params}, tokens, rotation, counts)


@jax.jit
def _sure_share(said: Said, counts: jax.Array) -> jax.Array:
    """The share of keypoints that the layer is sure of."""
    there = jnp.arange(said.confidence.shape[-1])[None, None] < counts[:, :, None]
    return (there & (jax.nn.sigmoid(said.confidence) > SURE)).sum() / counts.sum()


@jax.jit
def _partners(said: Said, counts: jax.Array, least_score: jax.Array) -> Partners:
    made = assign(said, counts)
    block = math.gcd(made.similarity.shape[1], BLOCK)
    return mutual_partners(made, least_score, block=block)


def _as_points(first: Features, second: Features) -> Points:
    """Both photographs as a batch of one, padded to one of few sizes."""
    room = padded_count(max(len(first), len(second)))
    sides = [_as_columns(features, room) for features in (first, second)]
    positions, log_scales, angles, descriptors = (
        jnp.asarray(np.stack(column)[None]) for column in zip(*sides, strict=True)
    )
    counts = jnp.array([[len(first), len(second)]], jnp.int32)
    return Points(positions, log_scales, angles, descriptors, counts)


def _as_columns(features: Features, room: int) -> list[Float32[np.ndarray, "room ..."]]:
    """Positions, log scales, angles and descriptors, in the network's units."""
    size = np.array(features.image_size, np.float32)
    unit = size.max() / 2
    scales, radians, descriptors = matchable(features)
    columns = [
        (features.xy - (size - 1)[None] / 2) / unit,
        np.log(scales / unit),
        radians,
        descriptors,
    ]
    return [
        np.pad(column, [(0, room - len(features)), *[(0, 0)] * (column.ndim - 1)]).astype("f4")
        for column in columns
    ]


def _as_matches(found: Partners, first: Features, second: Features) -> Matches:
    partners = found.first[0, : len(first)]
    rows = np.flatnonzero(partners != NONE)
    indices: Int32[np.ndarray, "K 2"] = np.stack([rows, partners[rows]], axis=1).astype(np.int32)
    apart = first.descriptors[indices[:, 0]] - second.descriptors[indices[:, 1]]
    distances = np.linalg.norm(apart, axis=1).astype(np.float32)
    return Matches(indices, distances, 1 - np.asarray(found.scores[0, rows]))


@functools.lru_cache(maxsize=2)
def remembered_matcher(source: str) -> Matcher:
    """`load_matcher`, whose last results are kept."""
    return load_matcher(source)
