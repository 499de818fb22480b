"""Splits, seeds and their means."""

import dataclasses

import numpy as np
import pytest
from evaluation_data import write_hpatches

from kjax.eval.averages import mean_of_seeds, mean_of_splits
from kjax.eval.entries import Entry, Member
from kjax.eval.hpatches.benchmark import open_benchmark, score

NAMES = ("i_one", "i_three", "v_two", "v_four")


def random_projection(seed):
    directions = np.random.default_rng(seed).normal(size=(65 * 65, 6)).astype(np.float32)

    def describe(patches, *, progress=True):
        return patches.reshape(len(patches), -1).astype(np.float32) @ directions / 1000

    return Member(describe, identity=f"projection {seed}")


@pytest.fixture
def benchmark(tmp_path):
    splits = {"a": NAMES[:3], "b": NAMES[1:], "c": NAMES[::2], "full": NAMES}
    folder = write_hpatches(tmp_path / "small", NAMES, patches=6)
    return open_benchmark(folder, splits=list(splits), known_splits=splits, progress=False)


def scores_of(benchmark, tmp_path, *seeds):
    members = tuple(random_projection(seed) for seed in seeds)
    entry = Entry("random", ours=False, source="made up", members=members)
    scores, _ = score(entry, benchmark, cache_dir=tmp_path / "cache", progress=False)
    return {one.split: one for one in scores}


def test_the_mean_over_a_b_and_c_comes_with_the_spread_of_seeds(benchmark, tmp_path):
    alone = [scores_of(benchmark, tmp_path, seed) for seed in (0, 1)]
    both = scores_of(benchmark, tmp_path, 0, 1)
    assert list(both) == ["a", "b", "c", "full", "abc"]
    for split in both:
        values = [one[split].matching_map for one in alone]
        assert both[split].matching_map == pytest.approx(np.mean(values))
        assert both[split].map_std["matching"] == pytest.approx(np.std(values, ddof=1))
        assert both[split].seeds == 2
    assert both["abc"].sequences == 4
    assert both["abc"].retrieval["e"] == pytest.approx(
        np.mean([both[split].retrieval["e"] for split in "abc"])
    )


def test_means_of_one_are_the_scores_themselves(benchmark, tmp_path):
    scores = scores_of(benchmark, tmp_path, 0)
    assert mean_of_seeds([scores["a"]]) == scores["a"]
    assert dataclasses.replace(mean_of_splits([scores["a"]]), tasks="") == dataclasses.replace(
        scores["a"], tasks=""
    )
