"""Results of experiments, one JSON line each.

A file of records is at once the raw result that tables are made of, and the list of what need not
be computed again.

Names of metrics, all shares (0…1):

    fpr95/<test set>                           false positive rate at 95 % recall
    hpatches/<split>/<rule>/<task>[/<level>]   rule python or matlab; task verification, matching
                                               or retrieval; level easy, hard or tough
    validation/matching[/<level>]              on noisy patches: see `kjax.eval.misalignment`
    noisy/<set>/matching[/<level>]             the same on another set
    jitter/<kind>/<amount>                     matching with one misalignment
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kjax.errors import InputError
from kjax.json_text import parse_json


@dataclasses.dataclass(frozen=True)
class Record:
    """What came out of one cell of a table: one training with one seed, or one rival.

    Attributes:
        cell: its name, unique in a file.
        experiment: which table it belongs to: heads, ablation, final, rivals.
        group: in ablations, the question asked; else empty.
        row: name of the model; in ablations, the value tried.
        train: names of the training sets; empty for rivals.
        seed: of the training; None for rivals.
        parameters: learned ones; None if unknown.
        dimension: of a descriptor.
        pairs: seen in training.
        seconds: that the training steps took.
        compile_seconds: until the first step could run; 0 if an earlier cell had compiled it.
        metrics: see the top of this file.
        tested_pairs: by test set, how many matching and non-matching pairs.
        config: of the training; empty for rivals.
        hardware: that it ran on.
        versions: of the software, and the commit.
    """

    cell: str
    experiment: str
    group: str
    row: str
    train: list[str]
    seed: int | None
    parameters: int | None
    dimension: int | None
    pairs: int
    seconds: float
    compile_seconds: float
    metrics: dict[str, float]
    tested_pairs: dict[str, list[int]]
    config: dict[str, Any]
    hardware: str
    versions: dict[str, str]


def read_records(path: str | Path) -> list[Record]:
    """All records of a file; none if there is no file yet.

    A last line without its end is what a kill while writing leaves: it is ignored.
    """
    path = Path(path)
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    return list(_parsed(whole, path))


def _parsed(text: str, path: Path) -> Iterator[Record]:
    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield Record(**parse_json(line))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}, line {number} is not a record: {error}") from error


def append_record(path: str | Path, record: Record) -> None:
    """Adds a line, and sees it to the disk: what is recorded is never computed again."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_torn_line(path)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(record), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
