import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from kjax.train.metrics_log import MetricsLog, read_metrics


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_lines_are_on_the_disk_at_once_and_not_finite_is_null(tmp_path):
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write(10, {"loss": jnp.float32(0.5), "pairs_per_second": 1000})
    assert lines(tmp_path) == [{"step": 10, "loss": 0.5, "pairs_per_second": 1000.0}]
    log.write(10, {"fpr95": np.array([0.25, 0.5]), "loss": np.nan, "norms": [1.0, np.inf]})
    second = {"step": 10, "fpr95": [0.25, 0.5], "loss": None, "norms": [1, None]}
    assert lines(tmp_path)[1] == second
    log.close()


def test_going_on_drops_what_comes_again_and_half_a_line(tmp_path):
    log = MetricsLog(tmp_path, tensorboard=False)
    for step in (1, 2, 3, 4):
        log.write(step, {"loss": step})
        log.write(step, {"fpr95": step})
    log.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "lo')
    assert len(read_metrics(tmp_path)) == 8
    log = MetricsLog(tmp_path, tensorboard=False, resume_step=2)
    log.write(3, {"loss": 30})
    log.close()
    found = [(line["step"], line.get("loss")) for line in lines(tmp_path)]
    assert found == [(1, 1), (1, None), (2, 2), (2, None), (3, 30)]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"step": 2, "lo', "Unterminated string"),
        (b'{"step": 2, "\xce', "UTF-8"),
        (b'{"step": "2", "loss": 1.0}', "step"),
        (b'{"loss": 1.0}', "step"),
        (b'{"step": 2, "loss": "low"}', "loss is not a number"),
        (b'{"step": 2, "loss": {"a": 1}}', "loss is not a number"),
        (b'{"step": 2, "loss": [[1.0]]}', "loss is not a number"),
        (b'{"step": 2, "loss": 1' + b"0" * 400 + b"}", "loss is not a number"),
        (b'{"step": 2, "loss": ' + b"[" * 100_000, "too deep"),
        (b"[2]", "step"),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_used(tmp_path, capsys, line, reason):
    path = tmp_path / "metrics.jsonl"
    whole = [b'{"step": 1, "loss": 1.0}', '{"step": 3, "fpr95/\u2028": [0.5, null]}'.encode()]
    path.write_bytes(b"\n".join([whole[0], line, whole[1], b""]))
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 3]
    told = capsys.readouterr().err
    assert f"{path}, line 2 is not a line of metrics and is skipped: " in told
    assert reason in told
    assert told.count("\n") == 1
    path.write_bytes(b"\n".join([*whole, line]))
    log = MetricsLog(tmp_path, tensorboard=False, resume_step=3)
    log.write(4, {"loss": 4.0})
    log.close()
    assert path.read_bytes() == b"\n".join([*whole, b'{"step": 4, "loss": 4.0}', b""])


def test_a_new_run_begins_an_empty_log(tmp_path):
    """What is there is of a run that was killed before its first checkpoint."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "fpr95": 0.5}\n{"step": 5, "loss": 1.0}\n')
    MetricsLog(tmp_path, tensorboard=False).close()
    assert lines(tmp_path) == []
    assert read_metrics(tmp_path) == []


def test_tensorboard_has_the_scalars(tmp_path):
    pytest.importorskip("tensorboardX")
    log = MetricsLog(tmp_path, tensorboard=True)
    log.write(7, {"loss": 0.5, "fpr95": [0.25, 0.75]})
    log.close()
    (events,) = (tmp_path / "tensorboard").glob("events.*")
    written = events.read_bytes()
    for name in (b"loss", b"fpr95/0", b"fpr95/1"):
        assert name in written
    assert np.float32(0.75).tobytes() in written


def test_without_tensorboardx_one_note(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    log = MetricsLog(tmp_path, tensorboard=True)
    log.write(1, {"loss": 1.0})
    log.close()
    assert capsys.readouterr().err.count("\n") == 1
    assert lines(tmp_path) == [{"step": 1, "loss": 1.0}]
    assert not (tmp_path / "tensorboard").exists()


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    log = MetricsLog(tmp_path, tensorboard=True)
    log.write(1, {"loss": 1.0})
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_unwritable_is_one_line(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    message = r"cannot write .*metrics.jsonl \(Is a directory\)"
    assert_refused(message, MetricsLog, tmp_path, tensorboard=False)
