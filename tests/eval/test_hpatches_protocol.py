"""HPatches' tasks: the official evaluators' results, brute force, cases by hand, and bad input."""

import dataclasses
import json
import zlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from official_tasks import GOLDEN, official_tasks
from refusals import assert_refused
from scipy.spatial.distance import cdist

from kjax.data.hpatches import IMAGES
from kjax.eval.hpatches import descriptors as hpatches_descriptors
from kjax.eval.hpatches import protocol as hpatches
from kjax.eval.hpatches.descriptors import SetDescriptors
from kjax.eval.hpatches.protocol import evaluate, matching, retrieval, verification
from kjax.eval.hpatches.tasks import Pairs, ReferencePatches, Tasks, generate_tasks, read_tasks
from kjax.eval.results import mean_of_splits
from kjax.metrics import precision_recall_curve, roc_curve
from kjax.model import nearest

TOY = Path(__file__).parents[1] / "golden" / "toy"
LEVELS = "eht"
QUIET = {"protocol": "python", "distance": "L2", "progress": False}
MATLAB = QUIET | {"protocol": "matlab"}


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


# The official evaluators


@pytest.fixture(scope="module")
def toy():
    """The official Python evaluator's results, with its descriptors and tasks."""
    golden = json.loads((TOY / "official.json").read_text())
    patches = {name: golden["sequences"][name] for name in golden["split"]["test"]}
    with np.load(TOY / "descriptors.npz") as file:
        arrays = {name: np.stack([file[f"{name}/{image}"] for image in IMAGES]) for name in patches}
    return golden, SetDescriptors.from_sequences(arrays), read_tasks(TOY, "toy", patches)


@pytest.fixture(scope="module")
def scores(toy):
    return evaluate(*toy[1:], split="toy", **QUIET)


def test_tasks_of_the_official_evaluator(toy):
    """Matching file by file, and retrieval query by query."""
    golden, descriptors, tasks = toy
    expected = golden["verification"]
    kinds, keys = ("intra", "inter"), ("imbalanced_ap", "balanced_auc")
    for values, key in zip(verification(descriptors, tasks, **QUIET), keys, strict=True):
        close(values, [[expected[level][kind][key] for kind in kinds] for level in LEVELS])
    expected = golden["matching"]["ap_per_file"]
    found = matching(descriptors, tasks, **QUIET)
    close(found, [[expected[name][level] for level in LEVELS] for name in tasks.patches])
    expected = golden["retrieval"]
    found = retrieval(descriptors, tasks, **QUIET)
    assert [str(size) for size in hpatches.POOLS["python"]] == list(expected["e"])
    close(found.mean(axis=0), [list(expected[level].values()) for level in LEVELS])
    queries = expected["first_20_queries_ap_k20000"]
    close(found[:20, :, -1].T, [queries[level] for level in LEVELS])


def test_scores_hold_what_the_tasks_gave(toy, scores):
    golden = toy[0]
    assert (scores.protocol, scores.split, scores.tasks) == ("python", "toy", "official")
    assert scores.sequences == 8
    close(scores.verification_map, golden["verification"]["mean_imbalanced_ap"])
    close(scores.matching_map, golden["matching"]["mean"])
    close(scores.retrieval_map, golden["retrieval"]["mean"]["20000"])
    close(scores.verification["h"]["inter"], golden["verification"]["h"]["inter"]["imbalanced_ap"])
    close(scores.verification_auc["t"]["intra"], 0.8178507777777777)
    close(scores.matching["t"], golden["matching"]["t"])
    by_file = golden["matching"]["ap_per_file"]
    close(scores.matching_by_sequence["v_toy3"]["h"], np.mean(by_file["v_toy3"]["h"]))
    close(scores.retrieval["e"], golden["retrieval"]["e"]["20000"])
    close(scores.retrieval_by_pool["h"]["500"], golden["retrieval"]["h"]["500"])


def random_image(name, image, count):
    """As the golden file defines them, read from a file with six decimals."""
    random = np.random.default_rng([0, zlib.crc32(f"{name}/{image}".encode())])
    values = random.standard_normal((count, 128)).astype(np.float32)
    return np.round(values.astype(np.float64), 6).astype(np.float32)


def constant_image(name, image, count):
    """Not ones: sums of 0.1 round differently in different orders, which must break no tie."""
    return np.full((count, 128), 0.1, np.float32)


