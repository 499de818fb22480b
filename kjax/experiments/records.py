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
import types
import typing
from pathlib import Path
from typing import Any

from kjax.errors import InputError
from kjax.json_lines import end_last_line, is_number, read_lines


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
    """All records of a file, none if there is no file yet; damaged lines are named on stderr.

    What a damaged line held counts as not computed.
    """
    return read_lines(Path(path), _record, what="a record")


def append_record(path: str | Path, record: Record) -> None:
    """Adds a line, and sees it to the disk: what is recorded is never computed again."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        end_last_line(path, _record)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(record), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _record(content: Any) -> Record:
    if not isinstance(content, dict):
        raise TypeError("it is no JSON object")
    for name, kind in typing.get_type_hints(Record).items():
        if name in content and not _fits(content[name], kind):
            raise TypeError(f"{name} is not of its type")
    return Record(**content)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of a field's type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin is types.UnionType:
        return any(_fits(value, one) for one in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    return is_number(value) if kind is float else type(value) is kind
