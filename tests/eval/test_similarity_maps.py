from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model
from PIL import Image

from kjax.errors import InputError
from kjax.eval.similarity_maps import draw_paper_figure, rescale_to_unit, similarity_map
from kjax.weights.files import save_variables


def test_similarity_map_is_a_row_of_the_table(rng):
    a, b = rng.normal(size=(2, 16, 5)).astype(np.float32)
    found = similarity_map(jnp.asarray(a), jnp.asarray(b), row=2, column=1)
    np.testing.assert_allclose(found, (a @ b.T)[9].reshape(4, 4), rtol=1e-5)


def test_rescale_to_unit():
    maps = np.array([[[1.0, 3.0], [2.0, 5.0]], [[7.0, 7.0], [7.0, 7.0]]], np.float32)
    expected = [[[0, 0.5], [0.25, 1]], [[0, 0], [0, 0]]]
    np.testing.assert_allclose(rescale_to_unit(jnp.asarray(maps)), expected)


def test_figure_of_the_sample_pair(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "sample.png"
    caption = draw_paper_figure(out, heads=("xy", "hardnet"), s=1)
    assert caption == "random weights: xy, hardnet"
    picture = np.asarray(Image.open(out).convert("RGB")).astype(int)
    red = (picture[..., 0] > 200) & (picture[..., 1] < 60) & (picture[..., 2] < 60)
    assert red.sum() > 500, "receptive fields are drawn in red"


def test_figure_with_given_patches_and_weights(tmp_path):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    patches = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in patches:
        Image.fromarray(rng.integers(0, 255, (65, 65), np.uint8)).save(path)
    save_variables(tmp_path / "polar.npz", make_model("polar", s=1)[1])
    weights = {"polar": str(tmp_path / "polar.npz")}
    out = tmp_path / "maps.png"
    assert draw_paper_figure(out, patches, heads=["polar"], weights=weights, s=1) == ""
    assert out.is_file()


@pytest.mark.parametrize(
    ("patches", "options", "message"),
    [
        ([Path("a.png")], {}, "give two patches"),
        ([], {"heads": ["xy"], "positions": [(8, 0)]}, "outside the 8×8 grid"),
        ([], {"weights": {"cat": "a.npz"}}, "not one of xy"),
        ([], {"heads": ["xy"], "weights": {"xy": "hardnet"}}, "has head hardnet"),
    ],
)
def test_refused_figures(patches, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        draw_paper_figure(tmp_path / "maps.png", patches, **options)
