"""Match two photographs in the ways that `kjax match` tries, until one gives a strong geometry."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kjax.data.cutting.keypoints import Keypoints, detect_in_grey
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.describer import Describer, load
from kjax.images.extract import open_grey
from kjax.images.features import Features, Matches, MatchingMethod
from kjax.images.geometry import Choice, Verified, one_per_location, verify
from kjax.images.match import match
from kjax.weights import shipped

if TYPE_CHECKING:
    from kjax.images.learned import Matcher  # brings JAX

WEAK = 100
"""Minimum number of inliers at which no other way is tried. On 138 pairs of photographs that are
not turned, `fast` and the ratio test, upright keypoints gave 1.1 times as many correct inliers
above it and 1.4 times below."""
TILTS = ((2, 1), (1, 2), (4, 1), (1, 4))
"""Divisors of width and height of the tilted views, after ASIFT (Morel and Yu 2009)."""

Way = Literal["oriented", "upright", "context", "aside"]
View = tuple[np.ndarray, Keypoints]


class PhotoMatches(NamedTuple):
    """Features of two photographs, their matches, the geometry, and the way that found it.

    The "aside" features are those of one view of each photograph, in pixels of the photograph.
    """

    first: Features
    second: Features
    matches: Matches
    verified: Verified
    way: Way


def match_photos(
    first: Any,
    second: Any,
    describer: Describer | None = None,
    *,
    method: MatchingMethod = "mutual_ratio",
    ratio: float | None = None,
    matcher: "Matcher | str | None" = None,
    geometry: Choice = "auto",
    threshold: float = 3.0,
    upright: bool | None = None,
    aside: bool | None = None,
    repeated: bool = False,
    align: bool = False,
    quantize: str | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> PhotoMatches:
    """Match two photographs and verify the matches, as `kjax match` does.

    Args:
        first: a photograph as `describe_image` takes it, in RGB; or its grey values, original width
            and height, and keypoints.
        second: a photograph of the same scene.
        describer: the result of `kjax.load` (default: the default weights in dtype "auto").
        method: see `kjax.match`.
        ratio: see `kjax.match`.
        matcher: see `kjax.match`.
        geometry: the model of `kjax.images.geometry.verify`.
        threshold: maximum error of an inlier in pixels.
        upright: keypoints without orientation (default: tried if there are fewer than 100 inliers
            with orientations, and taken if there are more without). For shipped weights that have a
            counterpart with context, such as best-context, this try uses it and its matcher.
        aside: try tilted views if there are still fewer than 100, for photographs from far aside,
            and take the pair of views with most inliers (default: unless `upright` is given).
        repeated: keep duplicate matches at the same location.
        align: move the second keypoints as `kjax.align_matches` does.
        quantize: form of the descriptors, see `kjax.quantize`.
        progress: called with the name of each step.
    """
    if align and repeated:
        raise InputError("align moves each keypoint once: omit repeated")
    describer = describer or load(dtype="auto")
    upright = True if upright is None and describer.upright else upright
    aside = upright is None if aside is None else aside
    ways = 1 + (upright is None) + aside
    photos, originals = [], []
    for photo in (first, second):
        if isinstance(photo, tuple):
            image, (grey, size, keypoints) = None, photo
        else:
            image, (grey, size) = photo, open_grey(photo, "rgb", describer.max_side)
            options: Any = {"detector": describer.detector, "upright": bool(upright)}
            keypoints = detect_in_grey(grey, max_keypoints=describer.max_keypoints, **options)
        photos.append((grey, keypoints))
        originals.append((size, image))

    def attempt(
        way: Way,
        views: list[list[View]],
        describer: Describer = describer,
        method: MatchingMethod = method,
        matcher: "Matcher | str | None" = matcher,
    ) -> PhotoMatches:
        """Match all views of the first photograph with all of the second; return the best pair."""
        described: list[list[Features]] = []
        for name, own in zip(("first", "second"), views, strict=True):
            progress(f"describing the {name}, {way} (compiling on first use)")
            found = [describer.describe_grey(*view) for view in own]
            described.append([one.quantized(quantize) for one in found] if quantize else found)
        progress("matching")

        def judge(a: Features, b: Features, matches: Matches) -> PhotoMatches:
            a, b = (
                dataclasses.replace(one.resized(size), image=image)
                for one, (size, image) in zip((a, b), originals, strict=True)
            )
            ends = a.xy[matches.indices[:, 0]], b.xy[matches.indices[:, 1]]
            # All tries together pass at random as rarely as one.
            alarms = 1 / ways / len(views[0]) / len(views[1])
            found = verify(*ends, model=geometry, threshold=threshold, false_alarms=alarms)
            return PhotoMatches(a, b, matches, found, way)

        tries = []
        for (i, a), (j, b) in itertools.product(*map(enumerate, described)):
            matches = match(a, b, method=method, ratio=ratio, matcher=matcher)
            if not repeated:
                # SIFT returns a location with two orientations as two keypoints.
                matches = matches.keep(one_per_location(matches, a.xy, b.xy))
            tries.append((judge(a, b, matches), views[0][i][0], views[1][j][0], a, b))
        best, grey_a, grey_b, a, b = max(tries, key=lambda one: inlier_count(one[0]))
        if align:
            from kjax.images.align import align_matches  # brings JAX

            xy = b.xy.copy()
            moved = align_matches(grey_a, grey_b, a, b, best.matches).xy_b
            xy[best.matches.indices[:, 1]] = moved
            best = judge(a, dataclasses.replace(b, xy=xy), best.matches)
        return best

    taken = attempt("upright" if upright else "oriented", [[one] for one in photos])
    if upright is None and inlier_count(taken) < WEAK:
        # A matcher of the user's is for the describer's own weights.
        wide = with_context(describer) if matcher in (None, describer.name) else None
        upright_views = [[(grey, found.upright())] for grey, found in photos]
        # Under changed appearance right matches are as ambiguous as others: no ratio tells them.
        if wide:
            other = attempt(
                "context", upright_views, wide, "mutual" if quantize else "learned", None
            )
        else:
            other = attempt("upright", upright_views)
        taken = max(taken, other, key=inlier_count)
    if aside and inlier_count(taken) < WEAK:
        views = [tilted_views(grey, found.upright(), describer) for grey, found in photos]
        taken = max(taken, attempt("aside", views), key=inlier_count)
    return taken


def with_context(describer: Describer) -> Describer | None:
    """Return the counterpart of shipped weights that sees the surroundings; None if none ships."""
    name = f"{describer.name}{shipped.CONTEXT}"
    if shipped.find(name) is None or describer.sha256 != shipped.card(str(describer.name)).sha256:
        return None
    limits: Any = {"max_keypoints": describer.max_keypoints, "max_side": describer.max_side}
    limits |= {"device": describer.device, "detector": describer.detector}
    # Rounding to 8 bits would lose some of the pairs that only context can match.
    limits["dtype"] = "float32" if describer.dtype == "int8" else describer.dtype
    found = load(name, **limits)
    return found if found.dimension == describer.dimension else None


def inlier_count(found: PhotoMatches) -> int:
    """Return the number of matches that agree with the geometry."""
    return int(found.verified.inliers.sum())


def tilted_views(grey: np.ndarray, upright: Keypoints, describer: Describer) -> list[View]:
    """Return a photograph and its tilted views; the keypoints of all share the maximum."""
    cv2, count = require("cv2", "tilted views"), -(-describer.max_keypoints // (1 + len(TILTS)))
    views = [(grey, upright.keep(np.arange(len(upright.xy)) < count))]
    for tilt in TILTS:
        size = [max(side // t, 1) for side, t in zip(grey.shape[::-1], tilt, strict=True)]
        view = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
        options: Any = {"detector": describer.detector, "upright": True}
        views.append((view, detect_in_grey(view, max_keypoints=count, **options)))
    return views
