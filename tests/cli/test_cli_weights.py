"""`kjax info` and `export`, on weights files and on the folders of runs."""

import json
import re
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model
from refusals import refused_command

import kjax
from kjax.cli import main
from kjax.export.model import load_exported
from kjax.extras import EXTRAS
from kjax.runs.checkpoint import Checkpoints
from kjax.runs.config import load_config, validate
from kjax.train.run import make_program
from kjax.train.step import create_state
from kjax.weights.files import load_variables, save_variables

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.py"


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def printed(capsys, *arguments) -> dict[str, str]:
    """What a successful command printed: texts by label."""
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    return {label.strip(): text for label, _, text in (line.partition("  ") for line in lines)}


def facts(capsys, source) -> dict[str, str]:
    return {label: text.strip() for label, text in printed(capsys, "info", source).items()}


def write_run(workdir, *, seeds=()):
    """The folder of a run that has just started; its config."""
    config = load_config(SMOKE).to_dict()
    config["model"] |= {"head": "polar", "s": 1, "patch_size": 16, "dtype": "bfloat16"}
    config["data"] |= {"train": ["sets/left", "sets/right"], "test": ["sets/middle"]}
    config["train"] |= {"steps": 1500}
    config |= {"seed": 4, "seeds": list(seeds)}
    Path(workdir).mkdir()
    Path(workdir, "config.json").write_text(json.dumps(config))
    return config


def finish_run(workdir, scores, *, seeds=()):
    _, variables = make_model("polar", patch_size=16)
    for i, name in enumerate([f"weights_{seed}.npz" for seed in seeds] or ["weights.npz"]):
        shifted = jax.tree.map(lambda leaf, i=i: leaf + 0.01 * i, variables)
        save_variables(Path(workdir, name), shifted)
    Path(workdir, "results.json").write_text(json.dumps(scores))
    return variables


def test_info_about_weights(capsys):
    save_variables("hardnet.pth", make_model("hardnet", patch_size=16)[1])
    assert facts(capsys, "hardnet.pth") == {
        "head": "hardnet",
        "patch size": "16",
        "dimension": "128",
        "parameters": f"{285_984 + 16 * 128 * 128:,}, 2.2 MB as float32",
        "load": 'kjax.load("hardnet.pth"), or --weights hardnet.pth',
    }
    save_variables("polar.npz", make_model("polar")[1])
    found = facts(capsys, "polar.npz")
    assert (found["head"], found["s"]) == ("xy or polar", "1")
    assert found["patch size"].startswith("any multiple of 4")
    found = facts(capsys, "polar.npz:polar,s=1,patch_size=64")
    assert (found["head"], found["patch size"]) == ("polar", "64")


def test_info_about_a_finished_run(capsys):
    write_run("run")
    finish_run("run", {"fpr95/middle": 0.0123, "fpr95": 0.0123, "other": 1.0})
    expected = {"head": "polar", "s": "1", "patch size": "16", "trained on": "left, right"}
    expected |= {"precision": "bfloat16", "steps": "1,500", "seed": "4", "FPR@95": "middle 1.23 %"}
    assert expected.items() <= facts(capsys, "run").items()
    Path("run/results.json").write_text("[")
    assert main(["info", "run"]) == 0
    assert "results.json is damaged" in capsys.readouterr().out


def test_info_about_a_run_that_is_going_on(capsys):
    program = make_program(validate(write_run("run")))
    _, variables = make_model("polar", patch_size=16)
    state = create_state(program.optimizer, variables).replace(step=jnp.int32(20))
    checkpoints = Checkpoints(Path("run/checkpoints").absolute(), keep=2, best_metric=None)
    checkpoints.save(20, state)
    checkpoints.close()
    found = facts(capsys, "run")
    assert found["steps"] == "20 of 1,500"
    assert "FPR@95" not in found


def test_several_seeds(capsys):
    write_run("run", seeds=(3, 5))
    variables = finish_run("run", {"fpr95/a": 0.05, "fpr95/a_std": 0.01}, seeds=(3, 5))
    found = facts(capsys, "run")
    assert (found["seed"], found["FPR@95"]) == ("3, 5", "a 5.00 ± 1.00 %")
    printed(capsys, "export", "run", "--out", "five.npz", "--seed", "5")
    found = load_variables("five.npz")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b + 0.01, rtol=1e-6), found, variables)
    for arguments, message in (
        (["export", "run", "--out", "a.npz"], "has the seeds 3, 5: choose one with --seed"),
        (["export", "run", "--out", "a.npz", "--seed", "4"], "no seed 4: choose from 3, 5"),
        (["export", "five.npz", "--out", "a.npz", "--seed", "5"], "only workdirs have seeds"),
    ):
        assert message in refused_command(capsys, *arguments)


