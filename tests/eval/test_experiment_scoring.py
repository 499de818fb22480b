"""What sweeps score on the device is what `run_eval.py` finds, patch by patch on the host."""

import pytest
from evaluation_data import write_hpatches, write_test_set
from models import make_model

from kjax.data.test_sets import read_test_sets
from kjax.eval import describe
from kjax.eval.contenders import find_contender
from kjax.eval.hpatches_benchmark import open_benchmark
from kjax.eval.run import Options, run
from kjax.experiments import scoring
from kjax.interop import save_variables


def test_sweeps_and_evaluations_find_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "preferred_batch", lambda: 32)
    monkeypatch.setattr(describe, "preferred_batch", lambda: 32)
    model, variables = make_model("sum", s=1, patch_size=16)
    save_variables(tmp_path / "weights.npz", variables)
    sets = read_test_sets([str(write_test_set(tmp_path / "pairs"))], progress=False)
    benchmark = open_benchmark(
        write_hpatches(tmp_path / "sequences"), protocols=("python", "matlab"), progress=False
    )
    evaluation, _ = run(
        [find_contender(f"{tmp_path / 'weights.npz'}:sum,patch_size=16")],
        sets,
        benchmark,
        title="",
        command="",
        options=Options(cache_dir=tmp_path / "cache", progress=False),
    )
    (found,) = evaluation.descriptors
    expected = {f"fpr95/{found.phototour[0].test}": found.phototour[0].fpr95}
    for scores in found.hpatches:
        expected |= scoring.hpatches_metrics(scores)
    tests = scoring.Tests(sets=sets, benchmark=benchmark)
    assert scoring.Scorer(tests).score(model, variables) == pytest.approx(expected, abs=1e-6)
    assert "hpatches/sequences/matlab/retrieval/tough" in expected
