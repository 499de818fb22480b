"""The paper's claims, each as a difference of two models with its interval over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from program import table
from scipy import stats

from experiments.page import Record, by_row, hpatches

ENCODED = tuple(f"{head} s={s}" for head in ("xy", "polar", "combined_star") for s in (1, 2))
CLAIMS = {
    "(a) Encoding beats HardNet": [(one, "hardnet") for one in ENCODED],
    "(b) Polar beats Cartesian": [(f"polar s={s}", f"xy s={s}") for s in (1, 2)],
    "(c) Separate networks beat a shared one": [
        (f"combined_star s={s}", f"combined s={s}") for s in (1, 2)
    ],
    "(d) s = 1 is nearly as good": [
        (f"{head} s=1", f"{head} s=2") for head in ("xy", "polar", "combined_star")
    ],
}
"""Pairs of models, of which the first is claimed to be better (in d: nearly as good)."""

Scores = dict[tuple[str, str, Any], float]
"""Scores by training set, test and seed."""


class Difference(NamedTuple):
    """A mean difference, and half of its 95 % interval over seeds."""

    mean: float
    half: float


def error_rates(records: Iterable[Record]) -> Scores:
    """Return FPR@95 on sets that a model was not trained on."""
    return {
        ("+".join(one["train"]), test["test"], one["seed"]): test["fpr95"]
        for one in records
        for test in one["result"]["phototour"]
    }


def matching(records: Iterable[Record]) -> Scores:
    """Return the matching mAP on Oxford."""
    found = {
        ("+".join(one["train"]), "oxford", one["seed"]): hpatches(one, "matching")
        for one in records
    }
    return {key: value for key, value in found.items() if value is not None}


def difference(first: Scores, second: Scores) -> Difference | None:
    """Return the mean of first − second over the trainings and tests that both have."""
    shared = sorted(first.keys() & second.keys(), key=str)
    seeds = sorted({key[2] for key in shared})
    if len(seeds) < 2:
        return None
    means = [
        np.mean([first[key] - second[key] for key in shared if key[2] == one]) for one in seeds
    ]
    half = stats.t.ppf(0.975, len(means) - 1) * stats.sem(means)
    return Difference(float(np.mean(means)), float(half))


def difference_cell(found: Difference | None, better: int) -> str:
    """Return a cell in percentage points, bold where the claim's sign lies outside the interval."""
    if found is None:
        return "–"
    text = f"{100 * found.mean:+.2f} ± {100 * found.half:.2f}".replace("-", "−")
    return f"**{text}**" if better * found.mean > found.half else text


def claims_table(experiments: Mapping[str, Sequence[Record]]) -> str:
    """Return the differences of all pairs of models, with two columns per experiment."""
    rows = {name: by_row(records) for name, records in experiments.items()}
    measures = (("FPR@95", error_rates, -1), ("matching", matching, 1))
    lines = []
    for claim, pairs in CLAIMS.items():
        for number, pair in enumerate(pairs):
            cells = [
                difference_cell(difference(*(score(own.get(one, ())) for one in pair)), better)
                for own in rows.values()
                for _, score, better in measures
            ]
            lines.append(["" if number else claim, " − ".join(pair), *cells])
    header = [f"{name}: {measure}" for name in rows for measure, _, _ in measures]
    return table(("Claim", "Difference", *header), lines, text=2)
