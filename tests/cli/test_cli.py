"""The command line: help, refusals, interrupts. Tables of refusals run in one process."""

import argparse
import json
import subprocess
import sys
from typing import get_args

import jax
import numpy as np
import pytest
from models import make_model
from PIL import Image
from scripts import run_python

from kjax.cli import COMMANDS, main, make_parser
from kjax.weights.files import save_variables


@pytest.fixture(autouse=True)
def keep_the_precision():
    """`kjax compare` switches its process to 64 bits; other tests keep theirs."""
    yield
    jax.config.update("jax_enable_x64", False)


def test_fourteen_commands():
    first = ["match", "describe", "colmap", "tune", "train", "eval", "build-patches"]
    last = ["build-views", "train-detector", "train-matcher", "compare", "download", "info"]
    assert list(COMMANDS) == [*first, *last, "export"]


@pytest.mark.parametrize("arguments", [[], ["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help(arguments, capsys):
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "usage: kjax" in text
    assert max(map(len, text.splitlines())) <= 100
    if "train" in arguments:
        options = ("config", "out", "coordinator", "processes", "process", "distributed")
        assert all(f"  --{option} " in text for option in options)
        assert "--config.group.field=value" in text


def test_every_option_is_explained_and_shows_its_default():
    subparsers = argparse._SubParsersAction
    (commands,) = (one for one in make_parser()._actions if isinstance(one, subparsers))
    for name, parser in commands.choices.items():
        for action in parser._actions:
            assert action.help, (name, action.dest)
            if action.default not in (None, False, argparse.SUPPRESS):
                assert "(default: " in action.help, (name, action.dest)


def test_choices_are_those_of_the_library():
    from kjax.cli import compare, download, export, match, options
    from kjax.data.cutting.keypoints import DETECTORS
    from kjax.data.download import ADDRESSES
    from kjax.export.files import ONNX, STABLEHLO
    from kjax.export.matcher_slots import Program
    from kjax.images.collection.pairs import PairSelection
    from kjax.images.features import MatchingMethod
    from kjax.images.geometry import Choice
    from kjax.model import HEADS
    from kjax.model.quantization import FORMS
    from kjax.weights.files import SUFFIXES

    assert all(name.rpartition("SIFT")[2] in options.DETECTOR for name in DETECTORS)
    assert options.SHARED["--quantize"][0] == tuple(FORMS)
    assert get_args(MatchingMethod) == match.METHODS
    assert tuple(match.GEOMETRIES) == (*get_args(Choice), "essential")
    assert get_args(PairSelection) == COMMANDS["colmap"].PAIRS
    assert set(compare.HEADS) == set(HEADS)
    assert set(download.NAMES) == set(ADDRESSES)
    assert set(export.FUNCTIONS) == {ONNX, STABLEHLO}
    assert get_args(Program) == export.PROGRAMS
    assert set(export.WEIGHTS) == set(SUFFIXES)


COMPARED = ("compare", "--head", "sum", "--patch-size", "8", "--steps", "2", "--pairs", "3")


@pytest.mark.slow
def test_compare_prints_a_table_and_a_verdict(capsys):
    pytest.importorskip("torch")
    assert main(COMPARED) == 0
    table = capsys.readouterr().out
    rows = ("layer features.16", "gradient features.0.weight", "running statistics after 2 steps")
    for expected in ("float32", "float64", *rows, "18 of 18 rows within their limits"):
        assert expected in table


@pytest.mark.slow
def test_compare_fails_when_the_two_differ(capsys, monkeypatch):
    pytest.importorskip("torch")
    from kjax.parity.torch_reference import TorchDescriptor

    norm = TorchDescriptor.input_norm
    monkeypatch.setattr(TorchDescriptor, "input_norm", staticmethod(lambda x: 1.001 * norm(x)))
    assert main(COMPARED) == 1
    assert "too large" in capsys.readouterr().out


MATCH = ("match", "a.png", "a.png")
DESCRIBE = ("describe", "photos", "--out", "f")
EXPORT = ("export", "xy.npz:xy,s=1", "--out")
MATCHER = ("export", "best", "--part", "matcher", "--out")
VIEWS = ("build-views", "--out", "v.npz", "photos")
PATCHES = ("build-patches", "--out", "o", "--photos")
WITHOUT_JAX = [
    (("mtach", "a.png"), "kjax: unknown command 'mtach': did you mean 'match'? "),
    (("match", "no.jpg", "no.jpg"), "no such file: no.jpg"),
    (("match", "a.png", "photos"), "photos is a folder: give a photograph"),
    (("match", "text.jpg", "text.jpg"), "text.jpg"),
    ((*MATCH, "--weights", "bst"), "did you mean 'best'"),
    ((*MATCH, "--weights", "nope.npz"), "nope.npz: no such file"),
    ((*MATCH, "--out", "m.xyz"), "m.xyz: unsupported file type: use .png, .jpg, .jpeg, .html"),
    ((*MATCH, "--out", "nowhere/m.png"), "there is no folder nowhere"),
    ((*MATCH, "--out", "folder.png"), "folder.png is a folder"),
    ((*MATCH, "--save", "m.txt"), "--save: m.txt: unsupported file type: use .npz, .h5, .hdf5"),
    ((*MATCH, "--align", "--repeated"), "omit --repeated"),
    ((*MATCH, "--align", "--save", "m.h5"), "has no keypoints for --align: save .npz"),
    ((*MATCH, "--aside", "--save", "m.h5"), "has no keypoints for --aside: save .npz"),
    ((*MATCH, "--matcher", "mutal"), "unknown matcher 'mutal': did you mean 'mutual'?"),
    ((*MATCH, "--ratio", "0"), "--ratio: must be above 0 and at most 1, not 0"),
    ((*MATCH, "--ratio", "nan"), "not nan"),
    ((*MATCH, "--threshold", "-1"), "--threshold: must be above 0, not -1"),
    ((*MATCH, "--keypoints", "0"), "--keypoints: must be at least 1, not 0"),
    ((*MATCH, "--keypoints", "x"), "--keypoints: invalid integer value: 'x'"),
    (("describe", "no", "--out", "f"), "no such file, folder or pattern: no"),
    ((*DESCRIBE, "--weights", "w.pth"), "w.pth: no such file"),
    ((*DESCRIBE, "--format", "colmap", "--quantize", "uint8"), "omit --quantize"),
    (("describe", "photos", "--out", "nowhere/f.h5"), "there is no folder nowhere"),
    (("describe", "photos", "a.png", "--out", "f.npz"), "f.npz holds one photograph: give"),
    (("describe", "photos", "--out", "a.png"), "a.png is a file, not a folder"),
    (("describe", "photos", "--out", "a.png/f"), "a.png is a file, not a folder"),
    (("colmap", "no", "--out", "f"), "no such folder: no"),
    (("colmap", "a.png", "--out", "f"), "a.png is a file: give a folder"),
    (("colmap", "photos", "--out", "f", "--weights", "bst"), "did you mean 'best'"),
    (("colmap", "photos", "--out", "f", "--matcher", "ratio"), "unknown matcher 'ratio'"),
    (("tune", "no", "--out", "f"), "no such folder: no"),
    (("tune", "photos", "--weights", "bst", "--out", "f"), "did you mean 'best'"),
    (("tune", "photos", "--out", "f", "--colmap", "m"), "--colmap and --database go together"),
    (("build-views", "photos"), "give --out FILE.npz, or --write-views DIR"),
    (("build-views", "photos", "--out", "v.h5"), "unsupported file type: use .npz"),
    (("build-views", "photos", "--out", "v.npz", "--rotation", "200"), "at most 180, not 200"),
    (("build-views", "photos", "--write-views", "v", "--out", "v.npz"), "goes without --out"),
    (("build-views", "photos", "--features", "no.h5", "--out", "v.npz"), "no such file: no.h5"),
    ((*VIEWS, "--features", "a.h5", "--colmap", "m"), "exactly one folder, written by --write-"),
    ((*VIEWS, "photos", "--colmap", "m"), "--colmap needs exactly one folder"),
    (("build-patches", "--colmap", "m", "--out", "o"), "needs --database and --images too"),
    ((*PATCHES, "p", "--images", "i"), "go with --colmap, not with --photos"),
    ((*PATCHES, "p", "--max-turn", "-1"), "must be at least 0"),
    ((*PATCHES, "p", "--views", "0"), "must be at least 1"),
    ((*PATCHES, "p", "--max-side", "9"), "must be at least"),
    ((*PATCHES, "no"), "no such folder: no"),
    (("build-patches", "--photos", "no", "--out", "a.png/o"), "a.png is a file, not a folder"),
    (("compare", "--pairs", "1"), "--pairs: must be at least 2, not 1"),
    (("export", "bst", "--out", "a.onnx"), "did you mean 'best'"),
    ((*EXPORT, "xy.onx"), "unsupported file type: use .onnx"),
]
WITH_JAX = [
    (("info", "nowhere.npz"), "no such file"),
    (("info", "nowhere.onnx"), "No such file or directory: nowhere.onnx"),
    (("info", "nowhere"), "workdir or a weights file"),
    (("info", "."), "is not the folder of a run"),
    (("info", "xy.npz:hardnet"), "does not fit"),
    (("compare", "--weights", "nowhere.pth"), "no such file"),
    (("export", "xy.npz", "--out", "xy.onnx"), "fits several heads, xy and polar"),
    ((*EXPORT, "xy.pth", "--input", "uint8"), "--input is only for"),
    ((*EXPORT, "xy.npz", "--batch", "8"), "--batch is only for"),
    (("export", "hardnet", "--out", "h.onnx", "--keypoints", "2"), "--keypoints is only for"),
    ((*MATCHER, "m.pth"), "matchers are exported to .onnx or"),
    ((*MATCHER, "m.onnx", "--batch", "2"), "--batch is only for"),
    ((*MATCHER, "m.stablehlo", "--for", "colmap"), "--for is only for matchers as .onnx"),
    ((*MATCHER, "m.onnx", "--for", "opencv", "--keypoints", "2"), "any number of keypoints"),
]

ALL_AT_ONCE = """
import sys
sys.modules["jax"] = None
import contextlib, io, json
from kjax.cli import main
ended = []
for argv in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(argv)
    ended.append((code, said.getvalue()))
print(json.dumps(ended))
"""


@pytest.fixture
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "photos").mkdir()
    (tmp_path / "folder.png").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32), np.uint8)
    for name in ("a.png", "photos/a.png"):
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "a.h5").touch()
    save_variables(tmp_path / "xy.npz", make_model("xy")[1])
    return tmp_path


