"""Features of views for a training, and a trained matcher at work."""

import dataclasses

import jax
import numpy as np
import pytest
from models import make_model
from PIL import Image

import kjax
from kjax.cli import main
from kjax.data.selfsupervised import ViewConfig
from kjax.errors import InputError
from kjax.images.features import Features
from kjax.images.learned import Matcher
from kjax.images.views import describe_views
from kjax.matcher.network import MatcherConfig, init_params
from kjax.matcher.view_set import read_view_set
from kjax.matcher.weights import MatcherWeights, read_matcher, save_matcher
from kjax.weights.info import Provenance

cv2 = pytest.importorskip("cv2")
MODEL = MatcherConfig(layers=2, width=32, heads=2, dimension=8)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder of two photographs of blobs."""
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        noise = rng.normal(0, 1, (150, 200)).astype(np.float32)
        grey = sum(cv2.GaussianBlur(noise, (0, 0), sigma) * sigma for sigma in (1.5, 3, 6))
        scaled = np.interp(grey, (grey.min(), grey.max()), (0, 255)).astype(np.uint8)
        Image.fromarray(scaled).save(folder / name)
    return folder


def test_views_are_what_homographies_make_of_a_photograph(photographs, tmp_path):
    describer = kjax.Describer(*make_model("xy", s=1, patch_size=16), name="x", sha256="y")
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no photograph")
    paths = [photographs / "a.png", broken, photographs / "b.png"]
    views, unreadable = describe_views(
        paths,
        ["a", "broken", "b"],
        describer,
        config=ViewConfig(views=2, max_rotation_degrees=180.0, max_noise=0.0, max_blur=0.0),
        max_keypoints=100,
        seed=0,
        progress=False,
    )
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
            homogeneous = np.column_stack([own, np.ones(len(own))])
            mapped = homogeneous @ views.cameras[photograph, view, :, :3].T
            mapped = mapped[:, :2] / mapped[:, 2:]
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


def test_build_views_writes_a_file(photographs, tmp_path, capsys, monkeypatch):
    out = tmp_path / "views.npz"
    words = ["build-views", str(photographs), "--out", str(out), "--views", "1", "--quiet"]
    assert main([*words, "--weights", "hardnet", "--keypoints", "30", "--max-side", "160"]) == 0
    assert "2 groups of 2 views of 2 photographs" in capsys.readouterr().out
    views = read_view_set(out)
    assert views.described_with.name == "hardnet"
    assert views.described_with.sha256 == kjax.weights.shipped.card("hardnet").sha256
    assert views.xy.shape == (2, 2, 30, 2)


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


def test_other_methods_take_features_too(pair):
    first, second, _ = pair
    found = kjax.match(first, second, method="mutual")
    expected = kjax.match(first.descriptors, second.descriptors, method="mutual")
    np.testing.assert_array_equal(found.indices, expected.indices)


def test_it_stops_as_soon_as_it_is_sure(weights, pair, monkeypatch):
    from kjax.images import learned

    passed = []
    one_layer = learned._run_layer
    monkeypatch.setattr(learned, "_run_layer", lambda *args: passed.append(1) or one_layer(*args))
    sure = jax.tree.map(np.copy, weights.params)
    sure["layers"]["confidence"]["bias"][:] = 9.0
    for params, early, expected in ((sure, True, 1), (sure, False, 2), (weights.params, True, 2)):
        passed.clear()
        matcher = learned.Matcher(dataclasses.replace(weights, params=params))
        matcher.match(*pair[:2], early=early)
        assert len(passed) == expected


def test_nothing_to_match(folder, rng):
    matcher = kjax.load_matcher(str(folder))
    assert len(matcher.match(features(rng, 0), features(rng, 3))) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights_sha256": "other"}, "is for descriptors of mine with 8 numbers"),
        ({"descriptors": np.ones((40, 9), np.float32)}, "is for descriptors of mine"),
        ({"scales": None}, "needs the keypoints' scales"),
        ({"descriptors": np.ones((40, 8), np.uint8)}, "not quantized"),
        ({"descriptors": np.full((40, 8), np.nan, np.float32)}, "NaN or infinite values"),
    ],
)
def test_features_of_others_are_refused(folder, pair, change, said):
    first, second, _ = pair
    with pytest.raises(InputError, match=said):
        kjax.match(
            dataclasses.replace(first, **change), second, method="learned", matcher=str(folder)
        )


def test_a_matcher_for_descriptors_of_others(weights, pair):
    first, second, chosen = pair
    about = dataclasses.replace(weights.about, described_with=Provenance("disk", "", 8))
    matcher = Matcher(dataclasses.replace(weights, about=about))
    # Neither scales nor angles, and descriptors of any length.
    bare = [
        dataclasses.replace(side, scales=None, angles=None, descriptors=length * side.descriptors)
        for side, length in ((first, 512), (second, 0.1))
    ]
    found = kjax.match(*bare, method="learned", matcher=matcher)
    np.testing.assert_array_equal(found.indices[np.argsort(found.indices[:, 1]), 0], chosen)
    with pytest.raises(InputError, match="is for descriptors of disk with 8 numbers"):
        matcher.check_weights(None, 9)


def test_learned_matching_needs_features_and_a_matcher(pair, folder):
    first, second, _ = pair
    with pytest.raises(InputError, match="needs positions too"):
        kjax.match(first.descriptors, second.descriptors, method="learned", matcher=str(folder))
    with pytest.raises(InputError, match="no such matcher: absent"):
        kjax.match(first, second, method="learned", matcher="absent")


def test_weights_come_back(folder, weights):
    back = read_matcher(folder / "matcher.npz")
    assert back.about == weights.about
    jax.tree.map(np.testing.assert_array_equal, back.params, weights.params)


@pytest.mark.parametrize("name", ["", "matcher.npz"])
def test_info_about_a_matcher(folder, capsys, name):
    assert main(["info", str(folder / name)]) == 0
    told = capsys.readouterr().out
    for fact in ("descriptors of mine, 8 numbers", "at most 2, 32 wide, 2 heads", "seed "):
        assert fact in told


def test_what_is_no_matcher(folder, tmp_path):
    arrays = dict(np.load(folder / "matcher.npz"))
    for name, spoilt in (
        ("about", np.array("{}")),
        ("embedding.input.bias", np.zeros(3, np.float32)),
        ("layers.likeness.bias", None),
    ):
        others = {key: value for key, value in arrays.items() if key != name}
        path = tmp_path / "spoilt.npz"
        np.savez(path, **others, **({} if spoilt is None else {name: spoilt}))
        with pytest.raises(InputError, match="no file of a matcher, or a damaged one"):
            read_matcher(path)


def test_the_command_refuses_other_descriptors(photographs, folder, tmp_path, capsys):
    given = [str(photographs / "a.png"), str(photographs / "b.png"), "--keypoints", "30"]
    given += ["--out", str(tmp_path / "m.png"), "--weights", "hardnet"]
    assert main(["match", *given, "--method", "learned", "--matcher", str(folder)]) == 2
    assert "is for descriptors of mine with 8 numbers" in capsys.readouterr().err
