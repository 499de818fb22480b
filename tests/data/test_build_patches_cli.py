import dataclasses
import hashlib

import cv2
import numpy as np
import pytest
from colmap_files import PlaneScene
from refusals import refused_command

from kjax.cli import main, make_parser
from kjax.data.phototour import read_set_photographs, read_with_pairs
from kjax.data.reconstruction import TrackFilters
from kjax.data.selfsupervised import ViewConfig


@pytest.fixture
def scene(tmp_path):
    return PlaneScene().write(tmp_path / "scene")


@pytest.fixture
def photos(tmp_path, rng):
    folder = tmp_path / "photos"
    (folder / "deeper").mkdir(parents=True)
    for name in ("one.jpg", "deeper/two.png"):
        texture = cv2.GaussianBlur(rng.normal(size=(200, 260)), (0, 0), 3)
        texture = np.clip(128 + 40 * texture / texture.std(), 0, 255).astype(np.uint8)
        cv2.imwrite(str(folder / name), texture)
    return folder


def build(*arguments):
    return main(["build-patches", "--quiet", *map(str, arguments)])


def from_colmap(scene, out, *more):
    return build(
        "--colmap", scene / "sparse", "--database", scene / "database.db",
        "--images", scene / "photos", "--out", out, *more,
    )  # fmt: skip


def test_a_reconstruction_becomes_a_set(tmp_path, scene, capsys):
    assert from_colmap(scene, tmp_path / "set", "--pairs", 100) == 0
    output = capsys.readouterr()
    assert "120 patches of 40 points from 3 photographs, 100 matching and 100 other" in output.out
    assert output.err == ""
    patches = read_with_pairs(tmp_path / "set", cache_dir=tmp_path / "cache", progress=False)
    np.testing.assert_array_equal(patches.point_ids, np.repeat(np.arange(40), 3))
    assert len(patches.pairs.matching) == 200


def test_photographs_become_a_set(tmp_path, photos, capsys):
    out = tmp_path / "set"
    options = ["--photos", photos, "--views", 1, "--out", out]
    assert main(["build-patches", *map(str, options)]) == 0
    output = capsys.readouterr()
    assert "from 2 photographs" in output.out
    assert "2/2" in output.err  # the progress bar
    patches = read_with_pairs(out, cache_dir=tmp_path / "cache", progress=False)
    assert len(np.unique(patches.point_ids)) > 50
    assert (out / "images.txt").read_text() == "0 deeper/two.png\n1 one.jpg\n"
    assert read_set_photographs(out) == [
        (number, name, hashlib.sha256((photos / name).read_bytes()).hexdigest())
        for number, name in enumerate(("deeper/two.png", "one.jpg"))
    ]
    words = ("build-patches", "--photos", photos, "--out", tmp_path / "o", "--max-patches", 4)
    assert "too small for 2 photographs" in refused_command(capsys, *words)


def test_an_unreadable_photograph_is_named_and_the_exit_code_is_1(tmp_path, scene, photos, capsys):
    (photos / "one.jpg").write_bytes(b"damaged")
    assert build("--photos", photos, "--out", tmp_path / "set", "--views", 1) == 1
    assert capsys.readouterr().err == "left out, cannot be read: one.jpg\n"
    assert (tmp_path / "set" / "info.txt").exists()
    (scene / "photos" / "third.png").unlink()
    assert from_colmap(scene, tmp_path / "other") == 1
    output = capsys.readouterr()
    assert output.err == "left out, cannot be read: third.png\n"
    assert "80 patches of 40 points from 2 photographs" in output.out
    names = [(one.number, one.name) for one in read_set_photographs(tmp_path / "other")]
    assert names == [(0, "first.png"), (1, "in folder/second.png")]


def test_an_existing_set_is_kept_unless_it_is_to_be_overwritten(tmp_path, scene, capsys):
    out = tmp_path / "set"
    from_colmap(scene, out, "--max-patches", 30)
    before = (out / "info.txt").read_text()
    # It is refused before any work is done, and so before other errors.
    assert build("--photos", tmp_path / "nowhere", "--out", out) == 2
    assert "already exists: choose another folder, or add --overwrite" in capsys.readouterr().err
    assert (out / "info.txt").read_text() == before
    assert from_colmap(scene, out, "--overwrite") == 0
    assert len((out / "info.txt").read_text().splitlines()) == 120


def test_the_options_defaults_are_those_of_the_library():
    args = make_parser().parse_args(["build-patches", "--photos", "p", "--out", "o"])
    for settings in (TrackFilters(), ViewConfig()):
        for field in dataclasses.fields(settings):
            if hasattr(args, field.name):
                assert getattr(args, field.name) == getattr(settings, field.name), field.name
    assert {"max_octaves", "max_view_angle", "views", "max_points"} <= vars(args).keys()
