"""Scores of the three HPatches tasks, as plain data. Every number is a fraction (0…1)."""

import dataclasses

LEVELS = {"e": "easy", "h": "hard", "t": "tough"}
"""HPatches' three levels of geometric noise."""
NEGATIVES = ("intra", "inter")
"""Non-matching pairs from one sequence, and from two."""
TASKS = ("verification", "matching", "retrieval")
PROTOCOLS = ("python", "matlab")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HPatchesScores:
    """The three HPatches tasks on one split.

    Attributes:
        split: a, b, c, full, illum, view, "abc" (the mean over a, b and c), or the name of a
            folder whose sequences were all used.
        tasks: origin of pairs and queries, e.g. "official" or "generated, seed 42".
        verification: average precision by level and kind of negatives.
        verification_auc: balanced ROC area by level and kind of negatives.
        matching: mean average precision by level.
        matching_by_sequence: by sequence and level, the mean over the five target images.
        retrieval: mean average precision by level, at the protocol's headline pool.
        retrieval_by_pool: by level and pool size (as decimal digits).
        verification_map, matching_map, retrieval_map: headlines, the means over all parts.
        map_std: standard deviations of the headlines over seeds, by task; empty for one seed.
        part_std: those of the parts, by path ("matching/e", "verification/e/intra").
    """

    protocol: str
    split: str
    tasks: str
    sequences: int
    verification: dict[str, dict[str, float]]
    verification_auc: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    matching: dict[str, float]
    matching_by_sequence: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    retrieval: dict[str, float]
    retrieval_by_pool: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    verification_map: float
    matching_map: float
    retrieval_map: float
    seeds: int = 1
    map_std: dict[str, float] = dataclasses.field(default_factory=dict)
    part_std: dict[str, float] = dataclasses.field(default_factory=dict)
