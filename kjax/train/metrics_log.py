"""Metrics of a run as JSON lines, and for TensorBoard.

Each line is an object with `step` and numbers, or lists of numbers with one per seed. A step may
have several lines, e.g. one of training and one of evaluation.
"""

import contextlib
import functools
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kjax.files.atomic import explain_write_errors, write_text
from kjax.files.json import is_number, read_lines

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
_REMEDY = "free some space or mend the folder, and run the same command again"


class MetricsLog:
    """The log of one run. Only the first process writes; the others may call it all the same.

    Args:
        folder: the run's workdir, which exists.
        tensorboard: write for TensorBoard too, into the folder's `tensorboard`.
        resume_step: the step of the checkpoint that the run goes on from, 0 for a new run. What an
            earlier start logged after it is dropped, since it will be logged again.
    """

    def __init__(self, folder: Path, tensorboard: bool, *, resume_step: int = 0) -> None:
        self._path = folder / METRICS_FILE
        self._writer: Any = None
        self._writes = jax.process_index() == 0
        if not self._writes:
            return
        with explain_write_errors(str(self._path), _REMEDY):
            _drop_after(self._path, resume_step)
            if tensorboard:
                first = resume_step + 1 if resume_step else 0
                self._writer = _tensorboard_writer(folder / TENSORBOARD_FOLDER, first)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends a line, and hands it to the operating system at once.

        Args:
            step: how many steps have been taken.
            metrics: numbers, or vectors with one number per seed. A value that is not finite
                becomes `null`, since JSON has no name for it.
        """
        if not self._writes:
            return
        values = {name: np.asarray(value, np.float64) for name, value in metrics.items()}
        line = {"step": int(step)} | {
            name: _json_value(value.tolist()) for name, value in values.items()
        }
        with explain_write_errors(str(self._path), _REMEDY):
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(_as_line(line) + "\n")
            if self._writer is not None:
                for name, number in _scalars(values):
                    self._writer.add_scalar(name, number, step)
                self._writer.flush()

    def close(self) -> None:
        """Closes TensorBoard's file."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # the numbers are in the other one
                self._writer.close()
            self._writer = None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; damaged ones are named on stderr and left out."""
    return read_lines(folder / METRICS_FILE, _checked, what="a line of metrics")


def _drop_after(path: Path, step: int) -> None:
    """Keeps whole lines up to a step, replacing the file only if there are others.

    None for a new run, which begins with a line of step 0: one that was killed before its first
    checkpoint has left such a line too.
    """
    if not path.exists():
        return
    kept = [line for line in read_metrics(path.parent) if step and line["step"] <= step]
    trimmed = "".join(f"{_as_line(line)}\n" for line in kept)
    if trimmed.encode() != path.read_bytes():
        write_text(path, trimmed)


def _as_line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)


def _checked(content: Any) -> dict[str, Any]:
    """A line's content, if it is as `MetricsLog.write` writes it."""
    if not isinstance(content, dict) or type(content.get("step")) is not int:
        raise ValueError("it has no whole number as its step")
    for name, value in content.items():
        for part in value if isinstance(value, list) else [value]:
            if part is not None and not is_number(part):
                raise ValueError(f"{name} is not a number")
    return content


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(part) for part in value]
    return value if math.isfinite(value) else None


def _scalars(values: Mapping[str, np.ndarray]) -> Iterator[tuple[str, float]]:
    """Names and numbers of a line; several seeds' are told apart by their place."""
    for name, value in values.items():
        if value.ndim == 0:
            yield name, float(value)
        for place, part in enumerate(value.reshape(-1) if value.ndim else ()):
            yield f"{name}/{place}", float(part)


def _tensorboard_writer(folder: Path, purge_step: int) -> Any:
    """A writer that hides what earlier starts logged from a step on; None without tensorboardX."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        _note_missing_tensorboard()
        return None
    return SummaryWriter(str(folder), purge_step=purge_step)


@functools.cache
def _note_missing_tensorboard() -> None:
    print(
        "no TensorBoard log: pip install tensorboardX, or set --config.tensorboard=False",
        file=sys.stderr,
    )