def test_conversions_there_and_back(capsys):
    pytest.importorskip("torch")
    _, variables = make_model("combined", patch_size=16)
    save_variables("first.npz", variables)
    assert main(["export", "first.npz", "--out", "second.pth"]) == 0
    assert capsys.readouterr().out == "wrote second.pth: weights of combined s=1\n"
    assert main(["export", "second.pth:combined,s=1", "--out", "third.safetensors"]) == 0
    assert main(["export", "third.safetensors", "--out", "fourth.npz"]) == 0
    jax.tree.map(np.testing.assert_array_equal, load_variables("fourth.npz"), variables)


def test_export_of_a_run_and_info_about_it(capsys, rng):
    pytest.importorskip("onnxruntime")
    write_run("run")
    variables = finish_run("run", {"fpr95/middle": 0.0123})
    assert main(["export", "run", "--out", "deep/polar.onnx", "--input", "uint8"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("wrote deep/polar.onnx: polar s=1 N=16, 1.7 MB, within ")
    assert line.endswith(" of JAX\n")
    assert main(["export", "run", "--out", "fixed.onnx", "--batch", "2"]) == 0
    capsys.readouterr()
    assert facts(capsys, "fixed.onnx")["input"] == "patches: float32[2, 16, 16]"
    assert main(["export", "run", "--out", "bytes.onnx", "--dtype", "int8"]) == 0
    assert Path("bytes.onnx").stat().st_size < Path("fixed.onnx").stat().st_size / 2
    capsys.readouterr()
    assert facts(capsys, "bytes.onnx")["dtype"] == "int8"
    error = refused_command(capsys, "export", "run", "--out", "a.stablehlo", "--dtype", "int8")
    assert "--dtype is only for descriptors as .onnx" in error
    found = facts(capsys, "deep/polar.onnx")
    assert (found["trained on"], found["FPR@95"]) == ("left, right", "middle 1.23 %")
    assert found["input"] == "patches: uint8[batch, 16, 16]"
    model, _ = make_model("polar", patch_size=16)
    patches = rng.integers(0, 256, (3, 16, 16), np.uint8)
    expected = model.apply(variables, patches)
    np.testing.assert_allclose(load_exported("deep/polar.onnx")(patches), expected, atol=1e-5)


def test_every_optional_module_belongs_to_an_extra():
    project = tomllib.loads((SMOKE.parents[1] / "pyproject.toml").read_text())["project"]
    distributions = {"cv2": "opencv-contrib-python-headless", "skimage": "scikit-image"}
    for module, extra in EXTRAS.items():
        name = distributions.get(module, module.replace("_", "-"))
        packages = [re.split("[>=]", text)[0] for text in project["optional-dependencies"][extra]]
        assert name in packages, (module, extra)
    for path in Path(kjax.__file__).parent.rglob("*.py"):
        for module in re.findall(r'\brequire\(\s*"(\w+)', path.read_text()):
            assert module in EXTRAS, (module, path)


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("onnx", ["export", "hardnet", "--out", "out.onnx"]),
        ("onnx", ["info", "some.onnx"]),
        ("onnxruntime", ["export", "hardnet", "--out", "out.onnx"]),
        ("flatbuffers", ["export", "hardnet", "--out", "out.stablehlo"]),
        ("flatbuffers", ["info", "some.stablehlo"]),
        ("safetensors", ["export", "hardnet", "--out", "out.safetensors"]),
        ("safetensors", ["export", "some.safetensors", "--out", "out.npz"]),
        ("safetensors", ["info", "some.safetensors"]),
        ("torch", ["export", "hardnet", "--out", "out.pth"]),
        ("torch", ["info", "some.pth"]),
        ("torch", ["compare"]),
    ],
)
def test_missing_packages_are_one_line(missing, arguments, capsys, tmp_path, monkeypatch):
    if missing == "onnxruntime":
        pytest.importorskip("onnx")
    loaded = [name for name in sys.modules if name.startswith(f"{missing}.")]
    for name in (missing, *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    for word in arguments:
        if word.startswith("some."):
            Path(word).write_bytes(b"")
    extra = "torch" if missing == "torch" else "export"
    message = f" needs {missing}: pip install 'kjax[{extra}]'\n"
    assert refused_command(capsys, *arguments).endswith(message)
    assert not [path for path in tmp_path.iterdir() if "some" not in path.name]
