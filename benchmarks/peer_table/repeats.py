"""How far what was recorded on several machines lies apart: what chance does to the tables."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kjax.eval.report.page_parts import Block, Paragraph
from kjax.eval.report.phrases import count, percent
from peer_table.groups import USUAL, label, of_kind
from peer_table.records import Record


def spread_of_repeats(records: Iterable[Record]) -> list[Block]:
    """A sentence on homographies that several machines have found, if any have."""
    groups: dict[tuple, list[Record]] = {}
    for one in of_kind(records, "homographies", USUAL):
        groups.setdefault(one.key, []).append(one)
    repeated = [each for each in groups.values() if len({one.hardware for one in each}) > 1]
    if not repeated:
        return []
    correct = max(
        _range(each, lambda one: one.correct) / max(one.correct for one in each)
        for each in repeated
    )
    areas = [_range(each, lambda one: one.area(5)) for each in repeated]
    furthest = repeated[int(np.argmax(areas))][0]
    return [
        Paragraph(
            f"How sure these figures are, from what several machines have recorded of the same "
            f"method and scene ({len(repeated)} times, {count(USUAL)} keypoints): correct matches "
            f"differ by at most {percent(correct, 1)} %, AUC@5 px of a scene's "
            f"{furthest.pairs} pairs by {percent(float(np.median(areas)), 1)} points in the median "
            f"and by up to {percent(max(areas), 1)} ({label(furthest.method)} on "
            f"{furthest.scene}), which is the draw of MAGSAC++ on a pair or two."
        )
    ]


def _range(records: Sequence[Record], value: Callable[[Record], float]) -> float:
    return float(np.ptp([value(one) for one in records]))
