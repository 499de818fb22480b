"""HPatches' task files: read, and drawn as the official generator draws them; splits and seeds."""

import csv
import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_data import TASK_FILES, task_rows, write_hpatches, write_tasks
from official_tasks import GOLDEN, official_tasks
from refusals import assert_refused

from kjax.data.hpatches import SPLITS
from kjax.eval.entries import Entry
from kjax.eval.hpatches import tasks as hpatches_tasks
from kjax.eval.hpatches.tasks import generate_tasks, open_benchmark, read_tasks, textured_patches
from kjax.eval.results import mean_of_seeds, mean_of_splits
from kjax.eval.run import score

TOY = Path(__file__).parents[1] / "golden" / "toy"
PATCHES = json.loads((TOY / "official.json").read_text())["sequences"]
QUIET = {"progress": False}


def listed(path):
    """A file's rows, read by the csv module."""
    with open(path, newline="") as file:
        return list(csv.reader(file))[1:]


def assert_equal(one, other):
    assert one.patches == other.patches
    for name in TASK_FILES.values():
        for field in dataclasses.fields(getattr(one, name)):
            found, expected = (getattr(getattr(each, name), field.name) for each in (one, other))
            np.testing.assert_array_equal(found, expected)


# Reading


def test_files_are_read_as_they_stand(tmp_path):
    tasks = read_tasks(TOY, "toy", PATCHES)
    for file, name in TASK_FILES.items():
        rows = listed(TOY / f"{file}_split-toy.csv")
        assert task_rows(getattr(tasks, name), list(PATCHES)) == rows
    assert (tasks.inter.sequence.dtype, tasks.inter.image.dtype) == (np.int16, np.int8)
    for path in TOY.glob("*.csv"):  # line ends of other systems
        content = path.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n")
        (tmp_path / path.name).write_bytes(content)
    assert_equal(read_tasks(tmp_path, "toy", PATCHES), tasks)


def test_official_retrieval_files(shared_data, tmp_path):
    for kind in hpatches_tasks.PAIR_FILES:  # only those of retrieval are here
        for split in SPLITS:
            (tmp_path / f"verif_{kind}_split-{split}.csv").write_text("s1,t1,idx1,s2,t2,idx2\n")
    for path in (shared_data / "hpatches").glob("retr_*.csv"):
        (tmp_path / path.name).symlink_to(path)
    for split, sequences in SPLITS.items():
        tasks = read_tasks(tmp_path, split, dict.fromkeys(sequences, 3000))
        assert len(tasks.queries) == hpatches_tasks.QUERIES
        assert len(tasks.distractors) == hpatches_tasks.DISTRACTORS
        for kind in hpatches_tasks.PATCH_FILES:
            expected = listed(tmp_path / f"retr_{kind}_split-{split}.csv")
            assert task_rows(getattr(tasks, kind), sequences) == expected


GOOD = "s1,t1,idx1,s2,t2,idx2\ni_a,0,1,v_bc,5,0\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + "i_a,0,1,v_bcd,5,0\n", "line 3: unknown sequence v_bcd"),
        (GOOD + ",0,1,v_bc,5,0\n", "line 3: unknown sequence"),
        (GOOD + "i_a,6,1,v_bc,5,0\n", "line 3: its sequence does not have image 6"),
        (GOOD + "i_a,0,2,v_bc,5,0\n", "line 3: its sequence does not have patch 2"),
        (GOOD + "i_a,0,-1,v_bc,5,0\n", "line 3: its sequence does not have patch -1"),
        (GOOD + "i_a,0,1.0,v_bc,5,0\n", "is not a task file .*could not convert string '1.0'"),
        (GOOD + "i_a,0,9999999999,v_bc,5,0\n", "is not a task file"),
        (GOOD + "i_a,0,1,v_bc,5\n", "is not a task file .*5 were found"),
        ("", "first line is not s1,t1,idx1,s2,t2,idx2"),
        ("\x89PNG\r\n\udcff\n", "is not a task file"),
        (None, "cannot read .*No such file"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, content, message):
    if content is not None:
        path = tmp_path / "verif_pos_split-x.csv"
        path.write_bytes(content.encode(errors="surrogateescape"))
    told = assert_refused(message, read_tasks, tmp_path, "x", {"i_a": 2, "v_bc": 3})
    assert "verif_pos_split-x.csv" in told


# Generating


