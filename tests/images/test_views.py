"""Features of views: random homographies, pictures for other extractors, reconstructed scenes."""

import dataclasses
import json

import cv2
import numpy as np
import pytest
import skimage.data
from colmap_files import write_binary
from models import CHANNELS, make_model
from PIL import Image
from refusals import assert_refused, refused_command

import kjax
from kjax.cli import main
from kjax.data.cutting.keypoints import STEADY, detect_in_grey
from kjax.data.cutting.photographs import read_grey
from kjax.data.selfsupervised import ViewConfig
from kjax.images.exchange.hloc import FeatureWriter
from kjax.images.features import Features
from kjax.images.geometry import project
from kjax.images.sift import ROOT_SIFT
from kjax.images.views import VIEWS, describe_scene, describe_views, make_views
from kjax.matcher.view_set import read_view_set
from kjax.weights.info import Provenance

pytest.importorskip("h5py")
FILES = [f"{photograph:05d}/{view}.png" for photograph in (0, 2) for view in (0, 1)]
WIDTH, HEIGHT, FOCAL, STEP, COUNT = 160, 120, 100.0, 10, 4


def make_describer(**options):
    model = make_model("xy", patch_size=16, channels=CHANNELS)
    return kjax.Describer(*model, name="x", sha256="y", **options)


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        noise = rng.normal(0, 1, (150, 200)).astype(np.float32)
        grey = sum(cv2.GaussianBlur(noise, (0, 0), sigma) * sigma for sigma in (1.5, 3, 6))
        scaled = np.interp(grey, (grey.min(), grey.max()), (0, 255)).astype(np.uint8)
        Image.fromarray(scaled).save(folder / name)
    return folder


def test_views_are_homographies_of_a_photograph(blobs, tmp_path):
    describer = make_describer()
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no photograph")
    paths = [blobs / "a.png", broken, blobs / "b.png"]
    config = ViewConfig(views=2, max_rotation_degrees=180.0, max_noise=0.0, max_blur=0.0)
    options = {"config": config, "max_keypoints": 100, "seed": 0, "progress": False}
    views, unreadable = describe_views(paths, ["a", "broken", "b"], describer, **options)
    assert unreadable == ["broken"]
    assert [one.name for one in views.photographs] == ["a", "b"]
    assert views.described_with == Provenance("x", "y", 128)
    assert views.counts.min() > 20
    assert views.counts.shape == (2, 3)
    np.testing.assert_array_equal(views.cameras[0, 0], np.eye(3, 4))
    np.testing.assert_allclose(views.turns[:, 0], 0, atol=1e-6)
    # A view's keypoints lie, mostly, where the photograph's are; and descriptors agree there.
    for photograph in range(2):
        own = views.xy[photograph, 0, : views.counts[photograph, 0]]
        for view in (1, 2):
            count = views.counts[photograph, view]
            mapped = project(views.cameras[photograph, view, :, :3], own)
            apart = np.linalg.norm(mapped[:, None] - views.xy[photograph, view, :count], axis=-1)
            assert (apart.min(axis=1) < 2).mean() > 0.4
            assert not views.descriptors[photograph, view, count:].any()
            # What keypoints see is where the photograph has it; angles turn with the view.
            seen = views.places[photograph, view, :count, :2]
            apart = np.linalg.norm(seen[:, None] - own, axis=-1)
            near = apart.min(axis=1) < 1
            turned = views.angles[photograph, view, :count] - views.turns[photograph, view]
            upright = views.angles[photograph, 0, : len(own)][apart.argmin(axis=1)]
            assert near.mean() > 0.4
            assert np.median(np.cos(turned - upright)[near]) > 0.8
    norms = np.linalg.norm(views.descriptors[0, 0, :20].astype(np.float32), axis=1)
    np.testing.assert_allclose(norms, 1, atol=2e-3)


def test_upright_views_are_not_rotated_in_training(blobs):
    """Angles of rotated views would tell how a photograph is turned, which upright ones do not."""
    describer = make_describer(upright=True)
    options = {"config": ViewConfig(views=1), "max_keypoints": 50, "seed": 0, "progress": False}
    views, _ = describe_views([blobs / "a.png"], ["a"], describer, **options)
    assert np.isnan(views.turns).all()
    assert not views.angles.any()


