"""What is known about shipped weights: how to rebuild the model, its origin, its limits."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kjax.errors import InputError
from kjax.files.typed_values import Schema
from kjax.weights.ledger import Photographs, use

if TYPE_CHECKING:
    from kjax.model.descriptor import Descriptor

Fields = TypeVar("Fields")
DATA_FIELDS = ("name", "origin")
DEFAULT_RATIO = 0.9
"""Of a match, the largest that is kept where nothing else is known of the weights."""
METRICS = {"fpr95": "FPR@95", "hpatches": "HPatches mAP"}
"""The first parts of metrics' names, as people read them."""


@dataclasses.dataclass(frozen=True)
class TrainedCard:
    """What is known about anything that was trained and ships.

    Attributes:
        name: of the model.
        summary: one line on what it is good for.
        photographs: that it learned from, in short.
        ledger_sha256: of all that the ledger says about these photographs' scenes.
        command: that trained it.
        commit: of kjax, with which.
        seed: of the training.
        pairs: seen in training.
        hardware: of the training.
        results: by metric, named as in `experiments`; shares from 0 to 1, or text.
        evaluation: how the results were obtained: data, rules, command, hardware.
        limits: what the weights are not good for, or not known to be.
        licence: of the weights.
        parameters: how many are learned.
        sha256: of NAME.npz.
    """

    name: str
    summary: str
    photographs: list[Photographs]
    ledger_sha256: str
    command: str
    commit: str
    seed: int
    pairs: int
    hardware: str
    results: dict[str, float | str]
    evaluation: str
    limits: list[str]
    licence: str
    parameters: int
    sha256: str

    @property
    def use(self) -> str:
        """What one may do with the weights, in one line."""
        return use(self.photographs)

    def facts(self) -> dict[str, str]:
        """What to tell people: labels and short texts, in order."""
        return {
            "use": self.use,
            **self.own_facts(),
            "pairs": f"{self.pairs:,}",
            "seed": str(self.seed),
            "hardware": self.hardware,
            "command": self.command,
            "commit": self.commit,
            **readable_results(self.results),
            "evaluated": self.evaluation,
            "limits": "; ".join(self.limits),
            "photographs": readable_photographs(self.photographs),
            "licence": self.licence,
            "sha256 of npz": self.sha256,
        }

    def own_facts(self) -> dict[str, str]:
        """Those of its kind alone."""
        return {}


@dataclasses.dataclass(frozen=True)
class Card(TrainedCard):
    """The content of a descriptor's NAME.json.

    Attributes:
        model: all fields of `kjax.runs.config.ModelConfig`; `dtype` is the precision of the
            training.
        data: the training sets, also a teacher's, each with its name and origin. The name is that
            of the set's folder: an evaluation leaves it out.
        extent: side of the patches that suit it, over OpenCV's KeyPoint.size.
        ratio: of a match, the largest that suits it: `benchmarks/ratio.py` chooses it.
        precision: of the stored numbers.
        nested: numbers of first entries that are descriptors themselves, once normalised: those of
            the training's `config.loss.nested`.
    """

    model: dict[str, Any]
    data: list[dict[str, str]]
    extent: float
    precision: str
    nested: tuple[int, ...] = ()
    ratio: float = DEFAULT_RATIO

    def build(self) -> "Descriptor":
        """The model, with the position kernel's constants and the precision of the training."""
        from kjax.runs.config import ModelConfig

        return Schema(ModelConfig, f"model of the card {self.name}").read(self.model).build()

    @property
    def data_names(self) -> list[str]:
        """The training sets."""
        return [one["name"] for one in self.data]

    def own_facts(self) -> dict[str, str]:
        """Where it comes from, and what it takes."""
        return {
            "trained on": ", ".join(self.data_names),
            "precision": str(self.model["dtype"]),
            "extent": f"patches of {self.extent:g} × KeyPoint.size",
            "ratio": f"matches up to {self.ratio:g}",
        }


def readable_photographs(photographs: Sequence[Photographs]) -> str:
    """Scenes, how many photographs they have, whose, and under which licence."""
    return "; ".join(
        f"{one.scene}: {one.count}, {', '.join(one.authors)}, {one.licence}" for one in photographs
    )


def readable_results(results: Mapping[str, float | str]) -> dict[str, str]:
    """Metrics and their values as people write them, e.g. "FPR@95, liberty" and "1.23 %"."""
    return {
        _readable_metric(metric): value if isinstance(value, str) else f"{100 * value:.2f} %"
        for metric, value in results.items()
    }


def make_card(values: Any) -> Card:
    """A card from what a JSON file holds.

    Raises:
        InputError: a field is missing, unknown, empty or of the wrong kind.
    """
    card = read_fields(Card, values)
    _check_data(card.data)
    check_results(card.results)
    if not 0 < card.extent < math.inf:
        raise InputError(f"extent of the card must be positive, not {card.extent}")
    if not 0 < card.ratio <= 1:
        raise InputError(f"ratio of the card must be above 0 and at most 1, not {card.ratio}")
    if "dtype" not in card.model:
        raise InputError("model of the card must be the whole group of that name in the config")
    return card


def read_fields(kind: type[Fields], values: Any) -> Fields:
    """A card of some kind, with all of its fields and none of them empty."""
    card = Schema(kind, "card", wrong="{path} of the card {must}, not {value}").read(values)
    for name, value in vars(card).items():
        if isinstance(value, str | list | dict) and not value:
            raise InputError(f"{name} of the card is empty")
    return card


def _check_data(sets: list[dict[str, str]]) -> None:
    for one in sets:
        if sorted(one) != sorted(DATA_FIELDS):
            raise InputError(f"each set in data of the card needs {', '.join(DATA_FIELDS)}")
        if not all(one.values()):
            raise InputError(f"data of the card: {one['name']!r} has an empty field")


def check_results(results: Mapping[str, float | str]) -> None:
    """Refuses what is neither a share nor text."""
    for metric, value in results.items():
        if not isinstance(value, str) and not 0 <= value <= 1:
            raise InputError(
                f"results of the card: {metric} must be a share from 0 to 1, or text, not {value!r}"
            )


def _readable_metric(metric: str) -> str:
    family, *rest = metric.split("/")
    return ", ".join([METRICS.get(family, family), *rest])
