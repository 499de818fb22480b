"""Views as pictures, and what an extractor of others finds in them as a file to train on."""

import json

import cv2
import numpy as np
import pytest
import skimage.data
from PIL import Image

from kjax.cli import main
from kjax.data.cutting.photographs import read_grey
from kjax.images.exchange.hloc import FeatureWriter
from kjax.images.features import Features
from kjax.images.views import VIEWS, make_views
from kjax.matcher.view_set import read_view_set
from kjax.weights.info import Provenance

pytest.importorskip("h5py")
FILES = [f"{photograph:05d}/{view}.png" for photograph in (0, 2) for view in (0, 1)]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Two, and between them one that cannot be read."""
    folder = tmp_path_factory.mktemp("photographs")
    Image.fromarray(skimage.data.camera()[:200, :300]).save(folder / "a.png")
    (folder / "b.jpg").write_bytes(b"no photograph")
    Image.fromarray(skimage.data.coins()[:150, :200]).save(folder / "c.png")
    return folder


@pytest.fixture(scope="module")
def pictures(photographs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    words = ["--views", "1", "--rotation", "30", "--quiet"]
    assert main(["build-views", str(photographs), "--write-views", str(folder), *words]) == 1
    return folder


def extract(pictures, path, *, upright=False, dimension=32, change=None):
    """A part of OpenCV's SIFT as an extractor of others, whose descriptors have any length."""
    with FeatureWriter(path, fresh=True) as writer:
        for name in FILES:
            grey = cv2.imread(str(pictures / name), cv2.IMREAD_GRAYSCALE)
            found, rows = cv2.SIFT_create().detectAndCompute(grey, None)
            columns = {} if upright else {"angles": np.array([k.angle for k in found], "f4")}
            columns["scores"] = np.array([k.response for k in found], "f4")
            xy = np.array([k.pt for k in found], "f4")
            size = grey.shape[::-1] if change is None else change
            writer.add(name, Features(xy, 7 * rows[:, :dimension], size, **columns))
    return path


def test_pictures_are_the_views_that_kjax_describes(photographs, pictures, capsys):
    told = json.loads((pictures / "views.json").read_text())["photographs"]
    names = [f"{photographs.name}/{name}" for name in ("a.png", "c.png")]
    assert [one["name"] for one in told] == names
    assert [view["file"] for one in told for view in one["views"]] == FILES
    config = VIEWS.__class__(**{**vars(VIEWS), "views": 1, "max_rotation_degrees": 30.0})
    views = make_views(photographs / "a.png", names[0], config=config, seed=0)
    for view, about in zip(views, told[0]["views"], strict=True):
        np.testing.assert_array_equal(read_grey(pictures / about["file"]), view.pixels)
        np.testing.assert_array_equal(about["homography"], view.homography)


@pytest.mark.parametrize("upright", [False, True])
def test_features_of_others_become_a_set(pictures, tmp_path, upright, capsys):
    file = extract(pictures, tmp_path / "sift.h5", upright=upright)
    out = tmp_path / "views.npz"
    words = ["--features", str(file), "--out", str(out), "--keypoints", "60", "--quiet"]
    assert main(["build-views", str(pictures), *words]) == 0
    assert "2 groups of 2 views of 2 photographs, described with sift" in capsys.readouterr().out
    views = read_view_set(out)
    assert views.described_with == Provenance("sift", "", 32)
    assert views.counts.min() > 20
    # Views whose keypoints have no angles are never to be turned.
    np.testing.assert_array_equal(np.isnan(views.turns), np.full((2, 2), upright))
    own, other = (views.xy[0, view, : views.counts[0, view]] for view in (0, 1))
    mapped = np.column_stack([own, np.ones(len(own))]) @ views.cameras[0, 1, :, :3].T
    apart = np.linalg.norm((mapped[:, :2] / mapped[:, 2:])[:, None] - other, axis=-1)
    assert (apart.min(axis=1) < 2).mean() > 0.2
    norms = np.linalg.norm(views.descriptors[0, 0, :20].astype(np.float32), axis=1)
    np.testing.assert_allclose(norms, 1, atol=2e-3)


def test_features_that_do_not_fit(pictures, photographs, tmp_path, capsys):
    file = extract(pictures, tmp_path / "sift.h5", change=(10, 10))
    words = ["--features", str(file), "--out", str(tmp_path / "views.npz"), "--quiet"]
    assert main(["build-views", str(pictures), *words]) == 2
    assert "extract from the pictures as they are" in capsys.readouterr().err
    assert main(["build-views", str(photographs), *words]) == 2
    assert "has no views.json" in capsys.readouterr().err
    assert not (tmp_path / "views.npz").exists()


@pytest.mark.parametrize("spoilt", ["{}", "no JSON", '{"format": "x", "photographs": []}'])
def test_damaged_lists_of_views(tmp_path, capsys, spoilt):
    (tmp_path / "views.json").write_text(spoilt)
    (tmp_path / "a.h5").touch()
    words = ["--features", str(tmp_path / "a.h5"), "--out", str(tmp_path / "views.npz")]
    assert main(["build-views", str(tmp_path), *words]) == 2
    assert "is damaged or not a list of views" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --out FILE.npz, or --write-views DIR"),
        (["--write-views", "v", "--out", "v.npz"], "goes without --out"),
        (["--features", "absent.h5", "--out", "v.npz"], "no such file: absent.h5"),
        (
            ["--features", "a.h5", "--out", "v.npz", "--colmap", "m"],
            "one folder that --write-views",
        ),
        (["--out", "v.npz", "--rotation", "200"], "at most 180"),
    ],
)
def test_words_that_do_not_go_together(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(["build-views", ".", *words]) == 2
    assert said in capsys.readouterr().err
