"""The fuzzer: a short run, and that it finds what is there to be found."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = ("read_photograph.a.jpg", "phototour.texts", "features.npz", "torch7", "unpack.zip")
"""Readers whose samples need no model, which takes seconds to make."""


def fuzz(*arguments):
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=590)


def assert_clean(done, inputs):
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "all"
    assert int(last[2].replace(",", "")) >= inputs
    assert last[-2:] == ["0", "0"]


@pytest.mark.slow
def test_a_short_run_finds_nothing():
    arguments = ("--inputs", "50", "--seed", "13", "--workers", "1", "--reader", *QUICK)
    assert_clean(fuzz(*arguments), 50)


@pytest.mark.slow
def test_every_reader():
    assert_clean(fuzz("--inputs", "1500", "--seed", "14"), 1500)
    done = fuzz("--reader", "nothing")
    assert done.returncode == 2
    assert "no such reader: choose from read_photograph.a.jpg" in done.stderr


def test_outcomes_and_reproducible_damage(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from kjax.errors import InputError
    from tests.fuzz import mutations, readers, worker

    def fail(error):
        raise error

    for read, expected in (
        (lambda folder: None, worker.ACCEPTED),
        (lambda folder: fail(InputError("no good")), worker.CLEAN),
        (lambda folder: fail(KeyError(3)), worker.TRACEBACK),
    ):
        reader = readers.Reader("test", lambda folder: None, read)
        assert worker.outcome_of(reader, tmp_path)[0] == expected
    sample = worker.Sample(readers.READERS["phototour.texts"], tmp_path)
    inputs = []
    for seed in (1, 1, 2):
        sample.damage(seed, 5)
        files = sorted(path for path in sample.folder.rglob("*") if path.is_file())
        inputs.append({path.name: path.read_bytes() for path in files})
    assert inputs[0] == inputs[1] != inputs[2]
    content = bytes(range(256)) * 4
    for name in ("a.bin", "a.txt", "a.json"):
        damaged = [mutations.mutate(content, name, random.Random(seed)) for seed in range(50)]
        assert sum(one != content for one in damaged) > 40