@pytest.mark.parametrize("weights", ["hardnet", "rootsift"])
def test_build_views_writes_a_file(blobs, tmp_path, capsys, weights):
    out = tmp_path / "views.npz"
    words = ["build-views", str(blobs), "--out", str(out), "--views", "1", "--quiet"]
    assert main([*words, "--weights", weights, "--keypoints", "30", "--max-side", "160"]) == 0
    assert "2 groups of 2 views of 2 photographs" in capsys.readouterr().out
    views = read_view_set(out)
    assert (views.described_with == ROOT_SIFT) == (weights == "rootsift")
    assert views.described_with.sha256 in ("", kjax.weights.shipped.card("hardnet").sha256)
    assert views.xy.shape == (2, 2, 30, 2)


# Pictures for other extractors


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
    listed = json.loads((pictures / "views.json").read_text())["photographs"]
    names = [f"{photographs.name}/{name}" for name in ("a.png", "c.png")]
    assert [one["name"] for one in listed] == names
    assert [view["file"] for one in listed for view in one["views"]] == FILES
    config = dataclasses.replace(VIEWS, views=1, max_rotation_degrees=30.0)
    views = make_views(photographs / "a.png", names[0], config=config, seed=0)
    for view, about in zip(views, listed[0]["views"], strict=True):
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
    mapped = project(views.cameras[0, 1, :, :3], own)
    apart = np.linalg.norm(mapped[:, None] - other, axis=-1)
    assert (apart.min(axis=1) < 2).mean() > 0.2
    norms = np.linalg.norm(views.descriptors[0, 0, :20].astype(np.float32), axis=1)
    np.testing.assert_allclose(norms, 1, atol=2e-3)


def test_features_that_do_not_fit_and_damaged_lists(pictures, photographs, tmp_path, capsys):
    file, out = extract(pictures, tmp_path / "sift.h5", change=(10, 10)), tmp_path / "views.npz"

    def refusal(folder):
        words = ("--features", file, "--out", out, "--quiet")
        return refused_command(capsys, "build-views", folder, *words)

    assert "extract from the pictures as they are" in refusal(pictures)
    assert "has no views.json" in refusal(photographs)
    for spoilt in ("{}", "no JSON", '{"format": "x", "photographs": []}'):
        (tmp_path / "views.json").write_text(spoilt)
        assert "is damaged or not a list of views" in refusal(tmp_path)
    assert not out.exists()


# Reconstructed scenes


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
    found = detect_in_grey(pixels, detector=STEADY, max_keypoints=60, contrast=0.02)
    xy = np.unique(found.xy, axis=0) + 0.5
    write_binary(
        tmp_path,
        {1: (2, WIDTH, HEIGHT, (FOCAL, WIDTH / 2, HEIGHT / 2, 0.0))},
        {
            number + 1: (
                (1, 0, 0, 0),
                (-STEP * number / FOCAL, 0, 0),
                1,
                f"{number}.png",
                [(x - STEP * number, y, i + 1) for i, (x, y) in enumerate(xy) if x > STEP * number],
            )
            for number in range(COUNT)
        },
        {
            i + 1: (((x - WIDTH / 2) / FOCAL, (y - HEIGHT / 2) / FOCAL, 1), 0.1, [])
            for i, (x, y) in enumerate(xy)
        },
    )
    return tmp_path


def describe(model, photos, **options):
    describer = make_describer()
    settings = {"views": 2, "max_keypoints": 60, "max_side": WIDTH, "progress": False} | options
    return describe_scene(model, photos, describer, **settings)


@pytest.mark.parametrize("max_side", [WIDTH, WIDTH * 3 // 4])
def test_keypoints_see_what_colmaps_do(model, photos, max_side, monkeypatch):
    monkeypatch.setattr("kjax.images.views.LEAST_SHARED", 10)
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


def test_unusable_scenes(model, photos):
    assert_refused("shares 30 points with 5 others: give", describe, model, photos, views=5)
    cameras = (model / "cameras.bin").read_bytes()
    (model / "cameras.bin").write_bytes(cameras[:-8] + np.float64(100).tobytes())
    assert_refused("distorts 0.png by 100, which no lens does", describe, model, photos)
    (model / "cameras.bin").write_bytes(
        cameras[:12] + np.int32(5).tobytes() + cameras[16:] + bytes(32)
    )
    assert_refused("map with one of these", describe, model, photos)
