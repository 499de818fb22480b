"""Views of made-up worlds: what keypoints see, and what hides it."""

import dataclasses
import functools
import itertools

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import skimage.data
from models import make_model
from PIL import Image
from scipy.spatial import cKDTree

import kjax
from kjax.cli import main
from kjax.data.selfsupervised import ViewConfig
from kjax.images.layered_worlds import layered_views
from kjax.images.view_features import VIEWS, describe_views, make_worlds
from kjax.matcher.truth import FAR, NONE, Seen, find_truth

STEEP = 8
"""Grey values a pixel."""
PLAIN = ViewConfig(
    views=2,
    max_rotation_degrees=180.0,
    max_gamma=1.0,
    max_contrast=1.0,
    max_brightness=0.0,
    max_blur=0.0,
    max_noise=0.0,
)
"""All views in one light."""


def make_world(seed, axis=0):
    """Zigzags along one axis: grey values tell, to a fraction of a pixel, what is seen."""
    along = np.indices((240, 320))[axis]
    zigzag = (32 + STEEP * np.abs((along + 24) % 48 - 24)).astype(np.uint8)
    return layered_views(np.random.default_rng(seed), zigzag, [zigzag] * 3, config=PLAIN)


def places_of(view, xy, diameter=4.0):
    return view.geometry(xy, np.full(len(xy), diameter))["places"]


def seen_by(view, places):
    """Where the camera that is stored with the view has places, and whether that is within it."""
    camera = view.geometry(np.zeros((1, 2)), np.ones(1))["cameras"]
    mapped = places @ camera[:, :3].T + camera[:, 3]
    xy = mapped[:, :2] / mapped[:, 2:]
    return xy, ((xy >= 0) & (xy <= last(view))).all(axis=1)


def last(view):
    return np.array(view.pixels.shape[::-1]) - 1


def every(view, step):
    """Pixels that are so far from each other."""
    width, height = last(view) + 1
    grid = np.meshgrid(np.arange(0.0, width, step), np.arange(0.0, height, step))
    return np.stack(grid, axis=-1).reshape(-1, 2)


def at(values, xy):
    x, y = np.rint(xy).astype(int).T
    return values[y, x]


def between(pixels, xy):
    return cv2.remap(pixels.astype("f4"), xy.astype("f4")[None], None, cv2.INTER_LINEAR)[0]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_place_looks_the_same_in_all_views(axis):
    apart, layers = [], []
    for seed in range(3):
        for own, other in itertools.permutations(make_world(seed, axis), 2):
            xy = every(own, 7)
            there, shown = seen_by(other, places_of(own, xy))
            xy, there = xy[shown], there[shown]
            known = np.isfinite(places_of(other, there)).all(axis=1)
            same = known & (at(own.layers, xy) == at(other.layers, there))
            xy, there = xy[same], there[same]
            apart.append((between(own.pixels, xy) - between(other.pixels, there)) / STEEP)
            layers.append(at(own.layers, xy))
    apart, layers = np.concatenate(apart), np.concatenate(layers)
    for layer in range(4):
        here = apart[layers == layer]
        assert len(here) > 50
        # At the turns of the zigzag, views differ.
        assert np.quantile(np.abs(here), 0.9) <= 0.1
        assert abs(np.median(here)) <= 0.02


def test_what_is_nearest_is_seen():
    layers: set[int] = set()
    for view in itertools.chain.from_iterable(map(make_world, range(4))):
        # Planes do not cross: that would show in few pixels.
        for farther, nearer in itertools.combinations(view.planes, 2):
            assert farther.before(nearer.corners).min() > 0
        xy = every(view, 3)
        rays = np.column_stack([xy, np.ones(len(xy))])
        depths = []
        for plane in view.planes:
            to_view = view.camera.matrix @ plane.to_world
            to_view[:, 2] -= view.camera.matrix @ view.camera.position
            # Homogeneous pixels of the texture; depths are the inverses of their last numbers.
            homogeneous = rays @ np.linalg.inv(to_view).T
            texture_xy = (homogeneous[:, :2] / homogeneous[:, 2:]).astype("f4")
            mask = cv2.remap(plane.mask, texture_xy[None], None, cv2.INTER_LINEAR)[0]
            depths.append(np.where(mask > 127, 1 / homogeneous[:, 2], np.inf))
        known = np.isfinite(places_of(view, xy)).all(axis=1)
        nearest = np.argmin(depths, axis=0)
        layers |= set(nearest[known])
        np.testing.assert_array_equal(at(view.layers, xy)[known], nearest[known])
    assert layers == {0, 1, 2, 3}


