import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model
from PIL import Image

from kjax.errors import InputError
from kjax.eval.similarity_maps import (
    draw_similarity_maps,
    read_patch,
    rescale_to_unit,
    similarity_map,
)


def test_similarity_map_is_a_row_of_the_table(rng):
    a, b = rng.normal(size=(2, 16, 5)).astype(np.float32)
    found = similarity_map(jnp.asarray(a), jnp.asarray(b), row=2, column=1)
    np.testing.assert_allclose(found, (a @ b.T)[9].reshape(4, 4), rtol=1e-5)


def test_rescale_to_unit():
    maps = np.array([[[1.0, 3.0], [2.0, 5.0]], [[7.0, 7.0], [7.0, 7.0]]], np.float32)
    expected = [[[0, 0.5], [0.25, 1]], [[0, 0], [0, 0]]]
    np.testing.assert_allclose(rescale_to_unit(jnp.asarray(maps)), expected)


def test_figure(tmp_path, rng):
    Image.fromarray(rng.integers(0, 255, (65, 65), np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(rng.integers(0, 255, (65, 60), np.uint8)).save(tmp_path / "b.png")
    patch = read_patch(tmp_path / "a.png", 32)
    methods = {"$xy": make_model("xy", s=1), "polar": make_model("polar", s=1)}
    draw_similarity_maps(methods, patch, patch[::-1], [(2, 2), (3, 5)], tmp_path / "maps.png")
    picture = np.asarray(Image.open(tmp_path / "maps.png").convert("RGB")).astype(int)
    red = (picture[..., 0] > 200) & (picture[..., 1] < 60) & (picture[..., 2] < 60)
    assert red.sum() > 500, "receptive fields are drawn in red"
    with pytest.raises(InputError, match="outside the 8×8 grid"):
        draw_similarity_maps(methods, patch, patch, [(8, 0)], tmp_path / "no.png")
    with pytest.raises(InputError, match="a patch must be square"):
        read_patch(tmp_path / "b.png", 32)
