import dataclasses

import jax
import numpy as np
import pytest
from refusals import assert_refused

import kjax
from kjax.cli import main
from kjax.images import learned
from kjax.images.features import Features
from kjax.images.learned import Matcher
from kjax.matcher.network import LayerOutput, MatcherConfig, init_params
from kjax.matcher.weights import MatcherWeights, read_matcher, save_matcher
from kjax.weights import shipped
from kjax.weights.info import Provenance

cv2 = pytest.importorskip("cv2")
MODEL = MatcherConfig(layers=2, width=32, heads=2, dimension=8)


@pytest.fixture(scope="module")
def weights():
    params = init_params(MODEL, jax.random.key(0))
    # Tokens that are their descriptors, and layers that add nothing: nearest neighbours match.
    params = jax.tree.map(np.zeros_like, params)
    params["embedding"]["input"]["kernel"][:8, :8] = 30 * np.eye(8)
    params["layers"]["likeness"]["kernel"][:] = np.eye(32)
    params["layers"]["matchability"]["bias"][:] = 9.0
    return MatcherWeights(MODEL, Provenance("mine", "abc", 8), {"seed": "0"}, params)


@pytest.fixture(scope="module")
def folder(weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("matcher")
    save_matcher(folder / "matcher.npz", weights)
    return folder


def features(rng, count, **columns) -> Features:
    descriptors = rng.normal(size=(count, 8)).astype(np.float32)
    return Features(
        rng.uniform(0, 100, (count, 2)).astype(np.float32),
        descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True),
        (100, 80),
        scales=np.full(count, 5, np.float32),
        angles=np.zeros(count, np.float32),
        **columns,
    )


@pytest.fixture
def pair(rng):
    """Photographs of 40 and 25 keypoints, of which the latter are among the former."""
    first = features(rng, 40, weights_sha256="abc")
    chosen = rng.permutation(40)[:25]
    second = features(rng, 25)
    second = dataclasses.replace(second, descriptors=first.descriptors[chosen])
    return first, second, chosen


def test_a_matcher_matches(folder, pair):
    first, second, chosen = pair
    matcher = kjax.load_matcher(str(folder))
    found = matcher.match(first, second)
    order = np.argsort(found.indices[:, 1])
    np.testing.assert_array_equal(found.indices[order, 0], chosen)
    np.testing.assert_array_equal(found.indices[order, 1], np.arange(25))
    assert found.ratios.max() < 0.5
    np.testing.assert_allclose(found.distances, 0, atol=1e-6)
    again = kjax.match(first, second, method="learned", matcher=str(folder / "matcher.npz"))
    np.testing.assert_array_equal(again.indices, found.indices)
    assert len(matcher.match(first, second, layers=1)) == 25
    assert not len(matcher.match(first, second, least_score=1.0))
    assert not len(matcher.match(first, features(np.random.default_rng(0), 0)))


def test_the_order_of_keypoints_has_no_say(weights, pair):
    model = dataclasses.replace(MODEL, self_every=2)
    params = jax.tree.map(np.add, weights.params, init_params(model, jax.random.key(0)))
    match = Matcher(dataclasses.replace(weights, model=model, params=params)).match
    first, second, _ = pair
    turned = {name: getattr(first, name)[::-1].copy() for name in ("xy", "descriptors")}
    expected, found = match(first, second), match(dataclasses.replace(first, **turned), second)
    np.testing.assert_array_equal([39, 0] + [-1, 1] * found.indices[::-1], expected.indices)
    np.testing.assert_array_equal(found.ratios[::-1], expected.ratios)


def test_a_changed_file_is_loaded_again(weights, pair, tmp_path):
    for bias, expected in ((9.0, 25), (-9.0, 0)):
        params = jax.tree.map(np.copy, weights.params)
        params["layers"]["matchability"]["bias"][:] = bias
        save_matcher(tmp_path / "matcher.npz", dataclasses.replace(weights, params=params))
        assert len(kjax.match(*pair[:2], method="learned", matcher=str(tmp_path))) == expected


def test_memory_does_not_grow_with_the_square_of_keypoints():
    count, shape = 8192, jax.ShapeDtypeStruct
    sides = [(1, 2, count, 32), (1, 2, count), (1, 2, count)]
    output = LayerOutput(*(shape(side, np.float32) for side in sides))
    program = learned._matches.lower(output, shape((1, 2), np.int32), shape((), np.float32))
    assert program.compile().memory_analysis().temp_size_in_bytes < count**2


