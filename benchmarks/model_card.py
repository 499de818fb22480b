"""A card as the page that people read."""

from collections.abc import Iterable, Sequence

from kjax.model.descriptor import Descriptor
from kjax.weights.cards import DATA_FIELDS, Card, readable_results
from kjax.weights.identify import display_name
from kjax.weights.ledger import Photographs


def model_card(card: Card) -> str:
    """The whole page."""
    return "\n\n".join([*_what(card, card.build()), *_origin(card), *_worth(card)]) + "\n"


def reference(name: str, target: str) -> str:
    """The page of a name that stands for another."""
    return f"# {name}\n\nThe same weights as [`{target}`]({target}.md).\n"


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


def photographs_table(photographs: Iterable[Photographs]) -> str:
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
