"""What should hold, whether it does, and where peers are ahead."""

from collections.abc import Iterator, Sequence

import numpy as np

from kjax.eval.report.page_parts import Block, Column, Items, Paragraph, Table, TableCell, TableRow
from kjax.eval.report.phrases import count, percent
from kjax.eval.report.phrases import joined as in_a_sentence
from peer_table import methods
from peer_table.groups import USUAL, by_method, is_fair, label, of_kind, whole
from peer_table.records import Record
from peer_table.thresholds import VALIDATION, suited

OURS, PEER, GLUED = "best:steady+learned", "aliked", "aliked+lightglue"
PLAIN, BEFORE = "best:steady+0.9", "best"
"""What `kjax match` does without a learned matcher, and our weights at OpenCV's own keypoints."""


def verdicts(records: Sequence[Record], timed: Sequence[Record]) -> Iterator[Block]:
    """A table of what should hold, and a list of what is lost."""
    planes = whole(of_kind(records, "homographies", USUAL))
    rows = [
        _verdict(
            "correct matches on Oxford, at least ALIKED's with mutual neighbours", planes, PEER
        ),
    ]
    best = planes.get(OURS) or planes.get(PLAIN)
    if best and BEFORE in planes:
        what = f"homography AUC@5 on {best.pairs} of Oxford's 40 pairs, at least "
        rows.append(_held(f"{what}61.3, of best by another protocol", best, best.area(5), 0.613))
        what += f"that of {label(BEFORE)} here"
        rows.append(_held(what, best, best.area(5), planes[BEFORE].area(5)))
        if len(best.refined) == best.pairs:
            refined = best.with_refined_errors()
            rows.append(_held("refined homographies', at least 61.3", best, refined.area(5), 0.613))
    poses = of_kind(records, "poses", USUAL)
    rows += _pose_verdicts(poses, "pose")
    refined = [one.with_refined_errors() for one in poses if one.refined]
    rows += _pose_verdicts(refined, "refined pose")
    rows += _pose_verdicts(suited(poses)[0], f"pose, threshold chosen on {VALIDATION},")
    rows += _time_verdicts(of_kind(timed, "homographies", USUAL))
    yield Table(
        f"With {count(USUAL)} keypoints. Ours is the learned matcher, or while there is none "
        f"{label(PLAIN)}.",
        [
            Column(name, numeric=False)
            for name in ("Should hold", "Ours", "Is", "To reach", "Holds")
        ],
        [row for row in rows if row],
    )
    yield from _losses(planes, records)


def _verdict(what: str, planes: dict[str, Record], peer: str) -> TableRow | None:
    ours, theirs = planes.get(OURS) or planes.get(PLAIN), planes.get(peer)
    if ours is None or theirs is None:
        return None
    cells = what, label(ours.method), count(ours.correct), count(theirs.correct)
    return TableRow([*map(TableCell, cells), TableCell(_yes(ours.correct >= theirs.correct))])


def _held(what: str, ours: Record, value: float, limit: float) -> TableRow:
    cells = what, label(ours.method), percent(value, 1), percent(limit, 1), _yes(value >= limit)
    return TableRow([*map(TableCell, cells)])


def _yes(held: bool) -> str:
    return "yes" if held else "no"


def _pose_verdicts(records: Sequence[Record], of: str) -> list[TableRow]:
    """On the scenes that all three have, and ours had not seen."""
    ours = OURS if any(one.method == OURS for one in records) else PLAIN
    by_word = {
        word: {one.scene: one for one in each if is_fair(one)}
        for word, each in by_method(records).items()
    }
    words = [word for word in dict.fromkeys((ours, GLUED, PLAIN)) if word in by_word]
    if len(words) < 2 or words[0] != ours:
        return []
    shared = sorted(set.intersection(*(set(by_word[word]) for word in words)))
    if not shared:
        return []
    means = {word: float(np.mean([by_word[word][s].area(10) for s in shared])) for word in words}
    record, where = by_word[ours][shared[0]], in_a_sentence(shared)
    rows = []
    if GLUED in means:
        what = f"{of} AUC@10° on {where}, at least ALIKED + LightGlue's less 5 points"
        rows.append(_held(what, record, means[ours], means[GLUED] - 0.05))
    if ours == OURS and PLAIN in means:
        what = f"{of} AUC@10° on {where}, at least 15 points above {label(PLAIN)}"
        rows.append(_held(what, record, means[ours], means[PLAIN] + 0.15))
    return rows


def _time_verdicts(timed: Sequence[Record]) -> list[TableRow]:
    """Of each CPU that both have seconds on, scene by scene."""
    timed = [one for one in timed if one.hardware.endswith(("core", "cores"))]
    seconds = {(one.hardware, one.method, one.scene): one.match_seconds for one in timed}
    rows = []
    for hardware in dict.fromkeys(one.hardware for one in timed):
        shares = {
            scene: own / theirs
            for (where, word, scene), own in seconds.items()
            if (where, word) == (hardware, OURS)
            and own
            and (theirs := seconds.get((hardware, GLUED, scene)))
        }
        if shares:
            what = f"a pair's seconds on {hardware}, {in_a_sentence(list(shares))}, at most half of"
            found = ", ".join(f"{share:.2f}" for share in shares.values())
            held = _yes(max(shares.values()) <= 0.5)
            cells = f"{what} ALIKED + LightGlue's", label(OURS), found, "0.50", held
            rows.append(TableRow([*map(TableCell, cells)]))
    return rows


def _losses(planes: dict[str, Record], records: Sequence[Record]) -> Iterator[Block]:
    """Scenes in which a peer has more correct matches, or a better geometry, than ours."""
    ours = OURS if OURS in planes else PLAIN
    lines = []
    for kind, threshold in (("homographies", 5), ("poses", 10)):
        here = {(one.method, one.scene): one for one in of_kind(records, kind, USUAL)}
        for scene in dict.fromkeys(scene for word, scene in here if word == ours):
            own = here[ours, scene]
            better = [
                f"{label(word)} {percent(one.area(threshold), 1)}"
                for (word, where), one in here.items()
                if where == scene
                and methods.is_peer(methods.parse(word).features)
                and one.area(threshold) > own.area(threshold)
            ]
            if better:
                unit = "px" if kind == "homographies" else "°"
                lines.append(
                    f"{scene}, AUC@{threshold} {unit}: {label(ours)} "
                    f"{percent(own.area(threshold), 1)}, {in_a_sentence(better)}"
                )
    if lines:
        yield Paragraph("Peers are ahead of ours here:")
        yield Items(lines)