def test_it_stops_as_soon_as_it_is_sure(weights, pair, monkeypatch):
    passed = []
    apply = learned._apply
    monkeypatch.setattr(learned, "_apply", lambda *args: passed.append(1) or apply(*args))
    sure = jax.tree.map(np.copy, weights.params)
    sure["layers"]["confidence"]["bias"][:] = 9.0
    for params, early, expected in ((sure, True, 2), (sure, False, 3), (weights.params, True, 3)):
        passed.clear()
        matcher = learned.Matcher(dataclasses.replace(weights, params=params))
        matcher.match(*pair[:2], early=early)
        assert len(passed) == expected  # the embedding, and the layers


@pytest.mark.parametrize(
    ("change", "matcher", "said"),
    [
        ({"weights_sha256": "other"}, None, "is for descriptors of mine with 8 numbers"),
        ({"descriptors": np.ones((40, 9), np.float32)}, None, "is for descriptors of mine"),
        ({"scales": None}, None, "needs the keypoints' scales"),
        ({"descriptors": np.ones((40, 8), np.uint8)}, None, "not quantized"),
        ({"descriptors": np.full((40, 8), np.nan, np.float32)}, None, "NaN or infinite values"),
        ({"xy": np.full((40, 2), np.inf, np.float32)}, None, "xy have NaN or infinite"),
        ({"scales": np.full(40, np.nan, np.float32)}, None, "scales have NaN or infinite"),
        ({"angles": np.full(40, np.nan, np.float32)}, None, "angles have NaN or infinite"),
        (None, None, "needs positions"),
        ({}, "absent", "no such matcher: absent"),
    ],
)
def test_features_of_others_are_refused(folder, pair, change, matcher, said):
    sides = pair[0].descriptors, pair[1].descriptors
    if change is not None:
        sides = dataclasses.replace(pair[0], **change), pair[1]
    assert_refused(said, kjax.match, *sides, method="learned", matcher=matcher or str(folder))


def test_a_matcher_for_descriptors_of_others(weights, pair):
    first, second, chosen = pair
    matcher = Matcher(dataclasses.replace(weights, described_with=Provenance("disk", "", 8)))
    # Neither scales nor angles, and descriptors of any length.
    bare = [
        dataclasses.replace(side, scales=None, angles=None, descriptors=length * side.descriptors)
        for side, length in ((first, 512), (second, 0.1))
    ]
    found = kjax.match(*bare, method="learned", matcher=matcher)
    np.testing.assert_array_equal(found.indices[np.argsort(found.indices[:, 1]), 0], chosen)
    assert_refused("is for descriptors of disk with 8 numbers", matcher.check_weights, None, 9)


@pytest.mark.parametrize("name", ["", "matcher.npz"])
def test_info_about_a_matcher(folder, capsys, name):
    assert main(["info", str(folder / name)]) == 0
    told = capsys.readouterr().out
    for fact in ("descriptors of mine, 8 numbers", "at most 2, 32 wide, 2 heads", "seed "):
        assert fact in told


def test_weights_come_back_and_damaged_ones_are_refused(folder, weights, tmp_path):
    back = read_matcher(folder / "matcher.npz")
    assert (back.model, back.remarks) == (weights.model, weights.remarks)
    assert back.described_with == weights.described_with
    jax.tree.map(np.testing.assert_array_equal, back.params, weights.params)
    arrays = dict(np.load(folder / "matcher.npz"))
    wrong = {"about": np.array("{}"), "embedding.input.bias": np.zeros(3, np.float32)}
    for name, spoilt in (wrong | {"layers.likeness.bias": None}).items():
        others = {key: value for key, value in arrays.items() if key != name}
        path = tmp_path / "spoilt.npz"
        np.savez(path, **others, **({} if spoilt is None else {name: spoilt}))
        assert_refused("damaged or not a matcher", read_matcher, path)


def test_a_file_may_hold_the_first_layer_alone(folder, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "matcher_file", {"mine": folder / "matcher.npz"}.get)
    params = jax.tree.map(np.copy, weights.params)
    params["embedding"]["input"]["kernel"] *= 2
    origin, path = Provenance("other", "def", 8), tmp_path / "mapped.npz"
    mapped = dataclasses.replace(weights, params=params, described_with=origin, base="mine")
    save_matcher(path, mapped)
    assert set(np.load(path).files) == {"about", "embedding.input.kernel"}
    back = read_matcher(path)
    assert back.described_with == origin
    jax.tree.map(np.testing.assert_array_equal, back.params, params)
    wider = dataclasses.replace(mapped, model=dataclasses.replace(MODEL, layers=3))
    save_matcher(path, wider)
    assert_refused("another version of the matcher mine", read_matcher, path)


def test_features_find_the_matcher_of_their_weights(rng):
    for name, sha256 in (("fast", shipped.card("fast").sha256), ("best", None)):
        assert learned.own_matcher(features(rng, 1, weights_sha256=sha256)) == name
