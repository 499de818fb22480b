"""Features and matches in NumPy archives, LightGlue's dictionaries and hloc's HDF5 files."""

import dataclasses

import h5py
import numpy as np
import pytest
from exchanged import assert_equal, make_features
from refusals import assert_refused

from kjax.images.exchange import hloc
from kjax.images.exchange.npz import read_npz, to_dictionary, write_npz
from kjax.images.features import Features
from kjax.images.match import Matches

NESTED = "db/day 1/photo.jpg"


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("shaped", [False, True])
def test_npz_round_trip(tmp_path, rng, count, shaped):
    features = make_features(rng, count, shaped=shaped)
    without = dataclasses.replace(features, weights_sha256=None)
    for written, settings in ((features, None), (without, {"sha256": "abc"})):
        write_npz(tmp_path / "a.npz", written, settings=settings)
        assert_equal(read_npz(tmp_path / "a.npz"), features, rtol=0)


def test_npz_refusals(tmp_path, rng):
    assert_refused(r"ends with \.npz", write_npz, tmp_path / "a", make_features(rng))
    np.savez(tmp_path / "a.npz", xy=np.ones((2, 2)))
    assert_refused("lacks descriptors, image_size", read_npz, tmp_path / "a.npz")


def test_lightglue_units(rng):
    columns = {"scales": np.array([6], "f4"), "angles": np.array([180], "f4")}
    features = Features(np.zeros((1, 2), "f4"), np.ones((1, 3), "f4"), (640, 480), **columns)
    dictionary = to_dictionary(features)
    assert dictionary["keypoints"].tolist() == [[[0, 0]]]
    assert dictionary["scales"].tolist() == [[3]]
    np.testing.assert_allclose(dictionary["oris"], [[np.pi]], rtol=1e-6)
    assert dictionary["image_size"].tolist() == [[640, 480]]
    assert not {"keypoint_scores", "oris"} & to_dictionary(make_features(rng, shaped=False)).keys()


def test_features_must_fit_together(rng):
    features = make_features(rng, 3)
    # Past the types' own checks, which tests have and users have not.
    object.__setattr__(features, "descriptors", features.descriptors[:2])
    assert_refused("3 keypoints have 2 descriptors", features.__post_init__)


# hloc


@pytest.mark.parametrize("count", [0, 1, 5])
def test_features_round_trip(tmp_path, rng, count):
    """Bytes stay bytes, and arrays that are not known are left out."""
    photos = {name: make_features(rng, count) for name in ("a.jpg", NESTED)}
    bits = rng.integers(0, 256, (count, 32), dtype=np.uint8)
    photos["bits"] = Features(np.ones((count, 2), np.float32), bits, (10, 20), distance="Hamming")
    with hloc.FeatureWriter(tmp_path / "features.h5") as writer:
        writer.add(NESTED, make_features(rng, 3))  # replaced below
    with hloc.FeatureWriter(tmp_path / "features.h5") as writer:
        for name, features in photos.items():
            writer.add(name, features)
        without = dataclasses.replace(photos["a.jpg"], weights_sha256=None)
        writer.add("old", without, settings={"sha256": "abc"})
    photos["old"] = photos["a.jpg"]
    assert hloc.group_names(tmp_path / "features.h5") == ["a.jpg", "bits", NESTED, "old"]
    for name, features in photos.items():
        read = hloc.read_features(tmp_path / "features.h5", name)
        assert_equal(read, features)
        assert read.distance == features.distance


def test_layout_of_hloc(tmp_path):
    columns = {"scales": [4, 6], "angles": [90, -1], "scores": [0.25, 0.5]}
    columns = {name: np.array(values, np.float32) for name, values in columns.items()}
    xy, rows = np.array([[0, 0], [7.5, 3]], np.float32), np.arange(6, dtype=np.float32)
    features = Features(xy, rows.reshape(2, 3), (64, 48), **columns)
    with hloc.FeatureWriter(tmp_path / "features.h5") as writer:
        writer.add(NESTED, features)
    with h5py.File(tmp_path / "features.h5", "r") as file:
        group = file["db"]["day 1"]["photo.jpg"]
        # The first pixel's centre stays (0, 0).
        arrays = {"keypoints": features.xy, "descriptors": [[0, 3], [1, 4], [2, 5]]}
        arrays |= {"scales": [2, 3], "oris": [90, 0], "scores": [0.25, 0.5]}
        for name, expected in (arrays | {"image_size": [64, 48]}).items():
            np.testing.assert_array_equal(group[name], expected)
        assert group["keypoints"].attrs["uncertainty"] == 1