def test_what_is_hidden_has_no_match():
    room, hidden_ones = 600, 0
    find = jax.jit(functools.partial(find_truth, by_lines=True))
    for seed in range(4):
        own, other, _ = make_world(seed)
        xy = every(own, 14)
        places = places_of(own, xy)
        there, shown = seen_by(other, places)
        xy, places, there = xy[shown], places[shown], there[shown]
        others = places_of(other, there)
        known = np.isfinite(others).all(axis=1)
        hidden = known & (at(own.layers, xy) != at(other.layers, there))
        visible = known & ~hidden

        def filled(*rows):
            padded = [np.pad(one, ((0, room - len(one)), (0, 0))) for one in rows]
            return jnp.asarray(np.stack(padded)[None], jnp.float32)

        cameras = [view.geometry(xy, np.ones(len(xy)))["cameras"] for view in (own, other)]
        seen = Seen(filled(xy, there), filled(places, others), jnp.asarray(np.stack(cameras)[None]))
        counts = jnp.full((1, 2), len(xy), jnp.int32)
        truth = find(seen, jnp.ones((1, 2, room, 1)), counts)
        partners, alone = (np.asarray(one)[0] for one in (truth.partners, truth.alone[:, 0]))
        partners, alone = partners[: len(xy)], alone[: len(xy)]
        np.testing.assert_array_equal(partners[visible], np.flatnonzero(visible))
        assert not alone[~hidden].any()
        assert (partners[~visible] == NONE).all()
        # What hides it is elsewhere in the view that shows it.
        back, _ = seen_by(own, others[hidden])
        assert (np.linalg.norm(back - xy[hidden], axis=1) > FAR).all()
        hidden_ones += hidden.sum()
        # Where a place is not known, the lines do not forbid what is right.
        assert not np.diag(np.asarray(truth.off_line)[0]).any()
    assert hidden_ones > 50


@pytest.mark.parametrize("diameter", [2.0, 30.0])
def test_places_near_other_layers_are_not_known(diameter):
    for view in make_world(0)[:2]:
        xy = every(view, 1)
        layers = view.layers.ravel()
        known = np.isfinite(places_of(view, xy, diameter)).all(axis=1)
        radius = max(diameter / 2, FAR)
        for layer in np.unique(layers):
            own = layers == layer
            nearest, _ = cKDTree(xy[~own]).query(xy[own])
            clear = (nearest > radius) & (layer >= 0)
            np.testing.assert_array_equal(known[own], clear)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    Image.fromarray(skimage.data.camera()[100:300, 100:400]).save(folder / "a.png")
    Image.fromarray(skimage.data.coins()[:200, :300]).save(folder / "b.png")
    return [folder / "a.png", folder / "b.png"]


def test_chance_is_of_seeds_and_names_alone(photographs):
    def pixels(names=("a", "b"), seed=0):
        named = dict(zip(photographs, names, strict=True))
        config = dataclasses.replace(VIEWS, views=1)
        views = make_worlds(photographs[0], named, layers=2, config=config, seed=seed)
        return [view.pixels for view in views]

    def alike(first, second):
        return all(map(np.array_equal, first, second))

    assert alike(pixels(), pixels())
    assert not alike(pixels(), pixels(seed=1))
    assert not alike(pixels(), pixels(names=("c", "b")))


def test_sets_of_worlds(photographs):
    describer = kjax.Describer(*make_model("xy", s=1, patch_size=16), name="x", sha256="y")
    config = dataclasses.replace(VIEWS, views=3)
    views, unreadable = describe_views(
        photographs,
        ["a", "b"],
        describer,
        config=config,
        max_keypoints=400,
        seed=0,
        layers=2,
        progress=False,
    )
    assert not unreadable
    assert views.counts.shape == (2, 4)
    assert views.has_unknown_places
    agreeing = []
    for group in range(2):
        rows = []
        for view in range(4):
            count = views.counts[group, view]
            known = np.isfinite(views.places[group, view, :count]).all(axis=-1)
            assert 0.3 < known.mean() < 1
            places, xy, angles = (
                column[group, view, :count][known]
                for column in (views.places, views.xy, views.angles)
            )
            camera = views.cameras[group, view]
            mapped = places @ camera[:, :3].T + camera[:, 3]
            np.testing.assert_allclose(mapped[:, :2] / mapped[:, 2:], xy, atol=0.1)
            rows.append((places, angles - views.turns[group, view]))
        # Keypoints of one place are turned as their views are.
        for (first, upright), (second, other) in itertools.combinations(rows, 2):
            apart, nearest = cKDTree(second).query(first)
            near = apart < 1 / 300
            agreeing.append(np.cos(upright - other[nearest])[near])
    assert np.median(np.concatenate(agreeing)) > 0.8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layers", "-1", "--out", "v.npz"], "--layers -1: give 0 or more"),
        (["--layers", "2", "--out", "v.npz", "--colmap", "m"], "--layers goes without"),
        (["--layers", "2", "--out", "v.npz", "--features", "f.h5"], "--layers goes without"),
        (["--layers", "2", "--write-views", "v"], "--layers goes without"),
    ],
)
def test_layers_that_cannot_be(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.h5").touch()
    assert main(["build-views", ".", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