def test_files_of_the_official_generator_byte_for_byte(tmp_path):
    """It leaves out flat patches, which no file then names."""
    assert sum(map(len, GOLDEN["flat"].values())) > 200
    write_tasks(official_tasks(), tmp_path, "oxford")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    found = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert found == GOLDEN["sha256"]


def test_generated_pairs_are_read_back(tmp_path):
    patches = {"a": 4, "b": 2, "c": 9}
    tasks = generate_tasks(patches, pairs=500, **QUIET)
    assert len(np.unique(tasks.inter.sequence, axis=0)) == 9
    write_tasks(tasks, tmp_path, "mine")
    read = read_tasks(tmp_path, "mine", patches)
    assert_equal(read, tasks)
    assert (read.origin, tasks.origin) == ("official", "generated, seed 42")


def test_seeds_draw_different_pairs(capfd):
    one, same, other = (generate_tasks({"a": 50, "b": 60}, pairs=2000, seed=s) for s in (1, 1, 2))
    assert_equal(one, same)
    assert (one.intra.patch != other.intra.patch).any()
    assert other.origin == "generated, seed 2"
    assert "drawing pairs: 100%" in capfd.readouterr().err


def test_small_sets():
    tasks = generate_tasks({"a": 20, "b": 29}, **QUIET)
    assert [len(getattr(tasks, name)) for name in TASK_FILES.values()] == [980, 980, 980, 7, 42]
    # Sequences of one patch give no pair but distractors.
    tasks = generate_tasks({"one": 1, "two": 2, "single": 1}, pairs=50, **QUIET)
    assert set(tasks.inter.sequence.ravel()) == {1}
    drawn = (tasks.queries.sequence, tasks.distractors.sequence)
    assert set(np.concatenate(drawn)) == {0, 1, 2}
    for patches in ({}, {"one": 1}):
        assert_refused("no sequence to draw", generate_tasks, patches, **QUIET)


def test_flat_patches_are_not_looked_for():
    grey = np.full((3, 65, 65), 100, np.uint8)
    grey[0, ::2] = 119  # a deviation of about 9.5
    grey[1, ::2] = 121  # and of about 10.5
    textured = {"a": textured_patches(grey), "b": np.ones(4, bool)}
    np.testing.assert_array_equal(textured["a"], [False, True, False])
    tasks = generate_tasks({"a": 3, "b": 4}, textured=textured, queries=2, **QUIET)
    named = [*task_rows(tasks.queries, "ab"), *task_rows(tasks.distractors, "ab")]
    assert sorted(named) == [["a", "1"], *(["b", str(patch)] for patch in range(4))]


# Splits and seeds

NAMES = ("i_one", "i_three", "v_two", "v_four")


def random_projection(seed):
    directions = np.random.default_rng(seed).normal(size=(65 * 65, 6)).astype(np.float32)

    def describe(patches, *, progress=True):
        return patches.reshape(len(patches), -1).astype(np.float32) @ directions / 1000

    return describe


@pytest.mark.slow
def test_mean_over_splits_and_seeds(tmp_path, monkeypatch):
    splits = {"a": NAMES[:3], "b": NAMES[1:], "c": NAMES[:1] + NAMES[2:], "full": NAMES}
    folder = write_hpatches(tmp_path / "small", NAMES, patches=6)
    monkeypatch.setattr(hpatches_tasks, "SPLITS", splits)
    benchmark = open_benchmark(folder, splits=list(splits), **QUIET)

    def scores_of(*seeds):
        describe = tuple(random_projection(seed) for seed in seeds)
        entry = Entry("random", ours=False, source="made up", describe=describe)
        return {one.split: one for one in score(entry, (), benchmark, **QUIET)[0].hpatches}

    alone, both = [scores_of(seed) for seed in (0, 1)], scores_of(0, 1)
    assert list(both) == ["a", "b", "c", "full", "abc"]
    for split in both:
        values = [one[split].matching_map for one in alone]
        assert both[split].matching_map == pytest.approx(np.mean(values))
        assert both[split].map_std["matching"] == pytest.approx(np.std(values, ddof=1))
        assert both[split].seeds == 2
    assert both["abc"].sequences == 4
    mean = np.mean([both[split].retrieval["e"] for split in "abc"])
    assert both["abc"].retrieval["e"] == pytest.approx(mean)
    one = alone[0]["a"]
    assert mean_of_seeds([one]) == mean_of_splits([one]) == one