def test_a_crash_loses_at_most_the_current_image(tmp_path, rng, monkeypatch):
    path = tmp_path / "features.h5"
    photos = {name: make_features(rng, 5) for name in ("a", "b", "c", "d")}
    with hloc.FeatureWriter(path) as writer:
        writer.add("a", photos["a"])
    killed = hloc.FeatureWriter(path)
    killed.add("b", photos["b"])

    create = h5py.Group.create_dataset

    def interrupted(group, name, **settings):
        if name == "descriptors":
            raise KeyboardInterrupt
        return create(group, name, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(h5py.Group, "create_dataset", interrupted)
        with pytest.raises(KeyboardInterrupt):
            killed.add("c", photos["c"])
    # A kill leaves temporary files, and nothing is closed.
    (tmp_path / "features.h5.parts" / ".half.partial-1.h5").write_bytes(b"half a file")
    (tmp_path / ".features.partial-1.h5").write_bytes(b"half a file")
    assert hloc.group_names(path) == ["a"]

    with hloc.FeatureWriter(path) as again:
        assert [name in again for name in photos] == [True, True, False, False]
        for name in photos:
            if name not in again:
                again.add(name, photos[name])
    for name, features in photos.items():
        assert_equal(hloc.read_features(path, name), features)
    assert [left.name for left in tmp_path.iterdir()] == ["features.h5"]


def test_matches_round_trip_both_ways(tmp_path):
    values = np.array([[0.1, 0.3], [0.5, 0.75]], np.float32)
    matches = Matches(np.array([[0, 2], [3, 0]], np.int32), *values)
    with hloc.MatchWriter(tmp_path / "matches.h5") as writer:
        writer.add(NESTED, "q/b.jpg", matches, 5, 4)
        assert hloc.pair_name(NESTED, "q/b.jpg") in writer
    with h5py.File(tmp_path / "matches.h5", "r") as file:
        group = file["db-day 1-photo.jpg"]["q-b.jpg"]
        np.testing.assert_array_equal(group["matches0"], [2, -1, -1, 0, -1])
        np.testing.assert_array_equal(group["matching_scores0"], [0.5, 0, 0, 0.25, 0])
    indices, scores = hloc.read_matches(tmp_path / "matches.h5", NESTED, "q/b.jpg")
    np.testing.assert_array_equal(indices, matches.indices)
    np.testing.assert_array_equal(scores, [0.5, 0.25])
    turned, _ = hloc.read_matches(tmp_path / "matches.h5", "q/b.jpg", NESTED)
    np.testing.assert_array_equal(turned, matches.indices[:, ::-1])


def test_missing_groups_and_bad_names(tmp_path, rng):
    path = tmp_path / "features.h5"
    with hloc.FeatureWriter(path) as writer:
        writer.add("a/b", make_features(rng, 5))
        for bad in ("", "/a", "a//b", "../a"):
            assert_refused("cannot name a group", writer.add, bad, make_features(rng, 5))
    (tmp_path / "text.h5").write_bytes(b"text")
    for read, message in (
        (lambda: hloc.read_features(tmp_path / "none.h5", "a"), "no such file"),
        (lambda: hloc.read_features(path, "c"), "no features of 'c'"),
        (lambda: hloc.read_features(path, "a"), "no features of 'a'"),
        (lambda: hloc.read_matches(path, "c", "d"), "no matches of"),
        (lambda: hloc.read_features(tmp_path / "text.h5", "a"), "as HDF5: the file is damaged"),
    ):
        assert_refused(message, read)


def array(value):
    return lambda file, name: file.create_dataset(name, data=value)


def external_storage(file, name):
    file.create_dataset(name, (5, 2), "f4", external=[("secret.bin", 0, 40)])


def virtual(file, name):
    layout = h5py.VirtualLayout((5, 2), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (5, 2))
    file.create_virtual_dataset(name, layout)


def link(target):
    return lambda file, name: file.__setitem__(name, target)


@pytest.mark.parametrize(
    ("name", "make", "problem"),
    [
        ("a.jpg", link(h5py.ExternalLink("other.h5", "/")), "is a link"),
        ("a.jpg/keypoints", link(h5py.SoftLink("/elsewhere")), "is a link"),
        ("a.jpg/keypoints", external_storage, "in other files"),
        ("a.jpg/keypoints", virtual, "in other files"),
        ("a.jpg/keypoints", lambda file, name: file.create_group(name), "is not an array"),
        ("a.jpg/keypoints", array(h5py.Empty("f4")), "keypoints|xy"),
        ("a.jpg/keypoints", array(np.zeros((5, 3))), "xy"),
        ("a.jpg/keypoints", array(np.full((5, 2), np.nan)), "not finite"),
        ("a.jpg/descriptors", array(np.float32(3)), "descriptors"),
        ("a.jpg/image_size", array(np.array([np.nan, 3])), "image_size"),
        ("a.jpg/scales", array(np.zeros((5, 1))), "scales"),
        ("a.jpg/scores", array(np.zeros(4)), "scores"),
        ("a.jpg/oris", array(np.zeros(5, complex)), "angles"),
    ],
)
def test_damaged_features_are_refused(tmp_path, rng, name, make, problem):
    with hloc.FeatureWriter(tmp_path / "features.h5") as writer:
        writer.add("a.jpg", make_features(rng, 5))
    np.full(10, 7, np.float32).tofile(tmp_path / "secret.bin")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = file["elsewhere"] = np.full((5, 2), 7, np.float32)
    with h5py.File(tmp_path / "features.h5", "a") as file:
        del file[name]
        make(file, name)
    path = tmp_path / "features.h5"
    assert "features.h5" in assert_refused(problem, hloc.read_features, path, "a.jpg")


def test_damaged_matches_are_refused(tmp_path):
    wrong = np.array([0.5, 1]), np.array([2**40, 1]), np.zeros((2, 2), int)
    for damaged in (*({"matches0": one} for one in wrong), {"matching_scores0": np.zeros(3)}):
        arrays = {"matches0": np.array([-1, 1]), "matching_scores0": np.zeros(2)} | damaged
        with h5py.File(tmp_path / "matches.h5", "w") as file:
            for name, values in arrays.items():
                file[f"a/b/{name}"] = values
        assert_refused("match again", hloc.read_matches, tmp_path / "matches.h5", "a", "b")
