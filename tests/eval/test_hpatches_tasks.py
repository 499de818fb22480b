"""HPatches' task files: read, written, and drawn as the official generator draws them."""

import csv
import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_data import write_tasks
from official_tasks import GOLDEN, official_tasks

from kjax.data.hpatches import SPLITS
from kjax.errors import InputError
from kjax.eval.hpatches import tasks as hpatches_tasks
from kjax.eval.hpatches.tasks import (
    generate_retrieval,
    generate_tasks,
    generate_verification,
    read_retrieval,
    read_tasks,
    read_verification,
    textured_patches,
)

TOY = Path(__file__).parents[1] / "golden" / "toy"
PATCHES = json.loads((TOY / "official.json").read_text())["sequences"]
QUIET = {"progress": False}


def listed(path):
    """A file's rows, read the plain way."""
    with open(path, newline="") as file:
        return list(csv.reader(file))[1:]


def rows(task_list, names):
    """Pairs or patches as a file's rows."""
    sequence = task_list.sequence.reshape(len(task_list), -1)
    patch = task_list.patch.reshape(len(task_list), -1)
    image = getattr(task_list, "image", None)
    table = []
    for place in range(len(task_list)):
        row = []
        for side in range(sequence.shape[1]):
            row.append(names[sequence[place, side]])
            if image is not None:
                row.append(str(image[place, side]))
            row.append(str(patch[place, side]))
        table.append(row)
    return table


