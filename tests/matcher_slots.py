"""What COLMAP 4 and OpenCV 5 do with a matcher's file, by the rules of their sources."""

import numpy as np

COLMAP_INPUTS = [
    f"{name}{side}" for name in ("kpts", "desc", "image_size", "scales", "oris") for side in (0, 1)
]


def colmap_inputs(texts, sizes):
    """Return the inputs for two images, imported from text files of features."""
    inputs = {}
    for side, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        header, *lines = text.splitlines()
        rows = np.array([line.split() for line in lines], np.float32)
        assert header == f"{len(rows)} 128"
        x, y, scale, angle = rows[:, :4].T
        # Keypoints are kept as affine shapes [[a, b], [c, d]].
        a, b, c, d = (scale * f(angle) for f in (np.cos, lambda t: -np.sin(t), np.sin, np.cos))
        stored = rows[:, 4:]
        assert (stored == stored.astype(np.uint8)).all()
        columns = {
            "kpts": np.stack([x - 0.5, y - 0.5], axis=1),
            "desc": stored / np.linalg.norm(stored, axis=1, keepdims=True),
            "image_size": np.array(size),
            "scales": (np.hypot(a, c) + np.hypot(b, d)) / 2,
            "oris": np.arctan2(c, a),
        }
        inputs |= {f"{name}{side}": one[None].astype("f4") for name, one in columns.items()}
    return inputs


def run_colmap(session, inputs, least_score=0.1):
    """Check a file's inputs and outputs as COLMAP does, and return its matches."""
    assert [one.name for one in session.get_inputs()] == COLMAP_INPUTS
    for one in session.get_inputs():
        assert one.type == "tensor(float)"
        assert len(one.shape) == inputs[one.name].ndim
    count = inputs["kpts0"].shape[1]
    assert [one.name for one in session.get_outputs()] == ["matches0", "mscores0"]
    matches, scores = session.run(None, inputs)
    assert (matches.dtype, scores.dtype) == (np.int64, np.float32)
    assert matches.shape == scores.shape == (count,)
    assert matches.max() < inputs["kpts1"].shape[1]
    rows = np.flatnonzero((matches >= 0) & (scores >= least_score))
    return np.stack([rows, matches[rows]], axis=1)


def run_opencv(session, first, second, sizes, least_score=0.0):
    """Return the matches of OpenCV's class for keypoints and descriptors of two images."""
    inputs = {}
    for side, ((xy, rows), size) in enumerate(zip((first, second), sizes, strict=True)):
        inputs[f"kpts{side}"] = (xy / np.float32(size) * 2 - 1)[None].astype("f4")
        inputs[f"desc{side}"] = rows[None]
    assert {one.name for one in session.get_inputs()} == inputs.keys()
    matches, scores = session.run(["matches0", "mscores0"], inputs)
    assert (matches.dtype, scores.dtype) == (np.int64, np.float32)
    assert matches.shape == (len(scores), 2)
    return matches[scores >= least_score]
