"""The benchmark of extents."""

import re

import numpy as np
from models import make_model
from scripts import BENCHMARKS, load_script

from kjax.data.phototour import PatchSet
from kjax.weights.files import save_variables


def test_table_of_extents(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(40, 200, (10, 16, 16)), np.ones((1, 4, 4), int))
    patches = np.concatenate([coarse, coarse + 10, coarse + 20]).astype(np.uint8)
    patch_set = PatchSet("coarse", patches, np.tile(np.arange(10), 3), tmp_path)
    save_variables(tmp_path / "weights.npz", make_model("sum", s=1, patch_size=16)[1])
    script = load_script(BENCHMARKS / "extent.py")
    monkeypatch.setattr(script, "embedded_test", lambda: (patch_set, None))
    weights = f"{tmp_path / 'weights.npz'}:sum,patch_size=16"
    assert script.main([weights, "--extents", "6", "12"]) == 0
    *_, six, whole = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\| .*:sum,patch_size=16 \| 6 \| [\d.]+ \| [\d.]+ \|", six)
    assert " | 12 | 100.0 | " in whole
    assert script.main([weights, "--extents", "13"]) == 2
    assert "between 0 and 12" in capsys.readouterr().err
