"""What sweeps score, with the patches in memory, is what `run_eval.py` finds."""

from evaluation_data import write_hpatches, write_test_set
from experiments import scoring
from models import make_model

from kjax.data.sets import read_test_sets
from kjax.eval.entries import find_entry
from kjax.eval.hpatches.tasks import open_benchmark
from kjax.eval.run import score
from kjax.model import describe
from kjax.weights.files import save_variables


def test_sweeps_and_evaluations_find_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "preferred_batch", lambda: 8)
    monkeypatch.setattr(describe, "preferred_batch", lambda: 8)
    model, variables = make_model("sum", s=1, patch_size=8)
    save_variables(tmp_path / "weights.npz", variables)
    sets = read_test_sets([str(write_test_set(tmp_path / "pairs"))], progress=False)
    benchmark = open_benchmark(
        write_hpatches(tmp_path / "sequences", patches=4),
        protocols=("python", "matlab"),
        progress=False,
    )
    name = f"{tmp_path / 'weights.npz'}:sum,patch_size=8"
    entry = find_entry(name, cache_dir=tmp_path / "cache")
    found, _ = score(entry, sets, benchmark, progress=False)
    tests = scoring.Tests(sets=sets, benchmark=benchmark)
    scored = scoring.Scorer(tests).score(found.name, model, variables)
    # Resized beforehand or on the way, the patches are the same: so is everything else.
    assert scored.phototour == found.concise().phototour
    assert scored.hpatches == found.concise().hpatches
    assert {one.protocol for one in scored.hpatches} == {"python", "matlab"}