def made(make, patches):
    arrays = {
        name: np.stack([make(name, image, count) for image in IMAGES])
        for name, count in patches.items()
    }
    return SetDescriptors.from_sequences(arrays).on_device()


@pytest.mark.parametrize(
    ("kind", "make"),
    [pytest.param("random", random_image, marks=pytest.mark.slow), ("constant", constant_image)],
)
def test_both_official_rules_on_a_larger_set(kind, make, optimized):
    golden, tasks = GOLDEN["descriptors"][kind], official_tasks()
    descriptors = made(make, tasks.patches)
    by_pool = [list(golden["retrieval"][level].values()) for level in LEVELS]
    matlab = golden["matlab_rule_reimplemented"]
    in_small_pool = [[matlab["retrieval_2000"][level]] for level in LEVELS]
    for protocol, mean, pools in (
        ("python", golden["verification"]["headline_mean_imbalanced_ap"], by_pool),
        ("matlab", matlab["verification_mean"], in_small_pool),
    ):
        options = QUIET | {"protocol": protocol}
        close(verification(descriptors, tasks, **options)[0].mean(), mean)
        found = retrieval(descriptors, tasks, **options).mean(axis=0)
        close(found[:, : len(pools[0])], pools)


@pytest.mark.slow
def test_matching_by_the_matlab_rule(optimized):
    golden, tasks = GOLDEN["descriptors"]["constant"], official_tasks()
    found = matching(made(constant_image, tasks.patches), tasks, **MATLAB)
    names = list(tasks.patches)
    for category, expected in golden["matlab_rule_reimplemented"]["matching_by_category"].items():
        chosen = [name.startswith(category) for name in names]
        close(found[chosen].mean(axis=(0, 2)), expected)
    mean = hpatches.matching_by_level(found, names, "matlab").mean()
    close(mean, golden["matlab_rule_reimplemented"]["matching_mean_of_six"])


# Brute force, by the curves of kjax.metrics

SIZES = {"i_one": 1, "v_few": 5, "v_more": 67, "other": 30}


def average_precision(distances, labels, protocol, positives=None):
    curve = precision_recall_curve(-distances, labels, positives=positives)
    if protocol == "python":
        return curve.average_precision
    rises = np.diff(curve.recall) > 0
    return (curve.precision[1:] * np.diff(curve.recall))[rises].sum()


def descriptors_of(kind, sizes, dim=8):
    random = np.random.default_rng(1)
    make = {
        "real": lambda shape: random.normal(size=shape),
        "whole numbers": lambda shape: random.integers(0, 3, shape),  # many ties
        "bits": lambda shape: random.integers(0, 2, shape),
        "constant": lambda shape: np.full(shape, 0.1),
    }[kind]
    arrays = {name: make((16, count, dim)) for name, count in sizes.items()}
    return SetDescriptors.from_sequences({k: v.astype(np.float32) for k, v in arrays.items()})


def rows_at(descriptors, tasks, sequence, image, patch):
    names = list(tasks.patches)
    places = zip(sequence, image, patch, strict=True)
    return np.stack([descriptors[names[s]][i, p] for s, i, p in places]).astype(np.float64)


