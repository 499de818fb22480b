"""Pairs that are cut from photographs on the device, and training on them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from programs import make_config, make_program
from refusals import assert_refused

from kjax.cli import main
from kjax.data import photo_points
from kjax.runs.config import AugmentConfig
from kjax.train.parallel import initial_state, make_resident_run
from kjax.train.run import run

STILL = AugmentConfig(rotation_noise=0.0, scale_noise=0.0, shift_noise=0.0, max_stretch=1.0)


@pytest.fixture(scope="module")
def photos(photo_folder):
    return jax.device_put(photo_points.read_photos(photo_folder, extent=8.0, progress=False))


@functools.partial(jax.jit, static_argnames=("config", "widths", "group", "size"))
def views(photos, key, indices, config=STILL, widths=(1,), group=1, size=16):
    options = {"size": size, "widths": widths, "group": group, "config": config}
    return photo_points.draw_views(photos, key, indices, **options)


def test_patches_are_sampled_from_the_octave_whose_pixels_are_as_large(rng):
    pixels = rng.integers(0, 256, (64, 48, 3), np.uint8)
    octaves = photo_points.make_octaves(pixels)
    photos = jax.device_put(photo_points.pack_photos([octaves], [np.zeros((1, 4))], ["a"]))
    assert photos.sizes.shape == (1, photo_points.OCTAVES, 2)
    cut = jax.jit(photo_points.cut_patch, static_argnums=(3, 4))

    def patch(x, y, side, width=1.0, size=8):
        frame = jnp.array([[side, 0.0, x], [0.0, side, y]])
        return np.asarray(cut(photos, jnp.int32(0), frame, width, size))

    own = pixels[10:18, 20:28].transpose(2, 0, 1)
    np.testing.assert_array_equal(patch(23.5, 13.5, 8.0), own)
    means = (own[..., 1:] + own[..., :-1].astype(float)) / 2
    np.testing.assert_allclose(patch(24.0, 13.5, 8.0)[:, :, :-1], means)
    halved = (pixels.reshape(32, 2, 24, 2, 3).astype(int).sum(axis=(1, 3)) + 2) // 4
    expected = halved[4:12, 8:16].transpose(2, 0, 1)
    for side, width in ((16.0, 1.0), (8.0, 2.0)):  # concentric patches are larger
        np.testing.assert_array_equal(patch(23.5, 15.5, side, width), expected)
    beyond = patch(-20.0, 13.5, 8.0)
    np.testing.assert_array_equal(beyond[0, :, 0], pixels[10:18, 0, 0])


def test_a_pair_depends_on_its_index_alone_and_a_group_shares_a_photograph(photos):
    key, options = jax.random.key(3), {"config": AugmentConfig(), "group": 4, "widths": (1, 4)}
    whole, places = views(photos, key, jnp.arange(12), **options)
    assert whole.shape == (12, 2, 2, 3, 16, 16)
    part, _ = views(photos, key, jnp.arange(8, 12), **options)
    np.testing.assert_array_equal(whole[8:], part)
    assert all(len(set(row)) == 1 for row in np.asarray(places.photo).reshape(3, 4).tolist())
    assert np.abs(whole[:, 0] - whole[:, 1]).max() > 20  # views differ


def test_still_views_are_equal_and_points_turned_to_their_orientation(photos):
    given = photos, jax.random.key(0), jnp.arange(6)
    configs = (dataclasses.replace(STILL, upright_share=one) for one in (0.0, 1.0))
    turned, upright = (views(*given, config) for config in configs)
    for pairs, places in (turned, upright):
        np.testing.assert_array_equal(pairs[:, 0], pairs[:, 1])
        assert (places.side >= 12).all()
    assert np.abs(np.asarray(turned[0] - upright[0])).max() > 20


def test_views_of_a_place_come_from_several_photographs(photo_folder, tmp_path):
    own = np.asarray(Image.open(photo_folder / "coffee.png"))
    (tmp_path / "cafe").mkdir()
    for name, pixels in {"day": own, "night": 255 - own}.items():
        Image.fromarray(pixels).save(tmp_path / "cafe" / f"{name}.png")
    photos = photo_points.read_photos(photo_folder, tmp_path, extent=8.0, progress=False)
    np.testing.assert_array_equal(photos.alike, [[0, 1], [1, 1], [2, 1], [3, 2], [3, 2]])
    pairs, places = views(jax.device_put(photos), jax.random.key(1), jnp.arange(80))
    same = np.abs(pairs[:, 0] - pairs[:, 1]).max(axis=(1, 2, 3, 4)) < 2
    inverted = np.abs(pairs[:, 0] + pairs[:, 1] - 255).max(axis=(1, 2, 3, 4)) < 2
    assert (same | inverted).all()
    assert 0.3 < inverted[np.asarray(places.photo) == 3].mean() < 0.7
    assert not inverted[np.asarray(places.photo) < 3].any()


def test_close_points_of_one_photograph_are_not_negatives():
    xy = jnp.array([[0.0, 0.0], [4.0, 0.0], [9.0, 0.0], [0.0, 0.0]])
    places = photo_points.Places(jnp.array([0, 0, 0, 1]), xy, jnp.array([10.0, 10.0, 6.0, 10.0]))
    expected = np.eye(4, dtype=bool)
    expected[0, 1] = expected[1, 0] = True  # 4 < 5; the third is 5 from the second
    np.testing.assert_array_equal(photo_points.overlapping(places), expected)


@pytest.mark.slow
def test_the_number_of_devices_does_not_matter(photos):
    states = []
    for devices in (1, 2):
        augment = AugmentConfig(appearance=1.0)
        program = make_program(devices=devices, augment=augment)
        state, metrics = make_resident_run(program)(initial_state(program), photos, 2)
        states.append((state.params, metrics["loss"]))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *states)


def test_pictures_of_pairs_and_refusals(photo_folder, tmp_path, capsys):
    make = functools.partial(make_config, "", "data.train=()", "data.test=()")
    names = [one.name for one in photo_points.photographs_in(photo_folder)]
    assert names == ["astronaut.png", "camera.png", "coffee.png"]
    own = [f"--config.data.photos={photo_folder}", "--config.progress=False"]
    small = ["--config.init=", "--config.model.patch_size=8", "--config.augment.appearance=1"]
    out = tmp_path / "pairs.png"
    assert main(["train", "--config", "photos", *own, *small, "--show", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    with Image.open(out) as picture:
        assert picture.size == (2 * 8 * 2 * 10, 2 * 8 * 10)
    assert main(["train", "--config", "photos", *own, "--show", "--out", "pairs"]) == 2
    assert ".png" in capsys.readouterr().err
    only_open = make(f"data.photos={photo_folder}", "data.only_open=True")
    assert_refused("astronaut", run, only_open, tmp_path / "open")
    assert_refused("replace data.train", make, "data.photos=photos", "data.train=('embedded',)")
    assert_refused("replace data.train", make, "data.photos=photos", "data.pipeline=tfdata")
    assert_refused("data.train needs a dataset", make)
    assert_refused("surroundings", make, "data.train=('embedded',)", "model.context=(1,4)")
