"""`kjax bench`: what it measures, how it compares, and what it does without PyTorch or kornia."""

import importlib.util
import json
import sys

import numpy as np
import pytest
from models import make_model, random_patches
from speed import inference as inference_bench
from speed.inference import END_TO_END, IN_MEMORY, Candidate, RateRow

import kjax
from kjax.cli import bench, main
from kjax.weights.files import save_variables

TINY = ("--batches", "2", "--patches", "3", "--repeats", "1")


@pytest.fixture
def weights(tmp_path, monkeypatch) -> str:
    """A model that compiles fast."""
    monkeypatch.chdir(tmp_path)
    save_variables("weights.npz", make_model("sum", patch_size=8)[1])
    return "weights.npz:sum,patch_size=8"


def test_everyone_takes_turns_and_the_best_time_counts(monkeypatch):
    now, turns = [0.0], []
    durations = {"first": iter((50.0, 3.0, 2.0, 4.0)), "second": iter((1.0, 8.0, 9.0, 5.0))}

    def make(name: str) -> Candidate:
        def run() -> None:
            turns.append(name)
            now[0] += next(durations[name])

        return Candidate(name, "float32", IN_MEMORY, 10, 10, run)

    monkeypatch.setattr(inference_bench.time, "perf_counter", lambda: now[0])
    rows = inference_bench.measure([make("first"), make("second")], repeats=3, progress=False)
    assert turns == ["first", "second"] * 4
    # Ten patches in 2 s and in 5 s: the round that compiles, with 1 s, does not count.
    assert [row.rate for row in rows] == [5.0, 2.0]


def test_ratios_are_to_the_best_batch_in_the_same_place():
    rows = [
        RateRow("kornia HardNet", "float32", IN_MEMORY, 64, 100.0),
        RateRow("kornia HardNet", "float32", IN_MEMORY, 256, 200.0),
        RateRow("kornia HardNet", "compiled", IN_MEMORY, 256, 400.0),
        RateRow("kornia HardNet", "float32", END_TO_END, 256, 50.0),
        RateRow("kjax hardnet", "float32", IN_MEMORY, 64, 600.0),
        RateRow("kjax hardnet", "float32", END_TO_END, 64, 100.0),
    ]
    *_, in_memory, end_to_end = (ratios for _, ratios in bench.with_ratios(rows))
    assert in_memory == {"× torch float32": 3.0, "× best torch": 1.5}
    assert end_to_end == {"× torch float32": 2.0}


def test_without_kornia_the_twin_stands_in(weights, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "kornia.feature", None)
    assert main(["bench", weights, *TINY, "--json", "speed.json"]) == 0
    printed = capsys.readouterr().out
    with open("speed.json", encoding="utf-8") as file:
        report = json.load(file)
    rows = {(row["name"], row["place"]): row for row in report["rows"]}
    exported = {(f"exported {weights}", END_TO_END)} if has_onnx() else set()
    assert set(rows) == exported | {
        (name, place)
        for name in ("torch twin of HardNet", f"kjax {weights}")
        for place in (IN_MEMORY, END_TO_END)
    }
    ours = rows[f"kjax {weights}", IN_MEMORY]
    (theirs,) = (
        row["rate"]
        for row in report["rows"]
        if (row["name"], row["variant"]) == ("torch twin of HardNet", "float32")
        and row["place"] == IN_MEMORY
    )
    assert ours["× torch float32"] == pytest.approx(ours["rate"] / theirs)
    assert f"| {ours['rate']:,.0f} | {ours['× torch float32']:.2f} |" in printed
    for key in exported:
        ours = rows[f"kjax {weights}", END_TO_END]
        assert ours["× exported"] == pytest.approx(ours["rate"] / rows[key]["rate"])
    assert report["notes"] == [printed.splitlines()[-1]]
    assert "kornia is not installed" in printed


def test_without_torch_its_rows_are_left_out(weights, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", weights, *TINY]) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"| kjax {weights} |") == 2
    assert "× torch" not in printed
    assert (
        "nothing to compare with: the comparison with HardNet needs torch: pip install torch"
        in printed
    )


def has_onnx() -> bool:
    return all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))


def test_light_models_need_six_numbers_of_channels(weights, capsys):
    assert main(["bench", weights, "--no-torch", "--channels", "8,8"]) == 2
    assert "channels" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", weights, "--channels", "few"])


def test_sizes_must_be_positive(capsys):
    assert main(["bench", "--batches", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


def test_torch_describes_what_kjax_describes(rng):
    torch = pytest.importorskip("torch")
    from speed import torch_inference

    patches = random_patches(rng, 2, 32)
    _, describe = torch_inference.make_hardnet(torch_inference.ON_CPU[0], "cpu")
    theirs = describe(torch.from_numpy(patches)[:, None])
    np.testing.assert_allclose(kjax.load("hardnet").describe(patches), theirs, atol=1e-5)
