"""How the scores on PhotoTourism sets are laid out: which columns, and what stands in them.

Two layouts. The paper's has a column per training and test set; it is used when some descriptor was
trained on several sets. Otherwise a column per test set is enough, and each row names its training
set.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kjax.eval.averages import Spread, spread_over_seeds
from kjax.eval.report.published import PAPER_SETS
from kjax.eval.results import DescriptorResult, PhototourScores


class PhototourSetting(NamedTuple):
    """A column: a test set, and in the paper's layout a training set."""

    test: str
    train: str | None

    @property
    def label(self) -> str:
        """The setting in one line."""
        return self.test if self.train is None else f"{self.train} → {self.test}"


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """The scores of one FPR rule.

    Attributes:
        rule: its name.
        settings: the columns, in order.
        results: descriptors that have scores, in the order given.
    """

    rule: str
    settings: list[PhototourSetting]
    results: list[DescriptorResult]

    @property
    def by_training_set(self) -> bool:
        """Whether columns name training sets, as the paper's do."""
        return any(setting.train is not None for setting in self.settings)

    @property
    def on_paper_sets(self) -> bool:
        """Whether every test set is one of the paper's."""
        return all(setting.test.lower() in PAPER_SETS for setting in self.settings)

    def scores(self, result: DescriptorResult, setting: PhototourSetting) -> PhototourScores | None:
        """What a descriptor scores in a column.

        One that was trained on none of the sets has one figure per test set: it stands in all
        columns of that set.
        """
        found = None
        for one in result.phototour:
            if one.test != setting.test or one.rule != self.rule:
                continue
            if setting.train in (None, one.train):
                return one
            if one.train is None:
                found = one
        return found

    def mean(self, result: DescriptorResult) -> tuple[Spread, int] | None:
        """Mean FPR@95 over a row's columns, its spread over seeds, and the columns' number.

        A set that the descriptor was trained on does not count.
        """
        found = [self.scores(result, setting) for setting in self.settings]
        counted = [
            one
            for one in found
            if one is not None and not is_training_set(one) and np.isfinite(one.fpr95)
        ]
        spread = spread_over_seeds([one.fpr95_by_seed or {"": one.fpr95} for one in counted])
        return (spread, len(counted)) if spread is not None else None


def is_training_set(scores: PhototourScores) -> bool:
    """Whether a descriptor was tested on what it was trained on."""
    return scores.train is not None and scores.test.lower() in scores.train.lower().split("+")


def training_sets(result: DescriptorResult) -> list[str]:
    """The sets that a descriptor was trained on, one run each."""
    return list(dict.fromkeys(one.train for one in result.phototour if one.train is not None))


def arrange(results: Sequence[DescriptorResult]) -> list[Arrangement]:
    """One arrangement per FPR rule: figures of different rules do not belong in one table."""
    rules = dict.fromkeys(one.rule for result in results for one in result.phototour)
    return [_arrangement(results, rule) for rule in rules]


def _arrangement(every: Sequence[DescriptorResult], rule: str) -> Arrangement:
    results = [result for result in every if any(one.rule == rule for one in result.phototour)]
    scores = [one for result in results for one in result.phototour if one.rule == rule]
    tests = _in_paper_order(dict.fromkeys(one.test for one in scores))
    if all(len(training_sets(result)) < 2 for result in results):
        return Arrangement(rule, [PhototourSetting(test, None) for test in tests], results)
    settings = []
    for test in tests:
        # Only the table of areas shows how a descriptor does on its own training set.
        trains = dict.fromkeys(
            one.train for one in scores if one.test == test and not is_training_set(one)
        )
        named = _in_paper_order([train for train in trains if train is not None])
        settings += [PhototourSetting(test, train) for train in named] or [
            PhototourSetting(test, None)
        ]
    return Arrangement(rule, settings, results)


def _in_paper_order(names: Iterable[str]) -> list[str]:
    """The paper's sets first, in its order; the others as they came."""

    def place(name: str) -> int:
        return PAPER_SETS.index(name.lower()) if name.lower() in PAPER_SETS else len(PAPER_SETS)

    return sorted(names, key=place)
