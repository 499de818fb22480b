"""The whole program: from sources of every kind to results, report and exit code."""

import functools

import numpy as np
import pytest
from evaluation_data import write_hpatches, write_run, write_test_set
from models import make_model
from PIL import Image

from kjax.cli import main
from kjax.data.sets import read_test_sets
from kjax.eval.results import Evaluation
from kjax.metrics import fpr_at_recall, pair_distances
from kjax.model.describe import describe
from kjax.weights.files import save_variables


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Test sets, a small HPatches and models; nothing writes here."""
    folder = tmp_path_factory.mktemp("data")
    write_test_set(folder / "left", seed=0)
    write_test_set(folder / "right", seed=1)
    write_hpatches(folder / "small")
    write_run(folder / "run", train="left", test=(str(folder / "right"),))
    write_run(folder / "seeds", train="right", seeds=(0, 1))
    save_variables(folder / "several.npz", make_model("sum", patch_size=16)[1])
    for name, factor in (("flat.npz", 0.0), ("nan.npz", np.nan)):
        _, variables = make_model("xy", s=1, patch_size=16)
        head = {key: leaf * factor for key, leaf in variables["params"]["head"].items()}
        changed = {**variables, "params": {**variables["params"], "head": head}}
        save_variables(folder / name, changed)
    return folder


@pytest.fixture
def evaluate(data, monkeypatch, tmp_path, tmp_path_factory):
    """Run the program in the folder of the data, with the report in `tmp_path`."""
    monkeypatch.chdir(data)
    monkeypatch.setenv("KJAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))

    def run(*arguments):
        code = main(["eval", "--quiet", "--out", str(tmp_path), *arguments])
        file = tmp_path / "results.json"
        return code, Evaluation.from_json(file.read_text()).descriptors if file.exists() else None

    return run


@pytest.mark.slow
def test_runs_and_baselines_on_everything(evaluate, data, tmp_path, capsys):
    protocols = ("--protocols", "python", "matlab")
    code, rows = evaluate("run", "rootsift", "tfeat", "--hpatches", "small", *protocols)
    assert code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("run ")
    assert f"report: {tmp_path}/report.html" in printed
    ours, rootsift, tfeat = rows
    assert [(score.train, score.test) for score in ours.phototour] == [("left", "right")]
    splits = [(score.protocol, score.split) for score in ours.hpatches]
    assert splits == [("python", "small"), ("matlab", "small")]
    assert (ours.ours, ours.parameters) == (True, 433_568)
    assert (rootsift.ours, rootsift.dimension) == (False, 128)
    assert "weights are missing" in tfeat.missing
    page = (tmp_path / "report.html").read_text()
    for title in ("Training", "Similarity maps", "Hardest errors", "HPatches"):
        assert f"{title}</h2>" in page, title
    # The score is that of the metric.
    model, variables = make_model("xy", s=1, patch_size=16)
    (test,) = read_test_sets([str(data / "right")], progress=False)
    apply = functools.partial(model.apply, variables)
    descriptors = describe(apply, test.patches, size=16, progress=False)
    distances = pair_distances(descriptors, test.pairs.first, test.pairs.second)
    assert ours.phototour[0].fpr95 == fpr_at_recall(distances, test.pairs.matching)


def test_train_on_one_set_and_test_on_the_others(evaluate):
    words = ("--phototour", "left", "right", "--hpatches", "small")
    _, (row, *by_run) = evaluate("run", "seeds", *words)
    scores = [(score.train, score.test) for score in row.phototour]
    assert scores == [("left", "right"), ("right", "left")]
    assert [score.fpr95_std for score in row.phototour] == [None, 0]
    # HPatches' tables have no column for the training set.
    assert row.name == "run + seeds"
    assert [one.name for one in by_run] == ["run", "seeds"]
    (mean,) = by_run[1].hpatches
    assert mean.seeds == 2
    assert mean.map_std == {"verification": 0, "matching": 0, "retrieval": 0}


def test_degenerate_descriptors_are_not_scored(evaluate, capsys):
    name = "flat.npz:xy,s=1,patch_size=16"
    _, (row,) = evaluate(name, "--phototour", "left", "--hpatches", "small")
    assert (row.phototour, row.hpatches) == ([], [])
    assert len(row.warnings) == 2
    assert all("all descriptors are the" in warning for warning in row.warnings)
    assert "warning: left: all descriptors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rootsfit"], "unknown descriptor 'rootsfit': did you mean 'rootsift'?"),
        (["no/such/run"], "is not a workdir, a weights file"),
        (["small"], "neither a workdir (no config.json) nor a folder of descriptors"),
        (["sift", "--phototour", "nowhere"], "nowhere"),
        (["sift", "--splits", "a"], "give --hpatches FOLDER too"),
        (["sift", "--hpatches", "small", "--splits", "z"], "unknown HPatches split 'z'"),
        (["sift", "--hpatches", "small", "--splits", "a"], "lacks"),
        (["sift", "--hpatches", "small", "--protocols", "pyton"], "did you mean 'python'?"),
        (["sift", "--hpatches", "left"], "holds no sequence"),
        (["sift", "--phototour"], "nothing to evaluate on"),
        (["tfeat", "--baseline", "tfeat"], "--baseline takes NAME=FILE"),
        (["tfeat", "--baseline", "tfeat=none.params"], "no such file: none.params"),
        (["several.npz"], "fits several heads"),
        (["several.npz:xy,t=1"], "give the head, then s=… and patch_size=…"),
        (["several.npz:xz"], "unknown head 'xz'"),
        (["nan.npz:xy,s=1,patch_size=16"], "nan.npz: the checkpoint does not fit: head."),
        (["sift", "--descriptors", "csv"], "--descriptors needs patches"),
        (["tfeat", "--hpatches", "small", "--descriptors", "csv"], "weights are missing"),
        (["seeds", "--hpatches", "small", "--descriptors", "csv"], "has 2 sets of weights"),
        (["sift", "--similarity-maps", "maps.png"], "SIFT has no similarity maps"),
    ],
)
def test_bad_input_is_one_line(evaluate, capsys, words, message):
    assert evaluate(*words) == (2, None)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_csv_files_for_the_official_toolbox(evaluate, tmp_path, capsys):
    out = tmp_path / "csv"
    command = ("--hpatches", "small", "--descriptors", str(out))
    assert evaluate("rootsift", *command)[0] == 0
    assert capsys.readouterr().out == f"wrote {out}: 2 sequences of RootSIFT\n"
    (out / "i_one" / "e1.csv").unlink()
    finished = out / "v_two" / "ref.csv"
    before = finished.stat().st_mtime_ns
    assert evaluate("rootsift", *command)[0] == 0
    assert finished.stat().st_mtime_ns == before, "finished sequences are skipped"
    _, (direct, from_files) = evaluate("rootsift", str(out), "--hpatches", "small", "--phototour")
    assert direct.hpatches == from_files.hpatches
    # Without patches, ready descriptors can still be scored; the last line break may be missing.
    (out / "i_one" / "ref.csv").write_text((out / "i_one" / "ref.csv").read_text().rstrip("\n"))
    _, (alone,) = evaluate(str(out))
    assert alone.hpatches[0].sequences == 2
    for record, message in (
        (None, "was made by RootSIFT: give --overwrite"),
        (b"{", "does not say which descriptor made it: give --overwrite"),
    ):
        if record is not None:
            (out / "kjax-describe-patches.json").write_bytes(record)
        assert evaluate("sift", *command)[0] == 2
        assert message in capsys.readouterr().err
    assert evaluate("sift", *command, "--overwrite")[0] == 0
    assert finished.stat().st_mtime_ns != before


def test_similarity_maps(evaluate, tmp_path, capsys):
    out = str(tmp_path / "maps.png")
    assert evaluate("run", "several.npz:sum,patch_size=16", "--similarity-maps", out)[0] == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    with Image.open(out) as picture:
        assert picture.width > 300
