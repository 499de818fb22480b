"""Results of a method on a scene, one JSON line each: what is recorded is not computed again."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from kjax.files.json_lines import append_line, read_lines
from kjax.files.typed_values import Schema
from peer_table.scores import area_under_recall

_PIXELS, _DEGREES = (3, 5, 10), (5, 10, 20)
THRESHOLDS = {
    "homographies": _PIXELS,
    "rotation": _PIXELS,
    "views": _PIXELS,
    "poses": _DEGREES,
}
"""Of areas under the curves of errors: pixels, or degrees."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What one method made of one scene.

    Attributes:
        method: the word of `peer_table.methods`.
        keypoints: at most, of a photograph.
        scene: name; of rotations, the angle.
        kind: "homographies", "rotation", "poses" or "views".
        pairs: how many.
        found: keypoints of a photograph, on average.
        matches: of all pairs, each location counted once.
        correct: of them, within 3 pixels of the true place or epipolar line.
        accuracy: share of a pair's matches within 1, 2, … 10 pixels, on average.
        errors: of the pairs' geometry, in pixels or degrees; None where there is none.
        describe_seconds: of a photograph, the median; None if the machine did other things too.
        match_seconds: of a pair, likewise.
        weights: the first digits of their SHA-256, of shipped ones; empty for others.
        hardware: that it ran on.
        versions: of the software, and the commit.
        refined: errors after a refinement on all near matches; none of what was recorded before.
        stricter: errors of poses with each of `scores.STRICTER_PIXELS`; likewise.
    """

    method: str
    keypoints: int
    scene: str
    kind: str
    pairs: int
    found: float
    matches: int
    correct: int
    accuracy: list[float]
    errors: list[float | None]
    describe_seconds: float | None
    match_seconds: float | None
    weights: str
    hardware: str
    versions: dict[str, str]
    refined: list[float | None] = dataclasses.field(default_factory=list)
    stricter: list[list[float | None]] = dataclasses.field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """What a file holds once."""
        return self.method, self.weights, self.keypoints, self.kind, self.scene

    @property
    def thresholds(self) -> tuple[int, ...]:
        """At which areas are told."""
        return THRESHOLDS[self.kind]

    def area(self, threshold: float) -> float:
        """Under the curve of recall against the error."""
        return area_under_recall(self.errors, threshold)

    def with_refined_errors(self) -> "Record":
        """The record as if nothing but the refined geometry had been found."""
        return dataclasses.replace(self, errors=self.refined)


_record = Schema(Record, "record").read


def read_records(path: Path) -> list[Record]:
    """All records, in the order of the file; damaged lines are named on stderr."""
    return read_lines(path, _record, what="a record")


def latest(records: Iterable[Record]) -> list[Record]:
    """Of several with the same key the last, but one with seconds only if all have them.

    Seconds are of few scenes and many machines: the tables shall not change with each of these.
    """
    ordered = sorted(records, key=lambda one: one.describe_seconds is None)
    return list({one.key: one for one in ordered}.values())


def latest_timed(records: Iterable[Record]) -> list[Record]:
    """Those with seconds, of several with the same key and the same hardware the last."""
    timed = (one for one in records if one.describe_seconds is not None)
    return list({(one.key, one.hardware): one for one in timed}.values())


def append_record(path: Path, record: Record) -> None:
    """Adds a line, and sees it to the disk."""
    append_line(path, dataclasses.asdict(record), _record)


def joined(records: Sequence[Record]) -> Record:
    """Scenes of one method as one: sums, and means over pairs."""
    weights = [one.pairs for one in records]
    return dataclasses.replace(
        records[0],
        scene=", ".join(sorted(one.scene for one in records)),
        pairs=sum(weights),
        found=float(np.mean([one.found for one in records])),
        matches=sum(one.matches for one in records),
        correct=sum(one.correct for one in records),
        accuracy=np.average([one.accuracy for one in records], axis=0, weights=weights).tolist(),
        errors=[error for one in records for error in one.errors],
        refined=[error for one in records for error in one.refined],
        stricter=[],  # told of single scenes alone
    )
