"""The whole command: from sources of every kind to results, report and exit code."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluation_data import write_hpatches, write_run, write_test_set
from models import make_model, random_patches

import kjax
from kjax.errors import InputError
from kjax.eval.describe_patches import describe_patches
from kjax.eval.entries import find_entry
from kjax.eval.hpatches.descriptors import describe_sequences, write_descriptors
from kjax.eval.results import Evaluation
from kjax.metrics import fpr_at_recall, pair_distances
from kjax.model.describe import describe
from kjax.weights.files import save_variables

sys.path.insert(0, str(Path(__file__).parents[2]))
import run_eval


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """A folder with test sets and a small HPatches, to be evaluated from within."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KJAX_CACHE", str(tmp_path / "cache"))
    write_test_set(tmp_path / "left", seed=0)
    write_test_set(tmp_path / "right", seed=1)
    write_hpatches(tmp_path / "small")
    return tmp_path


def evaluate(*words):
    return run_eval.main(["run_eval.py", "--quiet", *words])


def results(folder):
    return Evaluation.from_json((folder / "results.json").read_text())


def test_runs_and_rivals_on_everything(sets, capsys):
    write_run(sets / "run", train="left", test=("right",))
    assert (
        evaluate(
            "run", "rootsift", "tfeat", "--hpatches", "small", "--protocols", "python", "matlab"
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "xy s=1 N=16" in printed
    assert "report: run/evaluation/report.html" in printed
    ours, rootsift, tfeat = results(sets / "run" / "evaluation").descriptors
    assert [score.test for score in ours.phototour] == ["right"]
    assert ours.phototour[0].train == "left"
    assert [(score.protocol, score.split) for score in ours.hpatches] == [
        ("python", "small"),
        ("matlab", "small"),
    ]
    assert ours.parameters == 433_568
    assert rootsift.dimension == 128
    assert not rootsift.ours
    assert "weights are missing" in tfeat.missing
    page = (sets / "run" / "evaluation" / "report.html").read_text()
    for title in ("Training", "Similarity maps", "Hardest errors", "HPatches"):
        assert f"{title}</h2>" in page, title


def test_the_figure_is_that_of_the_metric(sets):
    write_run(sets / "run", train="left", test=("right",))
    assert evaluate("run") == 0
    found = results(sets / "run" / "evaluation").descriptors[0].phototour[0]
    model, variables = make_model("xy", s=1, patch_size=16)
    from kjax.data.sets import read_test_sets

    (test,) = read_test_sets(["right"], progress=False)
    rows = describe(
        lambda batch: model.apply(variables, batch), test.patches, size=16, progress=False
    )
    distances = pair_distances(rows, test.pairs.first, test.pairs.second)
    assert found.fpr95 == fpr_at_recall(distances, test.pairs.matching)
    assert found.matching_pairs == found.non_matching_pairs == 30


def test_train_on_one_and_test_on_the_others(sets):
    write_run(sets / "run1", train="left")
    write_run(sets / "run2", train="right", seeds=(0, 1, 2))
    both = ("--phototour", "left", "right", "--out", "table")
    assert evaluate("run1", "run2", *both) == 0
    (row,) = results(sets / "table").descriptors
    assert [(score.train, score.test) for score in row.phototour] == [
        ("left", "right"),
        ("right", "left"),
    ]
    assert row.phototour[0].fpr95_std is None
    assert row.phototour[1].fpr95_std == 0, "three seeds, here with the same weights"


def test_seeds_are_averaged_on_hpatches(sets):
    write_run(sets / "run", train="left", seeds=(0, 1))
    assert evaluate("run", "--phototour", "--hpatches", "small") == 0
    (scores,) = results(sets / "run" / "evaluation").descriptors[0].hpatches
    assert scores.seeds == 2
    assert scores.map_std == {"verification": 0, "matching": 0, "retrieval": 0}


def test_weights_files_and_folders_of_descriptors(sets):
    _, variables = make_model("hardnet", patch_size=16)
    save_variables(sets / "weights.npz", variables)
    entry = find_entry("weights.npz")
    assert entry.name == "hardnet N=16"
    from kjax.data.hpatches import read_hpatches

    described = describe_sequences(
        lambda patches: entry.members[0].describe(patches, progress=False),
        read_hpatches(sets / "small", progress=False),
    )
    write_descriptors(described, sets / "csv", progress=False)
    assert evaluate("weights.npz", "csv", "--hpatches", "small", "--phototour", "--out", "o") == 0
    from_weights, from_csv = results(sets / "o").descriptors
    assert dataclasses.replace(from_csv.hpatches[0]) == from_weights.hpatches[0]
    # Without patches the descriptors alone can still be scored, a last line break or not.
    reference = sets / "csv" / "i_one" / "ref.csv"
    reference.write_text(reference.read_text().rstrip("\n"))
    assert evaluate("csv", "--out", "alone") == 0
    assert results(sets / "alone").descriptors[0].hpatches[0].sequences == 2


def test_descriptors_as_they_would_be_stored(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    save_variables("weights.npz", make_model("hardnet", patch_size=16)[1])
    words = ("weights.npz", "weights.npz:hardnet,patch_size=16:uint8", "weights.npz:binary")
    entries = [find_entry(word) for word in words]
    patches = random_patches(rng, 6, 16)
    whole, in_bytes, in_bits = (
        entry.members[0].describe(patches, progress=False) for entry in entries
    )
    assert [entry.name for entry in entries[1:]] == ["hardnet N=16, uint8", "hardnet N=16, binary"]
    assert [entry.distance for entry in entries] == ["L2", "L2", "L1"]
    assert len({entry.members[0].identity for entry in entries}) == 3
    np.testing.assert_array_equal(in_bytes, kjax.quantize(whole, "uint8"))
    np.testing.assert_array_equal(in_bits, np.unpackbits(kjax.quantize(whole, "binary"), axis=1))
    for word, complaint in (
        ("weights.npz:64", "descriptors of 128 numbers, not 64"),
        ("rootsift:64", "only kjax's own weights have shorter forms"),
        ("orb:binary", "cannot become binary"),
    ):
        with pytest.raises(InputError, match=complaint):
            find_entry(word)


def save_with_head_times(factor, path):
    _, variables = make_model("xy", s=1, patch_size=16)
    head = {name: leaf * factor for name, leaf in variables["params"]["head"].items()}
    save_variables(path, {**variables, "params": {**variables["params"], "head": head}})


def test_broken_descriptors_are_warned_of_and_not_scored(sets):
    save_with_head_times(0.0, sets / "broken.npz")
    where = ("--phototour", "left", "--hpatches", "small", "--out", "o")
    assert evaluate("broken.npz:xy,s=1,patch_size=16", *where) == 0
    (row,) = results(sets / "o").descriptors
    assert row.phototour == []
    assert row.hpatches == []
    assert len(row.warnings) == 2
    assert all("all descriptors are the" in warning for warning in row.warnings)


def test_weights_that_are_not_finite_are_refused_by_name(sets, capsys):
    save_with_head_times(np.nan, sets / "broken.npz")
    assert evaluate("broken.npz:xy,s=1,patch_size=16", "--phototour", "left", "--out", "o") == 2
    assert "broken.npz: the checkpoint does not fit: head.weight is not finite" in (
        capsys.readouterr().err
    )
    assert not (sets / "o").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rootsfit"], "unknown rival 'rootsfit': did you mean 'rootsift'?"),
        (["no/such/run"], "is no workdir, weights file"),
        (["small"], "neither a workdir (no config.json) nor a folder of descriptors"),
        (["sift", "--rule", "mine"], "unknown FPR rule 'mine'"),
        (["sift", "--phototour", "nowhere"], "nowhere"),
        (["sift", "--splits", "a"], "give --hpatches FOLDER too"),
        (["sift", "--hpatches", "small", "--splits", "z"], "unknown HPatches split 'z'"),
        (["sift", "--hpatches", "small", "--splits", "a"], "lacks"),
        (["sift", "--hpatches", "small", "--protocols", "pyton"], "did you mean 'python'?"),
        (["sift", "--hpatches", "left"], "holds no sequence"),
        (["sift", "--phototour"], "nothing to evaluate on"),
        (["tfeat", "--weights", "tfeat"], "--weights takes RIVAL=FILE"),
        (["tfeat", "--weights", "tfeat=none.params"], "no such file: none.params"),
        (["several.npz"], "fits several heads"),
        (["several.npz:xy,t=1"], "give the head, then s=… and patch_size=…"),
        (["several.npz:xz"], "unknown head 'xz'"),
    ],
)
def test_bad_input_is_one_line(sets, capsys, words, message):
    save_variables(sets / "several.npz", make_model("sum", patch_size=16)[1])
    assert evaluate(*words, "--out", "o") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (sets / "o" / "results.json").exists()


def test_what_the_names_of_weights_tell(sets):
    save_variables(sets / "star.npz", make_model("combined_star", s=2, patch_size=16)[1])
    assert find_entry("star.npz").name == "combined_star s=2"
    save_variables(sets / "polar.npz", make_model("polar", s=1, patch_size=16)[1])
    assert find_entry("polar.npz:polar,s=1,patch_size=16").name == "polar s=1 N=16"
    with pytest.raises(InputError, match="fits several heads"):
        find_entry("polar.npz")


def test_descriptors_as_files_for_the_official_toolbox(sets):
    out = sets / "csv" / "RootSIFT"
    assert describe_patches(Path("small"), "rootsift", out) == 2
    (out / "i_one" / "e1.csv").unlink()
    untouched = out / "v_two" / "ref.csv"
    before = untouched.stat().st_mtime_ns
    describe_patches(Path("small"), "rootsift", out)
    assert untouched.stat().st_mtime_ns == before, "finished sequences are skipped"
    where = ("--hpatches", "small", "--phototour", "--out", "o")
    assert evaluate("rootsift", "csv/RootSIFT", *where) == 0
    direct, from_files = results(sets / "o").descriptors
    assert direct.hpatches == from_files.hpatches
    with pytest.raises(InputError, match="was made by rootsift: overwrite"):
        describe_patches(Path("small"), "sift", out)
    describe_patches(Path("small"), "sift", out, overwrite=True)
    assert untouched.stat().st_mtime_ns != before
    (out / "kjax-describe-patches.json").unlink()
    with pytest.raises(InputError, match="does not say what made it: overwrite"):
        describe_patches(Path("small"), "sift", out)


@pytest.mark.parametrize(
    ("source", "weights", "message"),
    [
        ("tfeat", None, "weights are missing"),
        ("hardnet", None, "give --weights hardnet=FILE"),
        ("hardnet", "bad.pth", "bad.pth"),
        ("hardnet", "hardnet=bad.pth", "bad.pth"),
        ("hardnet", "gone.pth", "no such file: gone.pth"),
        ("best", "bad.pth", "is not one: omit them"),
    ],
)
def test_refused_sources_of_descriptor_files(source, weights, message, sets):
    (sets / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(InputError, match=message):
        describe_patches(Path("small"), source, Path("no"), weights=weights)
