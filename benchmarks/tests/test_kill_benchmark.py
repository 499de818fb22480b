"""benchmarks/kill.py sees the smallest difference, and tells of a training that fails."""

import random
import sys

import numpy as np
import pytest
from scripts import BENCHMARKS, load_script

from kjax.errors import InputError

kill = load_script(BENCHMARKS / "kill.py")


def finished(folder, weight: float, metrics: str = '{"step": 1}\n'):
    folder.mkdir()
    np.savez(folder / "weights.npz", kernel=np.array([1.0, weight]))
    (folder / "metrics.jsonl").write_text(metrics)
    return folder


def test_any_difference_is_told(tmp_path):
    one = finished(tmp_path / "one", 0.1)
    kill.compare(one, finished(tmp_path / "same", 0.1))
    with pytest.raises(InputError, match="kernel differs"):
        kill.compare(one, finished(tmp_path / "last bit", np.nextafter(0.1, 1)))
    with pytest.raises(InputError, match="metrics differ"):
        kill.compare(one, finished(tmp_path / "log", 0.1, metrics=""))


def kill_a(program: str, workdir, *, seconds: float) -> str:
    training = [sys.executable, "-c", program]
    return kill.kill_once(training, workdir, random.Random(0), seconds, saving=False)


def test_a_kill_is_counted_and_an_error_told(tmp_path):
    for name in ("4", "12", "14.orbax-checkpoint-tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert kill.unfinished(tmp_path) == {"14.orbax-checkpoint-tmp"}
    when = kill_a("import time; time.sleep(600)", tmp_path, seconds=0.1)
    assert when.endswith("checkpoints: 4, 12")
    assert kill_a("pass", tmp_path, seconds=600) == ""
    with pytest.raises(InputError, match="ZeroDivisionError"):
        kill_a("1 / 0", tmp_path, seconds=600)
