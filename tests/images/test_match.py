import dataclasses
from unittest import mock

import cv2
import jax
import numpy as np
import pytest
import torch
from kornia.feature import match_mnn, match_nn, match_smnn, match_snn
from refusals import assert_refused

from kjax.images import match as matching
from kjax.images.features import Features, Matches
from kjax.images.match import from_hloc_style, hloc_style, match, match_many
from kjax.model import nearest

KORNIA = {"nearest": match_nn, "mutual": match_mnn, "ratio": match_snn, "mutual_ratio": match_smnn}
METHODS = tuple(KORNIA)


def descriptors(rng, n, m, dimension=32, noise=0.1):
    """Two sets of unit vectors; those that both have are in another order and noisy."""
    some = rng.normal(size=(max(n, m), dimension))
    other = rng.permutation(some)[:m] + noise * rng.normal(size=(m, dimension))
    sets = (some[:n], other)
    return [(x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in sets]


def brute_force(a, b, method, ratio, distance="L2"):
    """From the whole matrix of distances, in double precision."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    apart = ((a[:, None] - b[None]) ** 2).sum(-1)
    if distance == "L2":
        apart = np.sqrt(apart)

    def side(matrix):
        order = np.argsort(matrix, axis=1, kind="stable")
        near = np.take_along_axis(matrix, order[:, :2], axis=1)
        if near.shape[1] == 1:
            near = np.column_stack([near, np.full(len(near), np.inf)])
        with np.errstate(invalid="ignore"):
            ratios = np.where(near[:, 0] == near[:, 1], 1.0, near[:, 0] / near[:, 1])
        return order[:, 0], near[:, 0], ratios, np.isfinite(near[:, 1])

    if not apart.size:
        return np.empty((0, 2)), np.empty(0), np.empty(0)
    there, distance, ratios, has_second = side(apart)
    back, _, back_ratios, back_has_second = side(apart.T)
    keep = np.ones(len(a), bool)
    if "ratio" in method:
        keep &= (ratios <= ratio) & has_second
    if "mutual" in method:
        keep &= back[there] == np.arange(len(a))
    if method == "mutual_ratio":
        keep &= (back_ratios[there] <= ratio) & back_has_second[there]
        ratios = np.maximum(ratios, back_ratios[there])
    indices = np.column_stack([np.arange(len(a)), there])
    return indices[keep], distance[keep], ratios[keep]


def assert_as_brute_force(a, b, method, *, ratio=0.8, block=None, distance="L2"):
    """By NumPy, then by JAX."""
    indices, distances, ratios = brute_force(a, b, method, ratio, distance)
    for on_host in (True, False):
        with mock.patch.object(matching, "_without_jax", return_value=on_host):
            found = match(a, b, method=method, ratio=ratio, block=block, distance=distance)
        assert found.indices.dtype == np.int32
        assert found.indices.shape == (len(indices), 2)
        np.testing.assert_array_equal(found.indices, indices)
        np.testing.assert_allclose(found.distances, distances, rtol=1e-6)
    return found, ratios


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0), (0, 0), (1, 1), (1, 7), (7, 1), (2, 2)])
def test_tiny_sets_are_legal(rng, method, n, m):
    assert_as_brute_force(*descriptors(rng, n, m), method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "m"), [(300, 170), (170, 300), (64, 128)])
def test_equals_brute_force_over_several_blocks(rng, method, n, m):
    a, b = descriptors(rng, n, m)
    found, ratios = assert_as_brute_force(a, b, method, block=64)
    np.testing.assert_allclose(found.ratios, ratios, rtol=1e-6)
    assert 0 < len(found) <= n


@pytest.mark.parametrize("method", METHODS)
def test_equals_kornia(rng, method):
    a, b = descriptors(rng, 200, 150, dimension=128)
    found = match(a, b, method=method, ratio=0.85)
    threshold = {"th": 0.85} if "ratio" in method else {}
    # In double precision: its distances are good to five digits only in single precision.
    values, indices = KORNIA[method](*(torch.from_numpy(x).double() for x in (a, b)), **threshold)
    mine = found.ratios if "ratio" in method else found.distances
    # Kornia lists mutual ones by the smaller set.
    order = np.argsort(indices[:, 0].numpy(), kind="stable")
    np.testing.assert_array_equal(found.indices, indices.numpy()[order])
    np.testing.assert_allclose(mine, values.numpy()[order, 0], rtol=1e-6)
    assert len(found) > 20


def test_ties_go_to_the_lowest_index(rng):
    a, b = descriptors(rng, 90, 90)
    b = np.concatenate([b, b, b[::-1]])
    for method in ("nearest", "mutual"):
        found, _ = assert_as_brute_force(a, b, method, block=64)
        assert found.indices[:, 1].max() < 90
    assert len(match(a, b, method="ratio", ratio=0.99)) == 0
    np.testing.assert_array_equal(match(a, b, method="nearest").ratios, 1)
    same = np.full((100, 8), 0.5, np.float32)  # ties, not 0/0
    np.testing.assert_array_equal(match(same, same, method="nearest", block=64).ratios, 1)
    assert match(same, same, method="mutual").indices.tolist() == [[0, 0]]


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_is_exact_where_single_precision_is_not(rng, offset):
    """Far from the origin, or almost copies: |a|² + |b|² − 2ab has no correct digit left."""
    a = (offset + rng.normal(size=(80, 16))).astype(np.float32)
    b = np.concatenate([np.nextafter(a, np.float32(np.inf)), a + np.float32(1e-4), a, a])
    b = rng.permutation(b)
    naive = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    exact = brute_force(a, b, "nearest", 1)[0][:, 1]
    assert (naive.argmin(axis=1) != exact).any()
    for method in METHODS:
        assert_as_brute_force(a, b, method, block=64)


@pytest.fixture
def searched_again(monkeypatch):
    """How many queries were in doubt, at each call of the search on the device."""
    counts = []
    search = nearest.search
    note = lambda q, t, metric: counts.append(len(q)) or search(q, t, metric)  # noqa: E731
    monkeypatch.setattr(nearest, "search", note)
    return counts


def test_few_queries_are_searched_twice_and_similar_sizes_share_their_program(rng, searched_again):
    match(*descriptors(rng, 500, 500, dimension=128), method="nearest")
    before = nearest._refined._cache_size()
    match(*descriptors(rng, 470, 490, dimension=128), method="nearest")
    assert nearest._refined._cache_size() == before
    assert sum(searched_again) < 20


@pytest.mark.parametrize("exponent", [-80, 100])
def test_any_magnitude(rng, exponent, searched_again):
    a, b = (np.ldexp(x, exponent) for x in descriptors(rng, 70, 80))
    assert_as_brute_force(a, b, "mutual", block=64)
    assert sum(searched_again) < 5
    outlier = np.concatenate([b, 1e6 * b[:1]])  # harms no other
    assert_as_brute_force(a, outlier, "nearest", block=64)
    # A descriptor and its almost equal neighbours.
    steps = np.ldexp(np.arange(-10, 11, dtype=np.float32), exponent - 23)
    close = rng.permutation(a[0] + steps[:, None])
    assert_as_brute_force(close, close, "nearest")
    assert sum(searched_again) >= 7


@pytest.mark.parametrize("method", METHODS)
def test_hamming_of_bytes_and_of_bits(rng, method):
    packed = rng.integers(0, 256, (150, 4), dtype=np.uint8)
    other = rng.permutation(packed)[:130] ^ rng.integers(0, 2, (130, 4), dtype=np.uint8)
    bits = [np.unpackbits(rows, axis=1).astype(bool) for rows in (packed, other)]
    found, _ = assert_as_brute_force(*bits, method, distance="Hamming", block=64)
    forms = ([rows.astype(kind) for rows in bits] for kind in (np.uint8, np.float32))
    for form in ((packed, other), *forms):
        same = match(*form, method=method, ratio=0.8, distance="Hamming")
        np.testing.assert_array_equal(same.indices, found.indices)
        np.testing.assert_array_equal(same.distances, found.distances)
    assert len(found)
    if method == "mutual":
        theirs = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(packed, other)
        theirs = [(m.queryIdx, m.trainIdx, m.distance) for m in theirs]
        ours = zip(found.indices, found.distances, strict=True)
        assert [(*pair, far) for pair, far in ours] == theirs


def test_integers_and_jax_arrays(rng):
    sift = rng.integers(0, 256, (60, 128), dtype=np.uint8)
    assert_as_brute_force(sift[:40].astype(int), sift[20:].astype(int), "mutual_ratio")
    found = match(sift[:40], jax.numpy.asarray(sift[20:]), method="mutual_ratio")
    np.testing.assert_array_equal(found.indices, [(i, i - 20) for i in range(20, 40)])


@pytest.mark.parametrize("distance", ["L2", "Hamming"])
def test_many_pairs_are_matched_as_each_alone(rng, distance, monkeypatch):
    monkeypatch.setattr(matching, "_PAIRS_AT_ONCE", 4)
    some = rng.normal(size=(300, 32)).astype(np.float32)
    sets = [some[rng.permutation(300)[:n]] + 0.1 for n in (200, 40, 0, 1, 300)]
    sets += [sets[0][::-1].copy(), sets[0].repeat(4, axis=0)[:250]]
    if distance == "Hamming":
        sets = [np.packbits(rows > 0, axis=1) for rows in sets]
    pairs = [(0, 1), (1, 0), (4, 5), (2, 1), (0, 3), (0, 0), (6, 4)]
    found = match_many(sets, pairs, method="mutual_ratio", ratio=0.9, distance=distance)
    for (one, other), matches in zip(pairs, found, strict=True):
        alone = match(sets[one], sets[other], method="mutual_ratio", ratio=0.9, distance=distance)
        np.testing.assert_array_equal(matches.indices, alone.indices)
        np.testing.assert_array_equal(matches.distances, alone.distances)
        np.testing.assert_array_equal(matches.ratios, alone.ratios)
    assert [len(matches) > 0 for matches in found] == [1, 1, 1, 0, 0, 1, 0]
    assert match_many(sets, []) == []
    for pair in ((0, 7), (-1, 0)):
        assert_refused(r"does not name two of 7 images", match_many, sets, [(0, 1), pair])


def test_features_bring_their_ratio_and_distance(rng):
    rows = descriptors(rng, 200, 150, noise=0.5)
    first, second = (Features(np.zeros((len(x), 2), np.float32), x, (9, 8)) for x in rows)
    assert repr(first) == "Features(200 keypoints, 32 × float32, image 9 × 8)"
    own, less = (dataclasses.replace(first, ratio=ratio) for ratio in (0.95, 0.85))
    for sides, ratio in (((own, second), 0.95), ((own, less), 0.85), ((first, second), 0.9)):
        expected = match(*(one.descriptors for one in sides), method="mutual_ratio", ratio=ratio)
        for found in (match(*sides), match_many(sides, [(0, 1)])[0]):
            np.testing.assert_array_equal(found.indices, expected.indices)
    bits = [one.quantized("binary") for one in (own, second)]
    assert repr(bits[0]) == "Features(200 keypoints, 32 × uint8 (Hamming), image 9 × 8)"
    expected = match(*(one.descriptors for one in bits), ratio=0.95, distance="Hamming")
    np.testing.assert_array_equal(match(*bits).indices, expected.indices)
    assert repr(expected).startswith(f"Matches({len(expected)} matches, median ratio 0.")
    for other in (first, first.quantized("uint8")):
        assert_refused("binary descriptors and others cannot be compared", match, bits[0], other)


@pytest.mark.parametrize("product", ["split", "whole"])
def test_what_accelerators_compute_with_is_exact_too(rng, product, monkeypatch, searched_again):
    a, b = descriptors(rng, 250, 250, dimension=128)
    if product == "whole":
        a, b = (np.round(255 * np.abs(rows)).astype(np.uint8) for rows in (a, b))
    monkeypatch.setattr(nearest, "_float32_is_fastest", lambda: False)
    assert_as_brute_force(a, b, "mutual", block=64)
    assert sum(searched_again) < 5


def test_what_cannot_be_matched_is_refused_in_one_line():
    for change, message in (
        ({"a": np.array([[0, np.nan], [1, 2]], np.float32)}, "NaN.*1 of 2 rows, row 0 first"),
        ({"b": np.array([[0, 1], [np.inf, 2]], np.float32)}, "descriptors b .*row 1 first"),
        ({"a": np.zeros((3, 5), np.float32)}, "of 5 and of 2 numbers"),
        ({"a": np.zeros((3, 0)), "b": np.zeros((3, 0))}, "of no numbers"),
        ({"a": np.zeros(5, np.float32)}, r"shape \(5,\)"),
        ({"a": np.zeros((3, 2), bool)}, "distance='Hamming'"),
        ({"distance": "Hamming", "a": np.full((1, 2), 0.5)}, "zeros and ones"),
        ({"a": np.zeros((2, 2), np.uint8)}, "uint8 and of float32 cannot be compared"),
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"block": 0}, "block is 0"),
    ):
        arguments = {"a": np.eye(2, dtype=np.float32), "b": np.eye(2, dtype=np.float32)} | change
        assert_refused(message, match, **arguments)


def test_hloc_style_and_back():
    values = np.array([[0.1, 0.2, 0.3], [0.5, 0.25, 0.75]], np.float32)
    matches = Matches(np.array([[0, 2], [1, 2], [3, 0]], np.int32), *values)
    styled = hloc_style(matches, 5, 4)
    np.testing.assert_array_equal(styled["matches0"], [2, 2, -1, 0, -1])
    np.testing.assert_array_equal(styled["matching_scores0"], [0.5, 0.75, 0, 0.25, 0])
    np.testing.assert_array_equal(styled["matches1"], [3, -1, 1, -1])
    np.testing.assert_array_equal(styled["matching_scores1"], [0.25, 0, 0.75, 0])
    indices, scores = from_hloc_style(styled["matches0"], styled["matching_scores0"])
    np.testing.assert_array_equal(indices, matches.indices)
    np.testing.assert_array_equal(scores, 1 - matches.ratios)
    assert_refused("do not fit 3", hloc_style, matches, 3, 4)
