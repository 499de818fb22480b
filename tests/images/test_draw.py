import dataclasses

import numpy as np
import pytest
from models import CHANNELS, make_model
from PIL import ExifTags, Image, ImageOps
from refusals import assert_refused

import kjax
from kjax.images.draw import BACKGROUND, GAP, draw_matches, save_matches, turned_upright
from kjax.images.features import Features


def points(*rows):
    return np.array(rows, np.float32).reshape(-1, 2)


def test_photographs_of_other_sizes_and_kinds_lie_side_by_side():
    left = np.full((40, 60), 90, np.uint8)
    right = np.full((70, 30, 3), (10, 20, 200), np.uint8)
    picture = np.asarray(draw_matches(left, right, points(), points()))
    assert picture.shape == (70, 60 + GAP + 30, 3)
    assert (picture[:40, :60] == 90).all()
    assert (picture[:, 60 + GAP :] == (10, 20, 200)).all()
    assert (picture[40:, :60] == BACKGROUND).all()
    big, small = np.zeros((300, 600), np.uint8), np.zeros((100, 200), np.uint8)
    picture = draw_matches(big, small, points(), points(), max_width=400 + GAP)
    assert picture.size == (400 + GAP, 150)
    empty = np.ones((0, 5), np.uint8)
    assert_refused("image_b is empty", draw_matches, big, empty, points(), points())


def test_a_line_runs_from_pixel_centre_to_pixel_centre():
    black = np.zeros((41, 60), np.uint8)
    picture = np.asarray(draw_matches(black, black, points((10, 20)), points((50, 20))))
    bright = picture.max(axis=2).astype(int)
    bright[:, 60 : 60 + GAP] = 0
    columns = np.flatnonzero(bright.any(axis=0))
    assert abs(columns[0] - 8) <= 1
    assert abs(columns[-1] - (60 + GAP + 52)) <= 1
    # Symmetric about its row: neither half a pixel up nor down.
    np.testing.assert_array_equal(bright[:41], bright[40::-1])
    assert bright[20, 30] > 100
    assert bright[18, 30] == 0


@pytest.mark.parametrize("turn", range(1, 10))
def test_files_are_drawn_upright(turn, tmp_path):
    pixels, exif = np.zeros((30, 50), np.uint8), Image.Exif()
    pixels[7, 11], exif[ExifTags.Base.Orientation] = 255, turn
    Image.fromarray(pixels).save(path := tmp_path / "a.png", exif=exif)
    xy, angles = points((11, 7), (11 + np.sqrt(3) / 2, 7.5)), np.full(2, 30, np.float32)
    stored = Features(xy, xy, (50, 30), angles=angles)
    image, found = turned_upright(path, pixels, stored)
    with Image.open(path) as picture:
        np.testing.assert_array_equal(image, ImageOps.exif_transpose(picture))
    np.testing.assert_array_equal(found.xy[0], np.argwhere(image)[0, ::-1])
    x, y = found.xy[1] - found.xy[0]
    np.testing.assert_allclose(found.angles, np.rad2deg(np.arctan2(y, x)) % 360, atol=1e-3)
    drawn = kjax.plot_matches(stored, stored, kjax.match(stored, stored), images=(path, path))
    assert drawn.size == (2 * found.image_size[0] + GAP, found.image_size[1])


def test_lines_are_smooth_and_colours_follow_the_position():
    black = np.zeros((100, 100), np.uint8)
    xy = points((5, 5), (95, 40)), points((60, 60), (90, 90))
    picture = np.asarray(draw_matches(black, black, *xy))
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    first, second = picture[5, 5].astype(int), picture[40, 95].astype(int)
    assert first[0] > first[2] + 50
    assert second[2] > second[1] + 50


def test_many_matches_are_thinned_out():
    black = np.zeros((400, 50), np.uint8)
    xy = points(*((10, 4 * y) for y in range(100)))
    few = np.asarray(draw_matches(black, black, xy, xy, max_lines=5, caption=False))
    rows = np.flatnonzero(few[:, 30].any(axis=1))
    assert (np.diff(rows) > 1).sum() == 4
    said = np.asarray(draw_matches(black, black, xy, xy, max_lines=5)) != few
    assert said[370:].any()
    assert not said[:370].any()


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_matches_are_plotted_in_one_call(order, tmp_path, rng):
    describer = kjax.Describer(*make_model("xy", patch_size=16, channels=CHANNELS))
    image, path = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8), tmp_path / "a.png"
    xy = points((9, 9), (20, 12))
    save_matches(path, image, image, points(), points())
    both = np.asarray(Image.open(path))
    form = both if order == "rgb" else both[..., ::-1]
    a, b = (describer.describe_image(one, xy, order=order) for one in (form, path))
    matches, expected = kjax.match(a, b, method="mutual"), draw_matches(both, both, xy, xy)
    np.testing.assert_array_equal(kjax.plot_matches(a, b, matches), expected)
    plain = dataclasses.replace(a, image=None)
    assert_refused("no image: give images=", kjax.plot_matches, plain, b, matches)
    plotted = kjax.plot_matches(plain, b, matches, images=((both / 255).astype(np.float32), path))
    np.testing.assert_array_equal(plotted, expected)
