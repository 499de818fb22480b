"""How commands begin, in fresh interpreters: bad words are told without JAX, Ctrl-C is one line."""

import subprocess
import sys

import pytest

BLOCKED = """
import sys
sys.modules["jax"] = None
from kjax.cli import main
code = main(sys.argv[1:])
assert code == 2, code
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["match", "no.jpg", "no.jpg"], "no such file: no.jpg"),
        (["match", "text.jpg", "text.jpg"], "text.jpg"),
        (["match", "text.jpg", "text.jpg", "--weights", "bst"], "did you mean 'best'"),
        (["describe", "no", "--out", "f"], "no such file, folder or pattern: no"),
        (["describe", ".", "--out", "c.npz"], "features go into"),
        (["describe", ".", "--out", "f", "--weights", "w.pth"], "w.pth: no such file"),
        (["colmap", "no", "--out", "f"], "no such folder: no"),
        (["colmap", ".", "--out", "f", "--weights", "bst"], "did you mean 'best'"),
        (["export", "bst", "--to", "a.onnx"], "did you mean 'best'"),
        (["convert", "w.pth", "a.npz"], "w.pth: no such file"),
        (["tune", "no", "--out", "f"], "no such folder: no"),
        (["tune", ".", "--from", "bst", "--out", "f"], "did you mean 'best'"),
    ],
)
def test_bad_words_are_told_without_jax(words, message, tmp_path):
    (tmp_path / "text.jpg").write_text("hello")
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


INTERRUPTED = """
import runpy, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv = ["kjax", "match", "text.jpg", "text.jpg"]
runpy.run_module("kjax", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("kjax.cli.match", "kjax: interrupted\n"),
        ("kjax.images.features", "kjax match: interrupted\n"),
        ("PIL", "kjax match: interrupted\n"),
    ],
)
def test_an_interrupt_while_it_starts_is_one_line(module, line, tmp_path):
    (tmp_path / "text.jpg").write_text("hello")
    code = INTERRUPTED.format(module=module)
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 130
    assert ended.stderr == line


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
    ended = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=15)
    assert ended.returncode == 130
    assert ended.stderr == "kjax info: interrupted\n"