def check_refusal(argv, message, code, said):
    command = f"kjax {argv[0]}: " if argv and argv[0] in COMMANDS else "kjax: "
    assert code == 2, (argv, said)
    assert message in said, (argv, said)
    assert said.startswith(command), (argv, said)
    assert said.count("\n") == 1, (argv, said)


def test_refusals_need_no_jax_and_leave_nothing(inside):
    pytest.importorskip("cv2")
    before = sorted(inside.rglob("*"))
    given = json.dumps([argv for argv, _ in WITHOUT_JAX])
    words = [sys.executable, "-c", ALL_AT_ONCE]
    ended = subprocess.run(words, input=given, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout)
    for (argv, message), (code, said) in zip(WITHOUT_JAX, results, strict=True):
        check_refusal(argv, message, code, said)
    assert sorted(inside.rglob("*")) == before


@pytest.mark.parametrize(("argv", "message"), WITH_JAX)
def test_refusals_of_contents_leave_nothing(argv, message, inside, capsys):
    pytest.importorskip("onnx")
    before = sorted(inside.rglob("*"))
    code = main(argv)
    check_refusal(argv, message, code, capsys.readouterr().err)
    assert sorted(inside.rglob("*")) == before


INTERRUPTED = """
import runpy, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv = ["kjax", "match", "a.png", "a.png"]
runpy.run_module("kjax", run_name="__main__")
"""


def test_an_interrupt_during_imports_is_one_line(inside):
    for module, program in (("kjax.cli.match", "kjax"), ("PIL", "kjax match")):
        ended = run_python(INTERRUPTED.format(module=module))
        assert (ended.returncode, ended.stderr) == (130, f"{program}: interrupted\n")


LOST = """
import gc, signal, sys, time
from kjax import cli
def collecting(phase, info):
    if phase == "start":
        gc.callbacks.clear()
        signal.raise_signal(signal.SIGINT)
def work(args):
    gc.callbacks.append(collecting)
    gc.collect()
    time.sleep(20)
cli.info.run = work
sys.argv = ["kjax", "info"]
sys.exit(cli.main())
"""


def test_an_interrupt_inside_a_callback_of_the_garbage_collector_is_not_lost():
    ended = run_python(LOST)
    assert (ended.returncode, ended.stderr) == (130, "kjax info: interrupted\n")
