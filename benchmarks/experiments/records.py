"""Results of experiments, one JSON line each.

A file of records is at once the raw result that tables are made of, and the list of what need not
be computed again. Its scores are those of an evaluation: see `kjax.eval.results`.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from kjax.eval.results import DescriptorResult
from kjax.files.atomic import mendable_writes
from kjax.files.json_lines import end_last_line, read_lines
from kjax.files.typed_values import Schema

MOST_NAMED = 6
"""More training sets than this are counted, not named, or tables could not be read."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What came out of one training with one seed, or of one rival.

    Attributes:
        name: unique in a file.
        experiment: which table it belongs to: heads, ablation, final, rivals.
        group: in ablations, the question asked; else empty.
        train: names of the training sets; empty for rivals.
        seed: of the training; None for rivals.
        result: the scores, without curves; its name is the model's, in ablations the value tried.
        pairs: seen in training.
        seconds: that the training steps took.
        compile_seconds: until the first step could run; 0 if an earlier training had compiled it.
        config: of the training; empty for rivals.
        hardware: that it ran on.
        versions: of the software, and the commit.
    """

    name: str
    experiment: str
    group: str
    train: list[str]
    seed: int | None
    result: DescriptorResult
    pairs: int
    seconds: float
    compile_seconds: float
    config: dict[str, Any]
    hardware: str
    versions: dict[str, str]

    @property
    def row(self) -> str:
        """Name of the model; in ablations, the value tried."""
        return self.result.name

    @property
    def train_label(self) -> str:
        """The training sets in one name; empty for rivals."""
        if len(self.train) > MOST_NAMED:
            return f"{len(self.train)} sets"
        return " + ".join(self.train)


_record = Schema(Record, "record").read


def read_records(path: str | Path) -> list[Record]:
    """All records of a file, none if there is no file yet; damaged lines are named on stderr.

    What a damaged line held counts as not computed.
    """
    return read_lines(Path(path), _record, what="a record")


def append_record(path: str | Path, record: Record) -> None:
    """Adds a line, and sees it to the disk: what is recorded is never computed again."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mendable_writes(str(path), "free some space, and run the same command again"):
        end_last_line(path, _record)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(record), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
