"""The first sentences of a report: what the figures say, and nothing more."""

from collections.abc import Sequence

import numpy as np

from kjax.errors import counted
from kjax.eval.averages import TASKS
from kjax.eval.report.hpatches_tables import HPatchesSetting, Scored, scoreboard
from kjax.eval.report.phototour_settings import Arrangement, arrange
from kjax.eval.report.phototour_tables import paper_difference
from kjax.eval.report.phrases import finite, interval, joined, percent
from kjax.eval.results import Evaluation


def headlines(evaluation: Evaluation) -> list[str]:
    """A few sentences, computed from the results."""
    sentences = [_counted(evaluation)] if evaluation.descriptors else []
    for arrangement in arrange(evaluation.descriptors):
        sentences += _fpr_sentences(arrangement)
        sentences += _paper_sentences(arrangement)
    seen = set()
    for benchmark, scored in scoreboard(evaluation.descriptors).items():
        if benchmark.protocol not in seen:
            sentences.append(_hpatches_sentence(benchmark, scored))
        seen.add(benchmark.protocol)
    return sentences


def warnings_of(evaluation: Evaluation) -> list[str]:
    """All warnings, each with its descriptor's name."""
    return [
        f"{result.name}: {warning}"
        for result in evaluation.descriptors
        for warning in result.warnings
    ]


def _counted(evaluation: Evaluation) -> str:
    scored = [one for one in evaluation.descriptors if one.missing is None]
    ours = sum(one.ours for one in scored)
    missing = len(evaluation.descriptors) - len(scored)
    rivals = len(scored) - ours
    more = f"; {missing} more could not be had" if missing else ""
    return (
        f"{counted(len(scored), 'descriptor')} compared: {ours} of kjax and "
        f"{counted(rivals, 'rival')}{more}."
    )


def _fpr_sentences(arrangement: Arrangement) -> list[str]:
    """The best of ours and the best rival, among those with a figure in every column."""
    columns = len(arrangement.settings)
    whole = {
        result.name: mean[0].mean
        for result in arrangement.results
        if (mean := arrangement.mean(result)) is not None and mean[1] == columns
    }
    best = [
        min(names, key=whole.__getitem__)
        for ours in (True, False)
        if (names := [r.name for r in arrangement.results if r.ours == ours and r.name in whole])
    ]
    if not best:
        return []
    what = (
        f"FPR@95 on {arrangement.settings[0].label}"
        if columns == 1
        else f"mean FPR@95 over {columns} settings"
    )
    owners = {r.name: "kjax's descriptors" if r.ours else "the rivals" for r in arrangement.results}
    figures = [f"among {owners[name]} {name} ({percent(whole[name])} %)" for name in best]
    return [f"Lowest {what}: {', '.join(figures)}.{_overlap(arrangement, best)}"]


def _overlap(arrangement: Arrangement, names: Sequence[str]) -> str:
    """Says so where one set's few pairs cannot tell the two apart."""
    if len(arrangement.settings) > 1:
        return ""
    setting = arrangement.settings[0]
    found = {one.name: arrangement.scores(one, setting) for one in arrangement.results}
    known = [one.fpr95_interval for name in names if (one := found[name]) is not None]
    bounds = [one for one in known if one is not None and interval(one)]
    if len(bounds) < 2:
        return ""
    (low, high), (other_low, other_high) = bounds
    if low <= other_high and other_low <= high:
        return " Their 95 % confidence intervals overlap."
    return " Their 95 % confidence intervals do not overlap."


def _paper_sentences(arrangement: Arrangement) -> list[str]:
    found = {
        result.name: difference
        for result in arrangement.results
        if (difference := paper_difference(arrangement, result)) is not None
    }
    return [
        f"{name} is {abs(100 * difference):.2f} percentage points "
        f"{'above' if difference > 0 else 'below'} the paper's mean FPR@95."
        for name, difference in found.items()
    ]


def _hpatches_sentence(benchmark: HPatchesSetting, scored: Sequence[Scored]) -> str:
    won: dict[str, list[str]] = {}
    for task in TASKS:
        shares = [finite(getattr(one.scores, f"{task}_map")) or 0.0 for one in scored]
        best = scored[int(np.argmax(shares))].result.name
        won.setdefault(best, []).append(f"{task} ({percent(max(shares))} %)")
    parts = [f"{name} at {joined(tasks)}" for name, tasks in won.items()]
    return f"Highest mAP on HPatches, {benchmark.label}: {'; '.join(parts)}."
