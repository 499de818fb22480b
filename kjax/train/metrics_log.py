"""Metrics of a run as JSON lines, and for TensorBoard.

Each line is an object with `step` and numbers, or lists of numbers with one per seed. A step may
have several lines, e.g. one of training and one of evaluation.
"""

import contextlib
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kjax.files.atomic import explain_write_errors, write_text
from kjax.files.json import is_number, read_lines

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
_REMEDY = "free some space or repair the folder, and run the same command again"


class MetricsLog:
    """The log of one run. Only the first process writes; the others may make the same calls.

    Args:
        folder: the run's workdir, which exists.
        tensorboard: write for TensorBoard, too.
        resume_step: step of the checkpoint that the run resumes from, 0 for a new run. Lines of
            later steps are dropped, since they will be logged again.
    """

    def __init__(self, folder: Path, tensorboard: bool, *, resume_step: int = 0) -> None:
        self._path = folder / METRICS_FILE
        self._writer: Any = None
        self._writes = jax.process_index() == 0
        if not self._writes:
            return
        with explain_write_errors(str(self._path), _REMEDY):
            if self._path.exists():
                # A new run drops all: one that was killed early has left its line of step 0.
                kept = [x for x in read_metrics(folder) if resume_step and x["step"] <= resume_step]
                trimmed = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in kept)
                if trimmed.encode() != self._path.read_bytes():
                    write_text(self._path, trimmed)
            if tensorboard:
                try:
                    from tensorboardX import SummaryWriter
                except ImportError:
                    advice = "pip install 'kjax[tensorboard]', or set --config.tensorboard=False"
                    print(f"no TensorBoard log: {advice}", file=sys.stderr)
                    return
                purge_step = resume_step + 1 if resume_step else 0  # hides what comes again
                self._writer = SummaryWriter(
                    str(folder / TENSORBOARD_FOLDER), purge_step=purge_step
                )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append a line of numbers, or of vectors with one number per seed, and flush it.

        Values that are not finite become `null`.
        """
        if not self._writes:
            return
        values = {name: np.asarray(value, np.float64) for name, value in metrics.items()}
        line = {"step": int(step)} | {n: _json_value(v.tolist()) for n, v in values.items()}
        with explain_write_errors(str(self._path), _REMEDY):
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if self._writer is not None:
                for name, value in values.items():
                    scalars = {f"{name}/{i}": x for i, x in enumerate(value)} if value.ndim else {}
                    for own_name, number in (scalars or {name: value}).items():
                        self._writer.add_scalar(own_name, float(number), step)
                self._writer.flush()

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # the numbers are in the other file
                self._writer.close()
            self._writer = None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's log; damaged ones are reported on stderr and skipped."""
    return read_lines(folder / METRICS_FILE, _checked, what="a line of metrics")


def _checked(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or type(content.get("step")) is not int:
        raise ValueError("step is not a whole number")
    for name, value in content.items():
        for part in value if isinstance(value, list) else [value]:
            if part is not None and not is_number(part):
                raise ValueError(f"{name} is not a number")
    return content


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(part) for part in value]
    return value if math.isfinite(value) else None