def slow_verification(descriptors, tasks, protocol, metric):
    found = np.empty((2, 3, 2))
    for level in range(3):
        distances = []
        for pairs in (tasks.positives, tasks.intra, tasks.inter):
            image = np.where(pairs.image > 0, 5 * level + pairs.image, 0)
            sides = zip(pairs.sequence.T, image.T, pairs.patch.T, strict=True)
            one, other = (rows_at(descriptors, tasks, *side) for side in sides)
            order = 1 if metric == "cityblock" else 2
            distances.append(np.linalg.norm(one - other, order, axis=1))
        positives, *others = distances
        for kind, negatives in enumerate(others):
            for measure, kept in enumerate((positives[: len(negatives) // 5], positives)):
                parts = [(negatives, False), (kept, True)][:: 1 if protocol == "python" else -1]
                values = np.concatenate([part for part, _ in parts])
                labels = np.concatenate([np.full(len(part), label) for part, label in parts])
                found[measure, level, kind] = (
                    roc_curve(-values, labels).auc
                    if measure
                    else average_precision(values, labels, protocol)
                )
    return found


def slow_matching(descriptors, tasks, protocol, metric):
    found = []
    for name, count in tasks.patches.items():
        for image in range(1, 16):
            apart = cdist(descriptors[name][0], descriptors[name][image], metric)
            index = apart.argmin(axis=1)
            labels = index == np.arange(count)
            found.append(average_precision(apart.min(axis=1), labels, protocol, count))
    return np.reshape(found, (-1, 3, 5))


def slow_retrieval(descriptors, tasks, protocol, metric):
    names, queries, pools = list(tasks.patches), tasks.queries, hpatches.POOLS[protocol]
    distractors = tasks.distractors
    zeros = np.zeros(len(distractors), int)
    others = rows_at(descriptors, tasks, distractors.sequence, zeros, distractors.patch)
    found = np.empty((len(queries), 3, len(pools)))
    for query, (s, p) in enumerate(zip(queries.sequence, queries.patch, strict=True)):
        images = descriptors[names[s]][:, p]
        far = cdist(images[:1], others, metric)[0]
        foreign = distractors.sequence != s
        for level in range(3):
            near = cdist(images[:1], images[1 + 5 * level : 6 + 5 * level], metric)[0]
            for place, size in enumerate(pools):
                if protocol == "python":
                    values = np.concatenate([near, far[foreign]])[:size]
                else:
                    values = np.concatenate([near, far[:size][foreign[:size]]])
                labels = np.arange(len(values)) < 5
                found[query, level, place] = average_precision(values, labels, protocol)
    return found


@pytest.mark.parametrize("protocol", ["python", "matlab"])
@pytest.mark.parametrize(
    ("kind", "distance"),
    [
        *((kind, "L2") for kind in ("real", "whole numbers", "constant")),
        *((kind, "L1") for kind in ("whole numbers", "bits")),
    ],
)
def test_equals_brute_force(monkeypatch, kind, distance, protocol):
    monkeypatch.setattr(hpatches, "POOLS", {"python": (7, 20, 60, 500), "matlab": (25, 500)})
    tasks = generate_tasks(SIZES, pairs=60, queries=20, distractors=70, progress=False)
    descriptors = descriptors_of(kind, SIZES)
    metric = {"L2": "euclidean", "L1": "cityblock"}[distance]
    slow_tasks = slow_verification, slow_matching, slow_retrieval
    for task, slow_task in zip((verification, matching, retrieval), slow_tasks, strict=True):
        found = task(descriptors, tasks, protocol=protocol, distance=distance, progress=False)
        expected = slow_task(descriptors, tasks, protocol, metric)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_order_in_the_set_memory_and_block_sizes_do_not_matter(monkeypatch, toy, scores):
    _, descriptors, tasks = toy
    names = [*reversed(descriptors.patches)]
    shuffled = SetDescriptors.from_sequences({name: descriptors[name] for name in names})
    assert evaluate(shuffled.on_device(), tasks, split="toy", **QUIET) == scores
    thrice = {
        kind: Pairs(*(np.tile(column, (3, 1)) for column in vars(getattr(tasks, kind)).values()))
        for kind in ("positives", "intra", "inter")
    }
    more = dataclasses.replace(tasks, **thrice)
    whole = verification(descriptors, more, **QUIET)
    monkeypatch.setattr(hpatches, "PAIRS_AT_ONCE", hpatches_descriptors.PAIRS_IN_BLOCK)
    monkeypatch.setattr(hpatches, "QUERIES_AT_ONCE", 7)
    monkeypatch.setattr(nearest, "default_block", lambda: 64)
    np.testing.assert_array_equal(verification(shuffled, more, **QUIET), whole)
    assert evaluate(shuffled, tasks, split="toy", **QUIET) == scores


def test_pairs_need_not_share_their_first_patches(toy, scores):
    _, descriptors, tasks = toy
    swapped = Pairs(*(column[:, ::-1] for column in vars(tasks.intra).values()))
    found, _ = verification(descriptors, dataclasses.replace(tasks, intra=swapped), **QUIET)
    expected = [list(kinds.values()) for kinds in scores.verification.values()]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_the_first_of_equal_neighbours_is_taken():
    """Copies of one descriptor, whose distances a matrix product may round differently."""
    rows = np.random.default_rng(0).normal(size=(1, 100)).astype(np.float32).repeat(32, axis=0)
    for distance in ("L2", "L1"):
        found = hpatches_descriptors.nearest(jnp.asarray(rows), 0, 2, images=15, distance=distance)
        np.testing.assert_array_equal(found.place, np.zeros((15, 2)))
        np.testing.assert_array_equal(found.nearest, np.zeros((15, 2)))


def one_of_each(first, second):
    """Pairs of patch 0 in two images of two sequences."""
    rows = ([0, second], np.int16), ([0, 1], np.int8), (first, np.int32)
    return Pairs(*(np.array([row] * 5, kind) for row, kind in rows))


@pytest.fixture
def small():
    """Two sequences of two patches with one value each, and tasks."""
    values = np.zeros((2, 16, 2, 1), np.float32)
    values[:, :, 1] = 10
    values[:, 1:] += 1  # every target lies 1 from its reference
    values[0, 1, 0] = 9.5  # but one nearer to the other patch
    descriptors = SetDescriptors.from_sequences({"i_a": values[0], "v_b": values[1]})
    verified = one_of_each([1, 1], 0), one_of_each([0, 1], 0), one_of_each([0, 1], 1)
    looked_for = ReferencePatches(np.array([0], np.int16), np.array([1], np.int32))
    among = ReferencePatches(np.array([1, 1], np.int16), np.array([0, 1], np.int32))
    return descriptors, Tasks({"i_a": 2, "v_b": 2}, *verified, looked_for, among, "by hand")


def test_matching_by_hand(small):
    descriptors, tasks = small
    found = matching(descriptors, tasks, **QUIET)
    # In image e1 of i_a, patch 0 (at 0) finds 9.5 first and 11 no nearer: its index is right.
    # Patch 1 (at 10) finds 9.5, at 0.5: wrong, and retrieved first. So precision is 0, then 1/2.
    assert found[0, 0, 0] == pytest.approx((0.5 + 1e-10) / 2 / 2)
    np.testing.assert_allclose(np.delete(found.ravel(), 0), 1, atol=1e-12)
    by_step = matching(descriptors, tasks, **MATLAB)
    assert by_step[0, 0, 0] == pytest.approx(0.5 / 2)


def test_categories_count_alike_by_the_matlab_rule():
    precisions = np.stack([np.full((3, 5), value) for value in (0.2, 0.4, 0.9)])
    names = ["i_a", "i_b", "v_c"]
    np.testing.assert_allclose(hpatches.matching_by_level(precisions, names, "python"), 0.5)
    np.testing.assert_allclose(hpatches.matching_by_level(precisions, names, "matlab"), 0.6)


def test_mean_of_splits(scores):
    one = dataclasses.replace(scores, split="a")
    new = {"v_new": dict.fromkeys(LEVELS, 0.5)}
    changes = {"verification_map": 0.0, "matching": dict.fromkeys(LEVELS, 0.0)}
    other = dataclasses.replace(one, split="b", matching_by_sequence=new, **changes)
    mean = mean_of_splits([one, other])
    assert (mean.split, mean.sequences, mean.tasks) == ("ab", 9, "official")
    assert mean.verification_map == one.verification_map / 2
    assert mean.matching["h"] == one.matching["h"] / 2
    assert mean.matching_by_sequence == {**one.matching_by_sequence, **new}
    assert mean.verification == one.verification


NO_PAIRS = Pairs(np.zeros((0, 2), np.int16), np.zeros((0, 2), np.int8), np.zeros((0, 2), np.int32))
NO_PATCHES = ReferencePatches(np.zeros(0, np.int16), np.zeros(0, np.int32))


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("no matching pairs", {"positives": NO_PAIRS}),
        ("no intra pairs", {"intra": NO_PAIRS}),
        ("no inter pairs", {"inter": NO_PAIRS}),
        ("no queries", {"queries": NO_PATCHES}),
        ("i_a has queries, but no other", {"distractors": "queries"}),
        ("v_b has 2 descriptors per image, not 3", {"patches": {"i_a": 2, "v_b": 3}}),
        ("v_c has no descriptors per image, not 3", {"patches": {"i_a": 2, "v_c": 3}}),
    ],
)
def test_impossible_tasks_are_refused(small, message, changed):
    descriptors, tasks = small
    changed = {k: tasks.queries if v == "queries" else v for k, v in changed.items()}
    given = descriptors, dataclasses.replace(tasks, **changed)
    assert_refused(message, evaluate, *given, split="toy", **QUIET)


def test_progress_is_shown(small, capfd):
    descriptors, tasks = small
    evaluate(descriptors, tasks, split="toy")
    shown = capfd.readouterr().err
    assert all(f"{name}: 100%" in shown for name in ("verification", "matching", "retrieval"))
