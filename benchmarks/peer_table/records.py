"""Records of `benchmarks/peers.py`: what one method achieves on one scene, one JSON line each."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from program import append_record, read_records

from peer_table import methods
from peer_table.geometry import ESSENTIAL_PIXELS, STRICTER_PIXELS, area_under_recall

PIXELS, DEGREES = (3, 5, 10), (5, 10, 20)
"""Thresholds of areas under recall curves, of homographies and of poses."""
CHOSEN_ON = frozenset({"fountain", "castle", "monstree", "sceaux"})
"""Scenes that our settings were chosen on, hence not a test for our methods."""
STOPPED_ON = frozenset({"graf", "leuven", "wall"})
"""Scenes that the share of sure keypoints at which learned matching stops was chosen on."""
VALIDATION = "fountain"
"""Scene that each method's RANSAC threshold is selected on."""


@dataclasses.dataclass(frozen=True)
class PeerRecord:
    """What one method achieves on one scene.

    Attributes:
        method: name, see `peer_table.methods`.
        keypoints: maximum number of keypoints per photo.
        scene: name; for rotations, the angle.
        kind: "homographies", "rotation" or "poses".
        pairs: number of pairs.
        found: mean number of keypoints per photo.
        matches: of all pairs, each location counted once.
        correct: matches within 3 pixels of the true point or epipolar line.
        accuracy: mean share of a pair's matches within 1, 2, … 10 pixels.
        errors: of each pair's geometry, in pixels or degrees; None if there is none.
        describe_seconds: median per photo; None if the machine was not idle.
        match_seconds: median per pair, likewise.
        weights: first digits of the SHA-256 of shipped weights; empty for others.
        hardware: device, or number and kind of CPU cores.
        versions: of the software, and the commit.
        refined: errors after refinement on all near matches; empty in early records.
        stricter: errors of poses with each of `STRICTER_PIXELS`, likewise.
        matcher: first digits of a learned matcher's SHA-256; empty for others, and in records
            from before 0.4.
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
    matcher: str = ""

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """Identity of a measurement."""
        return self.method, self.weights, self.keypoints, self.kind, self.scene

    def area(self, threshold: float, *, refined: bool = False) -> float:
        """Return the area under recall against the error of the geometry."""
        return area_under_recall(self.refined if refined else self.errors, threshold)

    @property
    def is_fair(self) -> bool:
        """Whether the scene is new to the method: neither trained nor, for ours, chosen on."""
        method = methods.parse(self.method)
        stopped = method.matcher == methods.LEARNED and self.scene in STOPPED_ON
        chosen = method.is_ours and self.scene in CHOSEN_ON
        return self.scene not in method.trained_on and not chosen and not stopped


def read(path: Path) -> list[PeerRecord]:
    """Return all records of a file."""
    return [PeerRecord(**record) for record in read_records(path)]


def append(path: Path, record: PeerRecord) -> None:
    """Append a record."""
    append_record(path, dataclasses.asdict(record))


def latest(records: Iterable[PeerRecord]) -> list[PeerRecord]:
    """Return the last record of each measurement, preferring those without seconds.

    Seconds exist for few scenes and many machines: tables of accuracy should not change with them.
    """
    ordered = sorted(records, key=lambda one: one.describe_seconds is None)
    return list({one.key: one for one in ordered}.values())


def latest_timed(records: Iterable[PeerRecord]) -> list[PeerRecord]:
    """Return the last record with seconds of each measurement on each machine."""
    timed = (one for one in records if one.describe_seconds is not None)
    return list({(one.key, one.hardware): one for one in timed}.values())


def by_method(records: Iterable[PeerRecord]) -> dict[str, list[PeerRecord]]:
    """Group by method, in the order of the page: SIFT and others at its keypoints, ours, peers."""
    found: dict[str, list[PeerRecord]] = {}
    for one in records:
        found.setdefault(one.method, []).append(one)

    def order(name: str) -> tuple[bool, bool, str]:
        method = methods.parse(name)
        return method.is_peer, method.is_ours, name

    return {name: found[name] for name in sorted(found, key=order)}


def joined(records: Sequence[PeerRecord]) -> PeerRecord:
    """Combine the scenes of one method: sums, and means over pairs."""
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
        stricter=[],
    )


def with_own_threshold(
    records: Iterable[PeerRecord],
) -> tuple[list[PeerRecord], dict[str, float]]:
    """Return poses with the RANSAC threshold that suits each method best on `VALIDATION`.

    The Image Matching Challenge selects thresholds this way: one threshold for all would favour
    methods whose matches happen to have errors of that size.

    Args:
        records: poses with one number of keypoints. Methods without a record of `VALIDATION`, and
            records with one threshold only, are left out.

    Returns:
        The records, and each method's threshold in pixels.
    """

    def alternatives(one: PeerRecord) -> dict[float, PeerRecord]:
        errors = dict(zip(STRICTER_PIXELS, one.stricter, strict=True))
        errors[ESSENTIAL_PIXELS] = one.errors
        return {pixels: dataclasses.replace(one, errors=own) for pixels, own in errors.items()}

    known = [one for one in records if one.stricter]
    chosen = {
        one.method: max(alternatives(one).items(), key=lambda item: item[1].area(10))[0]
        for one in known
        if one.scene == VALIDATION
    }
    found = [alternatives(one)[chosen[one.method]] for one in known if one.method in chosen]
    return found, chosen
