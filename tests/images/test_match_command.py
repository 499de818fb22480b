"""`kjax match`: words are checked before any work, and it says what it found."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from models import make_model
from PIL import ExifTags, Image

import kjax
from kjax.cli import main
from kjax.data.cutting.keypoints import detect_in_grey
from kjax.data.cutting.photographs import read_photograph
from kjax.images.describer import Describer
from kjax.images.draw import GAP, as_picture
from kjax.images.exchange.hloc import read_features, read_matches
from kjax.images.extract import open_image
from kjax.weights.files import save_variables

pytest.importorskip("cv2")


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_variables("w.npz", make_model("hardnet", patch_size=8)[1])
    coarse = np.random.default_rng(0).integers(0, 256, (24, 32), np.uint8)
    photograph = Image.fromarray(coarse).resize((128, 96), Image.Resampling.BICUBIC)
    photograph.save("a photo.png")
    Image.new("L", (60, 60), 9).save("blank.png")
    (tmp_path / "folder").mkdir()
    return tmp_path


def match(*words, weights="w.npz"):
    return main(["match", *words, "--weights", weights])


@pytest.fixture
def shifted(inside):
    """The photograph without its first columns, in a folder of its own."""
    photograph = Image.open("a photo.png")
    photograph.crop((10, 0, 128, 96)).save("folder/b.png")
    return "folder/b.png"


@pytest.mark.parametrize(
    ("weights", "words", "form", "options"),
    [
        ("tiny", [], None, {}),
        ("w.npz", ["--quiet", "--matcher=mutual"], None, {"method": "mutual"}),
        ("tiny", ["--quantize=binary", "--ratio=0.8"], "binary", {"ratio": 0.8}),
    ],
)
def test_python_matches_as_the_command_does(shifted, weights, words, form, options, capsys):
    assert match("a photo.png", shifted, "--save=m.npz", *words, weights=weights) == 0
    assert ("describing the second" in capsys.readouterr().err) == ("--quiet" not in words)
    describer = kjax.load(weights, dtype="auto")
    first, second = (describer.describe_image(path) for path in ("a photo.png", shifted))
    if form:
        first, second = first.quantized(form), second.quantized(form)
    matches = kjax.match(first, second, **options)
    with np.load("m.npz") as saved:
        np.testing.assert_array_equal(matches.indices, saved["indices"])
        np.testing.assert_array_equal(matches.ratios, saved["ratios"])
    assert len(matches) > 20


@pytest.mark.parametrize("geometry", ["homography", "fundamental", "auto"])
def test_saved_for_numpy(shifted, geometry, capsys):
    assert match("a photo.png", shifted, "--save", "m.npz", "--geometry", geometry) == 0
    said = capsys.readouterr().out
    assert "wrote matches.png and m.npz" in said
    with np.load("m.npz") as saved:
        assert saved["names"].tolist() == ["a photo.png", "folder/b.png"]
        # A shift is a homography.
        geometry = "homography" if geometry == "auto" else geometry
        assert str(saved["geometry_is"]) == geometry
        assert saved["image_size1"].tolist() == [118, 96]
        assert f"{len(saved['keypoints0'])} and {len(saved['keypoints1'])} keypoints" in said
        inliers = saved["inliers"]
        named = geometry.replace("fundamental", "epipolar geometry")
        assert f"{inliers.sum()} of {len(inliers)} matches agree with one {named}\n" in said
        np.testing.assert_allclose(saved["scores"], 1 - saved["ratios"])
        first, second = (saved[f"keypoints{side}"][saved["indices"][:, side]] for side in (0, 1))
        np.testing.assert_allclose((first - second)[inliers], [[10, 0]] * inliers.sum(), atol=1)
        a, b = (np.column_stack([xy, np.ones(len(xy))])[inliers] for xy in (first, second))
        if geometry == "homography":
            mapped = a @ saved["geometry"].T
            np.testing.assert_allclose(mapped[:, :2] / mapped[:, 2:], b[:, :2], atol=3)
        else:
            lines = a @ saved["geometry"].T
            away = (b * lines).sum(axis=1) / np.linalg.norm(lines[:, :2], axis=1)
            assert np.abs(away).max() < 3


def saved_matches(*words):
    """Return the positions of matches in both photographs."""
    assert match("a photo.png", "folder/b.png", "--save=m.npz", *words) == 0
    with np.load("m.npz") as saved:
        return [saved[f"keypoints{side}"][saved["indices"][:, side]] for side in (0, 1)]


def test_aligned_keypoints_are_saved_and_nearer(shifted):
    pairs = saved_matches(), saved_matches("--align")
    off, aligned = (np.linalg.norm(one - other - [10, 0], axis=1) for one, other in pairs)
    moved = (off < 1) & (aligned != off)
    assert moved.any()
    assert aligned[moved].mean() < off[moved].mean()


def test_a_place_is_matched_once_unless_asked(shifted):
    for words in ((), ("--repeated",)):
        places = saved_matches("--detector=SIFT", *words)[0]
        assert (len(places) > len(np.unique(places, axis=0))) == bool(words)


def test_saved_for_hloc(shifted, capsys):
    pytest.importorskip("h5py")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.open(shifted).transpose(Image.Transpose.ROTATE_90).save(shifted, exif=exif)
    assert match("a photo.png", shifted, "--save", "m.h5") == 0
    assert read_photograph("matches.png").shape == (96, 128 + GAP + 118, 3)  # turned upright
    assert match(shifted, "blank.png", "--save", "m.h5") == 1
    assert match("a photo.png", shifted, "--save", "m.npz") == 0
    indices, scores = read_matches("m.h5", "a photo.png", "folder/b.png")
    with np.load("m.npz") as saved:
        np.testing.assert_array_equal(indices, saved["indices"])
        np.testing.assert_allclose(scores, saved["scores"], atol=1e-3)
    assert len(read_matches("m.h5", "folder/b.png", "blank.png")[0]) == 0
    # The same names, and the same keypoints, as these.
    photographs = ("a photo.png", shifted, "--weights", "w.npz", "--keypoints", "4000")
    assert main(["describe", *photographs, "--out", "f.h5"]) == 0
    with np.load("m.npz") as saved:
        for name, column in (("a photo.png", "keypoints0"), ("folder/b.png", "keypoints1")):
            np.testing.assert_array_equal(read_features("f.h5", name).xy, saved[column])


@pytest.mark.parametrize(
    ("first", "out", "said"),
    [
        ("a photo.png", "m.html", "no matches\nwrote m.html\n"),
        ("blank.png", "m.jpg", "0 and 0 keypoints\nno matches: none is drawn\n"),
    ],
)
def test_no_matches_are_said_and_the_exit_code_tells(capsys, first, out, said):
    assert match(first, "blank.png", "--out", out) == 1
    assert said in capsys.readouterr().out
    if out == "m.html":  # it holds what no geometry explains
        page = Path(out).read_text(encoding="utf-8")
        assert "<title>Matches of a photo.png and blank.png</title>" in page
        assert page.count("data:image/jpeg") == 2
    else:
        with Image.open(out) as picture:
            assert picture.format == "JPEG"


def test_unrelated_photographs_have_no_geometry(capsys):
    noise = np.random.default_rng(1).integers(0, 256, (24, 32), np.uint8)
    Image.fromarray(noise).resize((128, 96), Image.Resampling.BICUBIC).save("noise.png")
    assert match("a photo.png", "noise.png", "--matcher=mutual", "--save=m.npz") == 1
    assert "matches, but no geometry explains them: none is drawn\n" in capsys.readouterr().out
    with np.load("m.npz") as saved:
        assert "geometry" not in saved
        assert not saved["inliers"].any()


@pytest.mark.parametrize(
    ("words", "described"),
    [(["--no-aside"], 4), (["--upright"], 2), (["--no-upright"], 2), (["--save=m.h5"], 2)],
)
def test_upright_keypoints_where_orientations_fail(shifted, words, described, capsys):
    def disoriented(grey, upright, **options):
        found = detect_in_grey(grey, upright=upright, **options)
        turn = 90 * (grey.shape[1] < 128) * (not upright)  # of the second photograph's
        return found._replace(angles=found.angles + np.float32(turn))

    real = Describer.describe_grey
    with (
        mock.patch("kjax.data.cutting.keypoints.detect_in_grey", disoriented),
        mock.patch.object(Describer, "describe_grey", autospec=True, side_effect=real) as calls,
    ):
        upright = words in (["--no-aside"], ["--upright"])
        assert match("a photo.png", shifted, *words) == (not upright)
    said = "homography (upright keypoints)\n" if upright else "but no geometry explains them"
    assert said in capsys.readouterr().out
    assert calls.call_count == described


def test_surroundings_where_the_appearance_changed(capsys):
    photo = Image.open("a photo.png")
    photo.point(lambda grey: 255 * (1 - grey / 255) ** 2).save("negative.png")
    words = ("a photo.png", "negative.png", "--no-aside")
    assert match(*words, "--no-upright", weights="fast") == 1
    assert match(*words, weights="fast") == 0
    assert "homography (upright keypoints with their surroundings)\n" in capsys.readouterr().out


@pytest.mark.parametrize("swapped", [False, True])
def test_tilted_views_where_a_photograph_is_from_far_aside(swapped, rng, capsys):
    size, squeezed = (258, 194), (65, 194)
    noise = [rng.normal(size=(size[1] >> k, size[0] >> k)).astype("f4") for k in range(1, 5)]
    smooth = [Image.fromarray(one).resize(size, Image.Resampling.BICUBIC) for one in noise]
    texture = sum(1.5**k * np.asarray(one) for k, one in enumerate(smooth))
    front = Image.fromarray((128 + 12 * texture).clip(0, 255).astype(np.uint8))
    front.save("front.png")
    front.resize(squeezed, Image.Resampling.BOX).save("aside.png")
    names, factor = ["front.png", "aside.png"], np.array([squeezed[0] / size[0], 1])
    if swapped:
        names, factor = names[::-1], 1 / factor
    words = (*names, "--keypoints=500", "--save=m.npz")
    assert match(*words, "--no-aside", weights="tiny") == 1
    assert match(*words, "--align", weights="tiny") == 0
    assert "agree with one homography (seen from aside)\n" in capsys.readouterr().out
    found = kjax.match_photos(*names, kjax.load("tiny", max_keypoints=500), align=True)
    assert found.way == "aside"
    with np.load("m.npz") as saved:
        inliers = saved["inliers"]
        first, second = (saved[f"keypoints{side}"][saved["indices"][:, side]] for side in (0, 1))
        np.testing.assert_array_equal(found.second.xy, saved["keypoints1"])
        assert (saved["angles0"] == -1).all()
        sizes = [saved[f"scales{side}"][saved["indices"][inliers, side]] for side in (0, 1)]
    assert inliers.sum() > 50
    off = ((first + 0.5) * factor - 0.5 - second)[inliers]
    assert np.abs(off.mean(axis=0)).max() < 0.2
    assert np.median(np.linalg.norm(off, axis=1)) < 1
    assert np.median(sizes[1] / sizes[0]) == pytest.approx(np.sqrt(factor.prod()), rel=0.05)
    assert kjax.plot_matches(*found[:3]).size[0] > 300


def test_pictures_of_every_depth_look_alike_and_palettes_have_colours(tmp_path, rng):
    grey = np.asarray(Image.open("a photo.png"))
    deep, floating = grey.astype(np.uint16) * 257, (grey / 255).astype(np.float32)
    header = b"P5 %d %d 65535\n" % grey.shape[::-1]
    (tmp_path / "deep.pgm").write_bytes(header + deep.astype(">u2").tobytes())
    Image.fromarray(floating).save("float.tif")
    for pixels in (deep, floating, "deep.pgm", "float.tif"):
        np.testing.assert_array_equal(as_picture("a", pixels).convert("L"), grey)
    colour = rng.integers(0, 256, (20, 30, 3), np.uint8)
    palette = Image.fromarray(colour).convert("P", palette=Image.Palette.ADAPTIVE)
    pixels, order = open_image(palette, "bgr")
    assert order == "rgb"
    np.testing.assert_array_equal(pixels, np.asarray(palette.convert("RGB")))
