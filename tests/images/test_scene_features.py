"""Photographs of a reconstructed scene as views: a plane, and a camera that moves along it."""

import numpy as np
import pytest
from models import make_model
from PIL import Image

import kjax
from kjax.errors import InputError
from kjax.images.scenes import describe_scene
from kjax.images.views import steadiest

pytest.importorskip("cv2")
WIDTH, HEIGHT, FOCAL, STEP, COUNT = 160, 120, 100.0, 10, 4


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Each is a little further to the right."""
    folder = tmp_path_factory.mktemp("photos")
    coarse = np.random.default_rng(0).integers(0, 256, (32, 64), np.uint8)
    plane = Image.fromarray(coarse).resize((256, 128), Image.Resampling.BICUBIC)
    for number in range(COUNT):
        left = STEP * number
        plane.crop((left, 0, left + WIDTH, HEIGHT)).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def model(photos, tmp_path):
    """What COLMAP would find: the first photograph's keypoints, in all that show them."""
    pixels = np.asarray(Image.open(photos / "0.png"))
    xy = np.unique(steadiest(pixels, 60, 0.02).xy, axis=0) + 0.5
    x, y = xy.T
    camera = f"1 SIMPLE_RADIAL {WIDTH} {HEIGHT} {FOCAL} {WIDTH / 2} {HEIGHT / 2} 0\n"
    (tmp_path / "cameras.txt").write_text(camera)
    points = [
        f"{i + 1} {(x[i] - WIDTH / 2) / FOCAL} {(y[i] - HEIGHT / 2) / FOCAL} 1 0 0 0 0.1\n"
        for i in range(len(xy))
    ]
    (tmp_path / "points3D.txt").write_text("".join(points))
    images = []
    for number in range(COUNT):
        shift = STEP * number
        seen = np.flatnonzero(x - shift > 0)
        keypoints = " ".join(f"{x[i] - shift} {y[i]} {i + 1}" for i in seen)
        pose = f"1 0 0 0 {-shift / FOCAL} 0 0"
        images.append(f"{number + 1} {pose} 1 {number}.png\n{keypoints}\n")
    (tmp_path / "images.txt").write_text("".join(images))
    return tmp_path


def describe(model, photos, **options):
    describer = kjax.Describer(*make_model("xy", s=1, patch_size=16), name="x", sha256="y")
    settings = {"views": 2, "max_keypoints": 60, "max_side": WIDTH, "progress": False} | options
    return describe_scene(model, photos, describer, **settings)


@pytest.mark.parametrize("max_side", [WIDTH, WIDTH * 3 // 4])
def test_keypoints_see_what_colmaps_do(model, photos, max_side, monkeypatch):
    monkeypatch.setattr("kjax.images.scenes.LEAST_SHARED", 10)
    views, unreadable = describe(model, photos, max_side=max_side)
    assert not unreadable
    assert views.counts.shape == (COUNT, 3)
    assert [one.name for one in views.photographs] == [f"{i}.png" for i in range(COUNT)]
    known = np.isfinite(views.places).all(axis=-1)
    there = np.arange(60) < views.counts[..., None]
    assert known[there].mean() > 0.3
    # Every camera puts what its own keypoints see to where they are, and so do the others'.
    zoom = max_side / WIDTH
    for group in range(COUNT):
        for view in range(3):
            seen = known[group, view] & there[group, view]
            places = views.places[group, view, seen]
            mapped = places @ views.cameras[group, view, :, :3].T
            mapped = mapped + views.cameras[group, view, :, 3]
            xy = mapped[:, :2] / mapped[:, 2:]
            apart = np.linalg.norm(xy - views.xy[group, view, seen], axis=1)
            assert np.median(apart) < 0.5 * zoom


def test_scenes_that_do_not_do(model, photos):
    with pytest.raises(InputError, match="shares 30 points with 5 others: give fewer --views"):
        describe(model, photos, views=5)
    (model / "cameras.txt").write_text(f"1 PINHOLE {WIDTH} {HEIGHT} 100 100 80 60\n")
    with pytest.raises(InputError, match="map with one of these"):
        describe(model, photos)
