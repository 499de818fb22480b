"""The fuzzer: a short run of it, and that it finds what is there to be found."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = (
    *("read_photograph", "read_grey", "similarity_maps", "read_match_file"),
    *("read_tasks", "read_descriptors", "read_model", "colmap", "exchange"),
    *(
        "hloc",
        "outputs",
        "homographies",
        "read_npy",
        "torch7",
        "mkd",
        "tfeat",
        "l2net.mat",
        "unpack",
    ),
    *("download", "evaluation", "pretrained", "metrics_log", "records", "claim_workdir"),
)
"""Readers whose samples need no model, which takes seconds to make."""


def fuzz(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--save", str(folder), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_short_run_finds_nothing(tmp_path):
    done = fuzz(
        *("--inputs", "600", "--seed", "13", "--workers", "1", "--reader", *QUICK), folder=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "all"
    assert int(last[2]) >= 600
    assert last[-3:] == ["0", "0", "0"]


def test_unknown_readers_are_told(tmp_path):
    done = fuzz("--reader", "nothing", folder=tmp_path)
    assert done.returncode == 2
    assert "no such reader: choose from read_photograph.a.jpg" in done.stderr


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from tests.fuzz import readers, worker

    return readers, worker


def test_the_same_seed_gives_the_same_input(tmp_path, modules):
    readers, worker = modules
    sample = worker.Sample(readers.READERS["read_model.txt"], tmp_path)
    inputs = []
    for seed in (1, 1, 2):
        sample.damage(seed, 5)
        inputs.append({p.name: p.read_bytes() for p in sorted(sample.folder.iterdir())})
    assert inputs[0] == inputs[1] != inputs[2]


def test_outcomes_are_told_apart(tmp_path, modules):
    from kjax.errors import InputError

    readers, worker = modules

    def refuse(folder):
        raise InputError("no good")

    def stumble(folder):
        raise KeyError(3)

    def swell(folder):
        return bytearray(b"x") * (100 << 20)  # more than the C library ever keeps for itself

    for read, expected in (
        (lambda folder: None, worker.ACCEPTED),
        (refuse, worker.CLEAN),
        (stumble, worker.TRACEBACK),
        (swell, worker.MEMORY),
    ):
        reader = readers.Reader("test", lambda folder: None, read)
        assert worker.outcome_of(reader, tmp_path, 20 << 20)[0] == expected


def test_damage_keeps_to_the_generator(modules):
    from tests.fuzz import mutations

    content = bytes(range(256)) * 4
    for name in ("a.bin", "a.txt", "a.json"):
        damaged = [mutations.mutate(content, name, random.Random(seed)) for seed in range(50)]
        assert damaged == [mutations.mutate(content, name, random.Random(s)) for s in range(50)]
        assert sum(one != content for one in damaged) > 40
