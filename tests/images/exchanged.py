"""Random features, and their comparison."""

import numpy as np

from kjax.images.features import Features

KNOWN = {"ratio": 0.94, "weights_sha256": "abc"}
FIELDS = ("xy", "descriptors", "scales", "angles", "scores")


def make_features(rng, count=4, *, size=(640, 480), shaped=True):
    descriptors = rng.normal(size=(count, 128)).astype(np.float32)
    uniform = {
        key: rng.uniform(1, 9, count).astype(np.float32) if shaped else None
        for key in ("scales", "angles", "scores")
    }
    xy = rng.uniform(0, 480, (count, 2)).astype(np.float32)
    return Features(xy=xy, descriptors=descriptors, image_size=size, **uniform, **KNOWN)


def assert_equal(one, other, fields=FIELDS, **tolerance):
    assert one.image_size == other.image_size
    assert fields is not FIELDS or all(getattr(one, key) == getattr(other, key) for key in KNOWN)
    for name in fields:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, **(tolerance or {"rtol": 1e-6}))
