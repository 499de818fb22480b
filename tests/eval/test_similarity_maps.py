import numpy as np
from models import make_model, random_patches
from PIL import Image
from refusals import assert_refused

from kjax.eval.similarity_maps import draw_similarity_maps, read_patch, similarity_maps


def test_maps_are_rows_of_the_table_scaled_to_unit(rng):
    model, variables = make_model("xy", s=1, patch_size=16)
    patches = random_patches(rng, 2, 16)
    a, b = model.apply(variables, patches, weighted=False, method="local_encodings")
    rows = (np.asarray(a) @ np.asarray(b).T)[[9, 0]]
    expected = (rows - rows.min(1, keepdims=True)) / np.ptp(rows, axis=1, keepdims=True)
    found = similarity_maps((model, variables), *patches, [(2, 1), (0, 0)])
    np.testing.assert_allclose(found, expected.reshape(2, 4, 4), atol=1e-4)
    # The flat patch has no features: its maps are constant.
    flat = np.zeros((16, 16), np.uint8)
    assert np.isfinite(similarity_maps((model, variables), flat, flat, [(1, 1)])).all()


def test_figure(tmp_path, rng):
    Image.fromarray(rng.integers(0, 255, (65, 65), np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(rng.integers(0, 255, (65, 60), np.uint8)).save(tmp_path / "b.png")
    patch = read_patch(tmp_path / "a.png", 32)
    methods = {"$xy": make_model("xy", s=1), "polar": make_model("polar", s=1)}
    draw_similarity_maps(methods, patch, patch[::-1], [(2, 2), (3, 5)], tmp_path / "maps.png")
    picture = np.asarray(Image.open(tmp_path / "maps.png").convert("RGB")).astype(int)
    red = (picture[..., 0] > 200) & (picture[..., 1] < 60) & (picture[..., 2] < 60)
    assert red.sum() > 500, "receptive fields are drawn in red"
    given = methods, patch, patch, [(8, 0)], tmp_path / "no.png"
    assert_refused("outside the 8×8 grid", draw_similarity_maps, *given)
    assert_refused("a patch must be square", read_patch, tmp_path / "b.png", 32)