def assert_equal(one, other):
    for field in dataclasses.fields(one):
        found, expected = getattr(one, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(found):
            assert_equal(found, expected)
        else:
            np.testing.assert_array_equal(found, expected)


# Reading


def test_files_are_read_as_they_stand():
    tasks = read_tasks(TOY, "toy", PATCHES)
    names = list(PATCHES)
    for kind, found in (
        ("verif_pos", tasks.verification.positives),
        ("verif_neg_intra", tasks.verification.intra),
        ("verif_neg_inter", tasks.verification.inter),
        ("retr_queries", tasks.retrieval.queries),
        ("retr_distractors", tasks.retrieval.distractors),
    ):
        assert rows(found, names) == listed(TOY / f"{kind}_split-toy.csv")
    assert tasks.verification.inter.sequence.dtype == np.int16
    assert tasks.verification.inter.image.dtype == np.int8


def test_line_ends_of_other_systems(tmp_path):
    for path in TOY.glob("retr_*.csv"):
        content = path.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n")
        (tmp_path / path.name).write_bytes(content)
    assert_equal(read_retrieval(tmp_path, "toy", PATCHES), read_retrieval(TOY, "toy", PATCHES))


def test_the_official_retrieval_files(shared_data):
    for split, sequences in SPLITS.items():
        task = read_retrieval(shared_data / "hpatches", split, dict.fromkeys(sequences, 3000))
        assert len(task.queries) == hpatches_tasks.QUERIES
        assert len(task.distractors) == hpatches_tasks.DISTRACTORS
        named = [*rows(task.queries, sequences), *rows(task.distractors, sequences)]
        files = (f"retr_{kind}_split-{split}.csv" for kind in ("queries", "distractors"))
        assert named == [row for name in files for row in listed(shared_data / "hpatches" / name)]
        assert len(set(map(tuple, named))) == len(named)


GOOD = "s1,t1,idx1,s2,t2,idx2\ni_a,0,1,v_bc,5,0\n"


def write_pairs(folder, content):
    for kind in ("pos", "neg_intra", "neg_inter"):
        (folder / f"verif_{kind}_split-x.csv").write_bytes(content)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("i_a,0,1,v_bd,5,0", "line 3: unknown sequence 'v_bd': did you mean 'v_bc'"),
        ("i_a,0,1,v_bcd,5,0", "line 3: unknown sequence 'v_bcd'"),
        ("i_a,0,1,v_b,5,0", "line 3: unknown sequence 'v_b'"),
        (",0,1,v_bc,5,0", "line 3: unknown sequence ''"),
        ("i_a,6,1,v_bc,5,0", "line 3: t1 '6' is no image 0 to 5"),
        ("i_a,0,2,v_bc,5,0", "line 3: idx1 '2' is beyond its sequence's last patch"),
        ("i_a,0,1,v_bc,5,3", "line 3: idx2 '3' is beyond its sequence's last patch"),
        ("i_a,0,-1,v_bc,5,0", "line 3: idx1 '-1' is no whole number from 0"),
        ("i_a,0,1.0,v_bc,5,0", "line 3: idx1 '1.0' is no whole number from 0"),
        ("i_a,0,,v_bc,5,0", "line 3: idx1 '' is no whole number from 0"),
        ("i_a,0,9999999999,v_bc,5,0", "line 3: idx1 '9999999999' is no whole number from 0"),
        ("i_a,0,1,v_bc,5", "line 3 has 5 columns, not 6"),
        ("i_a,0,1,v_bc,5,0,7", "line 3 has 7 columns, not 6"),
        ("", "line 3 has 1 columns, not 6"),
    ],
)
def test_bad_rows_are_refused_in_one_line(tmp_path, row, message):
    patches = {"i_a": 2, "v_bc": 3}
    write_pairs(tmp_path, GOOD.encode())
    assert len(read_verification(tmp_path, "x", patches).inter) == 1
    write_pairs(tmp_path, (GOOD + row + "\ni_a,0,1,v_bc,5,0\n").encode())
    with pytest.raises(InputError, match=message) as error:
        read_verification(tmp_path, "x", patches)
    assert "\n" not in str(error.value)
    assert "verif_pos_split-x.csv" in str(error.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*verif_pos_split-x\.csv \(No such file"):
        read_verification(tmp_path, "x", PATCHES)
    for content in (b"", b"s,idx\ni_a,0\n", b"\x89PNG\r\n\xff\xfe\n"):
        write_pairs(tmp_path, content)
        with pytest.raises(InputError, match="not s1,t1,idx1,s2,t2,idx2"):
            read_verification(tmp_path, "x", PATCHES)


def test_a_file_without_rows_has_no_pairs(tmp_path):
    write_pairs(tmp_path, b"s1,t1,idx1,s2,t2,idx2\n")
    assert len(read_verification(tmp_path, "x", PATCHES).positives) == 0


# Generating


def test_files_of_the_official_generator_byte_for_byte(tmp_path):
    """It leaves out flat patches, which no file then names."""
    assert sum(map(len, GOLDEN["flat"].values())) > 200
    write_tasks(official_tasks(), tmp_path, "oxford")
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()
    }
    assert found == GOLDEN["sha256"]


def test_written_tasks_are_read_back(tmp_path):
    patches = {"i_a": 20, "v_b": 30, "v_c": 12}
    tasks = generate_tasks(patches, pairs=100, **QUIET)
    write_tasks(tasks, tmp_path / "new", "mine")
    read = read_tasks(tmp_path / "new", "mine", patches)
    assert_equal(dataclasses.replace(read, origin=tasks.origin), tasks)
    assert read.origin == "official"
    assert tasks.origin == "generated, seed 42"


def test_written_files_are_the_official_ones_byte_for_byte(tmp_path):
    write_tasks(read_tasks(TOY, "toy", PATCHES), tmp_path, "toy")
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (TOY / path.name).read_bytes()
    assert len(list(tmp_path.iterdir())) == 5


def test_pairs_are_what_they_are_called():
    task = generate_verification({"a": 4, "b": 2, "c": 9}, pairs=500, **QUIET)
    for pairs in (task.positives, task.intra):
        np.testing.assert_array_equal(pairs.sequence[:, 0], pairs.sequence[:, 1])
    np.testing.assert_array_equal(task.positives.patch[:, 0], task.positives.patch[:, 1])
    assert (task.intra.patch[:, 0] != task.intra.patch[:, 1]).all()
    assert (task.intra.image[:, 0] != task.intra.image[:, 1]).all()
    assert len(np.unique(task.inter.sequence, axis=0)) == 9
    counts = np.array([4, 2, 9])
    for pairs in (task.positives, task.intra, task.inter):
        assert (pairs.patch < counts[pairs.sequence]).all()


def test_another_seed_draws_other_pairs():
    one, same, other = (
        generate_tasks({"a": 50, "b": 60}, pairs=100, seed=seed, **QUIET) for seed in (1, 1, 2)
    )
    assert_equal(one, same)
    assert (one.verification.intra.patch != other.verification.intra.patch).any()
    assert other.origin == "generated, seed 2"


def test_a_small_folder_gives_what_it_can():
    tasks = generate_tasks({"a": 20, "b": 29}, **QUIET)
    assert len(tasks.verification.intra) == 49 * 20
    assert len(tasks.retrieval.queries) == 7
    assert len(tasks.retrieval.distractors) == 42


def test_sequences_of_one_patch_give_no_pair_but_distractors():
    tasks = generate_tasks({"one": 1, "two": 2, "single": 1}, pairs=50, **QUIET)
    assert set(tasks.verification.inter.sequence.ravel()) == {1}
    drawn = (tasks.retrieval.queries, tasks.retrieval.distractors)
    assert set(np.concatenate([some.sequence for some in drawn])) == {0, 1, 2}


@pytest.mark.parametrize("patches", [{}, {"one": 1}])
def test_no_pair_at_all_is_refused(patches):
    with pytest.raises(InputError, match="no sequence to draw from"):
        generate_tasks(patches, **QUIET)


def test_flat_patches_are_not_looked_for():
    grey = np.full((3, 65, 65), 100, np.uint8)
    grey[0, ::2] = 119  # a deviation of about 9.5
    grey[1, ::2] = 121  # and of about 10.5
    textured = textured_patches(grey)
    np.testing.assert_array_equal(textured, [False, True, False])
    textured = {"a": textured, "b": np.ones(4, bool)}
    task = generate_retrieval({"a": 3, "b": 4}, textured=textured, queries=2)
    named = np.concatenate([rows(task.queries, "ab"), rows(task.distractors, "ab")]).tolist()
    assert sorted(named) == [["a", "1"], *(["b", str(patch)] for patch in range(4))]


def test_progress_is_shown(capfd):
    generate_tasks({"a": 5, "b": 5}, pairs=2000)
    assert "drawing pairs: 100%" in capfd.readouterr().err
