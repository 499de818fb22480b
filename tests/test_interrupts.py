"""Ctrl-C: one line, at any moment."""

import os
import signal
import sys

import pytest
from scripts import ROOT, run_python

from kjax.interrupts import hear_lost_interrupts, run_script

INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("program", ["train", "eval"])
def test_while_packages_are_imported(program):
    words = {"train": ["--config=configs/smoke.py", "--workdir=out"], "eval": ["sift"]}
    done = run_python(INTERRUPTED_IMPORT, f"run_{program}.py", *words[program], cwd=ROOT)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith(f"kjax {program}: interrupted")
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("hint", ["", ": run it again"])
def test_while_working(hint, monkeypatch, capfd):
    """In one go: no thread and no second Ctrl-C has a chance to add its traceback."""
    asked = []

    def work(words):
        asked.extend(words)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(sys, "argv", ["benchmarks/pairs.py", "photos"])
    with pytest.raises(SystemExit) as ended:
        run_script(work, hint)
    assert (ended.value.code, asked) == (130, ["photos"])
    assert capfd.readouterr().err == f"pairs: interrupted{hint}\n"


def test_uninterrupted_programs_keep_their_exit_code():
    with pytest.raises(SystemExit) as ended:
        run_script(lambda argv: 2)
    assert ended.value.code == 2


def test_other_errors_that_go_nowhere_are_told_as_before(monkeypatch):
    """By whoever was asked to, first or last: kjax.runs.checkpoint does so, too."""

    class Lost:
        def __del__(self):
            raise ValueError("lost")

    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(str(lost.exc_value)))
    hear_lost_interrupts.__wrapped__()
    Lost()
    assert told == ["lost"]
