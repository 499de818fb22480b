"""A linear map of descriptors, learned of some that are computed once: `kjax refit`."""

import numpy as np
import pytest
from models import make_model, random_patches

import kjax
from kjax.cli import main
from kjax.errors import InputError
from kjax.eval.misalignment import mean_matching
from kjax.model.folding import remap
from kjax.train.refitting import agreeing_directions, check_widths, learn_map
from kjax.weights.info import make_metadata
from kjax.weights.source import load_source, refitted_info


def random_turn(rng, dim):
    return np.linalg.qr(rng.normal(size=(dim, dim)))[0]


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def test_turned_weights_keep_all_distances(rng):
    model, variables = make_model("combined", patch_size=16)
    matrix = random_turn(rng, 128)
    patches = random_patches(rng, 20, 16)
    before = np.asarray(model.apply(variables, patches), np.float64)
    after = np.asarray(model.apply(remap(variables, matrix), patches), np.float64)
    # Both are sums of some thousand float32 products each, rounded apart.
    np.testing.assert_allclose(after, before @ matrix, atol=1e-4)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-4)
    assert np.abs(after - before).max() > 0.1


@pytest.mark.parametrize("head", ["hardnet", "sum"])
def test_heads_that_do_not_end_with_a_projection_are_refused(head, rng):
    _, variables = make_model(head, patch_size=16)
    with pytest.raises(InputError, match="end with their projection"):
        remap(variables, np.eye(128))


@pytest.fixture
def hidden(rng):
    """Views that agree in 8 of 32 entries and nowhere else, turned so that none shows it."""
    points = rng.normal(size=(1, 200, 8)) + 0.3 * rng.normal(size=(4, 200, 8))
    views = np.concatenate([points, 1.5 * rng.normal(size=(4, 200, 24))], axis=-1)
    return unit(views @ random_turn(rng, 32))


def test_what_tells_points_apart_comes_first(hidden):
    matrix = learn_map(hidden, [6, 8], turn=True, steps=100, seed=0, progress=False)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(32), atol=1e-12)
    turned = hidden @ matrix.astype(np.float32)
    assert mean_matching(hidden, 8) < 0.1
    assert mean_matching(turned, 8) > 0.8
    assert mean_matching(turned, 6) > 0.5
    assert mean_matching(turned, 32) == pytest.approx(mean_matching(hidden, 32), abs=0.02)


def test_learning_is_better_than_its_beginning(hidden):
    learned = learn_map(hidden, [6], turn=True, steps=200, seed=0, progress=False)
    begun, ended = (
        mean_matching(hidden @ matrix.astype(np.float32), 6)
        for matrix in (agreeing_directions(hidden), learned)
    )
    assert ended > begun + 0.01


def test_a_free_map_also_betters_whole_descriptors(hidden):
    matrix = learn_map(hidden, [8], turn=False, steps=300, seed=0, progress=False)
    mapped = hidden @ matrix.astype(np.float32)
    assert mean_matching(mapped, 32) > mean_matching(hidden, 32) + 0.2
    assert mean_matching(mapped, 8) > 0.8


def test_a_map_is_drawn_to_one_that_changes_nothing(hidden):
    free, drawn, held = (
        learn_map(hidden, [], pull=pull, steps=100, learning_rate=0.01)
        for pull in (1e-9, 0.03, 10.0)
    )
    away = [np.linalg.norm(matrix - np.eye(32)) for matrix in (free, drawn, held)]
    assert away[0] > 1.5 * away[1] > 15 * away[2]
    before, after = (mean_matching(hidden @ one.astype("f4"), 32) for one in (np.eye(32), drawn))
    assert after > before + 0.02


def test_the_same_seed_gives_the_same_map(hidden):
    options = {"turn": False, "steps": 3, "seed": 1, "progress": False}
    first, second = (learn_map(hidden, [8], **options) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("widths", "message"),
    [([128], "2 to 127"), ([1], "2 to 127"), ([], "at least 1"), ([32, 32], "different ones")],
)
def test_widths_that_say_nothing_are_refused(widths, message):
    with pytest.raises(InputError, match=message):
        check_widths(widths, 128, least=1)


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights.npz"
    _, variables = make_model("polar", patch_size=16, channels=(8, 8, 8, 8, 16, 16))
    kjax.save_variables(path, variables)
    return f"{path}:polar,s=1,patch_size=16"


def test_the_command_from_weights_to_shorter_descriptors(
    weights, set_folder, tmp_path, capsys, rng
):
    target = tmp_path / "turned.safetensors"
    options = ["--train", str(set_folder), "--points", "100", "--steps", "3", "--quiet"]
    options += ["--keep-distances", "--widths", "16"]
    assert main(["refit", weights, "--to", str(target), *options]) == 0
    told = capsys.readouterr().out
    assert "first 16" in told
    assert f"wrote {target}" in told
    patches = random_patches(rng, 9, 16)
    before, after = (load_source(word) for word in (weights, str(target)))
    assert after.nested == (16,)
    assert after.name is None
    assert after.info.remarks["refitted from"] == weights
    assert after.info.remarks["refitted on"] == "synthetic"
    rows = [kjax.load(word).describe(patches) for word in (weights, str(target))]
    np.testing.assert_allclose(rows[0] @ rows[0].T, rows[1] @ rows[1].T, atol=1e-4)
    shorter = kjax.load(str(target), dimension=16).describe(patches)
    np.testing.assert_allclose(shorter, unit(rows[1][:, :16]), atol=1e-4)
    assert before.nested == ()


def test_refitted_weights_do_not_pass_for_those_that_ship():
    info = refitted_info(load_source("fast"), "fast", nested=(64,), sets=["mine"])
    told = make_metadata(info)
    assert told["refitted from"] == "fast"
    assert "seneca" in told["trained on"]
    assert not {"name", "sha256 of npz", "licence", "evaluated"} & set(told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hardnet", "--to", "out.npz"], "end with their projection"),
        (["fast", "--to", "out.pth"], "ends with .safetensors or .npz"),
        (["fast", "--to", "out.npz", "--widths", "200"], "the first 200 numbers: give 2 to 127"),
        (["fast", "--to", "out.npz", "--steps", "0"], "--steps"),
        (["nowhere", "--to", "out.npz"], "nowhere"),
        (["fast", "--to", "out.npz", "--train", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(
    arguments, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["refit", *arguments, "--quiet"]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())
