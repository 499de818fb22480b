"""Cards of shipped models: their fields, and the page that people read."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from kjax.errors import InputError
from kjax.files.typed_values import Schema
from kjax.model.descriptor import Descriptor
from kjax.weights.info import display_name
from kjax.weights.ledger import PhotoGroup, permitted_use
from kjax.weights.shipped import DEFAULT_RATIO, readable_results
from kjax.weights.source import model_of

DATA_FIELDS = ("name", "origin")
AnyCard = TypeVar("AnyCard", bound="TrainedCard")


@dataclasses.dataclass(frozen=True)
class TrainedCard:
    """Fields of every NAME.json.

    Attributes:
        name: name of the model.
        summary: one line on what it is good for.
        photographs: training photographs, grouped.
        ledger_sha256: SHA-256 of the ledger's rows about their scenes.
        command: training command.
        commit: commit of kjax that ran it.
        seed: seed of the training.
        pairs: number of training pairs.
        hardware: hardware of the training.
        results: by metric; shares from 0 to 1, or text.
        evaluation: how the results were measured: data, rules, command, hardware.
        limits: known limits.
        licence: licence of the weights.
        parameters: number of learned parameters.
        sha256: SHA-256 of NAME.npz.
    """

    name: str
    summary: str
    photographs: list[PhotoGroup]
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
        """Permitted use, in one line."""
        return permitted_use(self.photographs)


@dataclasses.dataclass(frozen=True)
class Card(TrainedCard):
    """Fields of a descriptor's NAME.json.

    Attributes:
        model: the group `model` of the run's config.
        data: training sets, also a teacher's: name (of the folder) and origin.
        extent: patch side divided by OpenCV's KeyPoint.size.
        precision: precision of the stored numbers.
        nested: numbers of leading entries that are descriptors: `config.loss.nested`.
        ratio: default maximum distance ratio of matches, chosen by `benchmarks/ratio.py`.
    """

    model: dict[str, Any]
    data: list[dict[str, str]]
    extent: float
    precision: str
    nested: tuple[int, ...] = ()
    ratio: float = DEFAULT_RATIO


@dataclasses.dataclass(frozen=True)
class MatcherCard(TrainedCard):
    """Fields of a matcher's NAME.json, with the weights whose descriptors it matches."""

    described_with: str


def make_card(kind: type[AnyCard], values: Any) -> AnyCard:
    """Make a card from a JSON object; raise if a field is missing, unknown, empty or wrong."""
    card = Schema(kind, "card", wrong="{path} of the card {must}, not {value}").read(values)
    for name, value in vars(card).items():
        if isinstance(value, str | list | dict) and not value:
            raise InputError(f"{name} of the card is empty")
    for metric, value in card.results.items():
        if not isinstance(value, str) and not 0 <= value <= 1:
            raise InputError(
                f"results of the card: {metric} must be a share from 0 to 1, or text, not {value!r}"
            )
    if isinstance(card, Card):
        if any(sorted(one) != sorted(DATA_FIELDS) or not all(one.values()) for one in card.data):
            raise InputError(f"each set in data of the card needs {', '.join(DATA_FIELDS)}")
        if "dtype" not in card.model:
            raise InputError("model of the card must be the whole group of that name in the config")
        if card.extent <= 0 or not 0 < card.ratio <= 1:
            raise InputError("extent and ratio of the card must be positive, and ratio at most 1")
    return card


def model_card(card: Card) -> str:
    """The whole page."""
    return "\n\n".join([*_what(card, model_of(card.model)), *_origin(card), *_worth(card)]) + "\n"


def _what(card: Card, model: Descriptor) -> list[str]:
    size = model.patch_size
    return [
        f"# {card.name}",
        card.summary,
        f"A kjax descriptor, `{display_name(model)}`: from grey patches of {size}×{size} pixels to "
        f"descriptors of unit norm, which are compared by Euclidean distance. It has "
        f"{card.parameters:,} learned parameters, stored in {card.precision}.",
        "## Use",
        f'```python\nimport kjax\n\ndescriber = kjax.load("{card.name}")\n'
        f"descriptors = describer.describe(patches)  # [count, {size}, {size}]\n"
        "features = describer.describe_image(photograph)  # SIFT keypoints, described\n```",
        *_shorter(card),
        f"The patch of a keypoint has {card.extent:g} times OpenCV's KeyPoint.size as its side "
        f"({2 * card.extent:g} σ of SIFT's) and is turned to the keypoint's orientation: "
        "`describe_image` cuts it so. `kjax match` keeps what is nearest to each other and at most "
        f"{card.ratio:g} times as far as the second nearest.",
        f"```bash\nkjax match a.jpg b.jpg --weights {card.name}\n"
        f"kjax export {card.name} --to {card.name}.onnx\n```",
        "The model is built with these arguments of `kjax.build`:",
        table(("argument", "value"), ((f"`{k}`", f"`{v}`") for k, v in card.model.items())),
        f"SHA-256 of `{card.name}.npz`, checked at every loading: `{card.sha256}`",
    ]


def _shorter(card: Card) -> list[str]:
    if not card.nested:
        return []
    widths = " or ".join(map(str, card.nested))
    return [
        f"The first {widths} numbers, normalised, are descriptors themselves: "
        f'`kjax.load("{card.name}", dimension={card.nested[-1]})`.'
    ]


def _origin(card: Card) -> list[str]:
    return [
        "## Data and licence",
        table(
            ("training set", "origin"),
            ([one[field] for field in DATA_FIELDS] for one in card.data),
        ),
        photographs_table(card.photographs),
        f"Licence of the weights: {card.licence}. Use: {card.use}.",
        "## Training",
        f"{card.pairs:,} pairs, seed {card.seed}, in {card.model['dtype']}, on {card.hardware}; "
        f"kjax at commit `{card.commit}`:",
        f"```bash\n{card.command}\n```",
    ]


def _worth(card: Card) -> list[str]:
    return [
        "## Results",
        table(("metric", "value"), readable_results(card.results).items()),
        card.evaluation,
        "## Limits",
        "\n".join(f"- {limit}" for limit in card.limits),
    ]


def photographs_table(photographs: Iterable[PhotoGroup]) -> str:
    """What a model learned from, a row for each scene and licence."""
    return table(
        ("scene", "photographs", "author", "licence", "source"),
        (
            (one.scene, str(one.count), "; ".join(one.authors), one.licence, one.source)
            for one in photographs
        ),
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")
