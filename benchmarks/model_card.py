"""Cards of shipped models (JSON objects): their fields, and their pages in Markdown."""

from collections.abc import Mapping
from typing import Any

from program import table

from kjax.errors import InputError
from kjax.weights.info import display_name
from kjax.weights.ledger import PhotoGroup, permitted_use
from kjax.weights.shipped import DEFAULT_RATIO, readable_results
from kjax.weights.source import model_of

Card = dict[str, Any]
TEXTS = ("summary", "ledger_sha256", "command", "commit", "hardware", "evaluation", "licence")
COMMON_FIELDS = {
    **dict.fromkeys(("name", *TEXTS, "sha256"), str),
    **dict.fromkeys(("seed", "pairs", "parameters"), int),
    **dict.fromkeys(("photographs", "limits"), list),
    "results": dict,
}
"""Fields of every card: `results` are shares from 0 to 1, or text, by metric."""
DESCRIPTOR_FIELDS = COMMON_FIELDS | {
    "model": dict,
    "data": list,
    "extent": float,
    "precision": str,
    "nested": list,
    "ratio": float,
}
"""`model` is that group of the run's config; `data` are sets, each with a name and an origin."""
MATCHER_FIELDS = COMMON_FIELDS | {"described_with": str}
DEFAULTS = {"nested": [], "ratio": DEFAULT_RATIO}


def check_card(values: Mapping[str, Any], fields: Mapping[str, type]) -> Card:
    """Return a complete card; raise if a field is missing, unknown, empty or wrong."""
    card = {**{name: DEFAULTS[name] for name in DEFAULTS if name in fields}, **values}
    if odd := sorted(card.keys() ^ fields.keys()):
        raise InputError(f"missing or unknown fields of the card: {', '.join(odd)}")
    for name, kind in fields.items():
        if kind is float and type(card[name]) is int:
            card[name] = float(card[name])
        if type(card[name]) is not kind or (card[name] in ("", [], {}) and name != "nested"):
            raise InputError(f"{name} of the card must be a {kind.__name__} that is not empty")
    for metric, value in card["results"].items():
        if not isinstance(value, str) and not 0 <= value <= 1:
            raise InputError(f"{metric} of the card must be a share from 0 to 1, or text")
    if "data" in fields and any({*one} != {"name", "origin"} for one in card["data"]):
        raise InputError("each set in data of the card needs name and origin")
    return card


def descriptor_page(card: Card) -> str:
    """Return the page of a descriptor's weights."""
    name, model = card["name"], model_of(card["model"])
    size = model.patch_size
    patches = f"descriptors = describer.describe(patches)  # [count, {size}, {size}]\n"
    parts = [
        f"# {name}",
        card["summary"],
        f"A kjax descriptor, `{display_name(model)}`: from grey patches of {size}×{size} pixels to "
        "unit vectors, compared by Euclidean distance. It has "
        f"{card['parameters']:,} learned parameters, stored in {card['precision']}.",
        "## Use",
        f'```python\nimport kjax\n\ndescriber = kjax.load("{name}")\n'
        f"{'' if model.has_context else patches}"
        "features = describer.describe_image(photo)  # SIFT keypoints, described\n```",
    ]
    if card["nested"]:
        widths = " or ".join(map(str, card["nested"]))
        parts.append(
            f"The first {widths} numbers, normalised, are descriptors as well: "
            f'`kjax.load("{name}", dimension={card["nested"][-1]})`.'
        )
    settings = ((f"`{key}`", f"`{value}`") for key, value in card["model"].items())
    sets = ((one["name"], one["origin"]) for one in card["data"])
    parts += [
        f"The patch of a keypoint has a side of {card['extent']:g} times OpenCV's KeyPoint.size "
        f"({2 * card['extent']:g} σ of SIFT) and is rotated to the keypoint's orientation, as "
        "`describe_image` does. By default, `kjax match` keeps mutual nearest neighbours with a "
        f"distance ratio of at most {card['ratio']:g}.",
        f"```bash\nkjax match a.jpg b.jpg --weights {name}\n"
        f"kjax export {name} --out {name}.onnx\n```",
        "The model is built with these arguments of `kjax.build`:",
        table(("argument", "value"), settings, text=2),
        *_origin(card, table(("training set", "origin"), sets, text=2)),
    ]
    return "\n\n".join(parts) + "\n"


def matcher_page(card: Card) -> str:
    """Return the page of a matcher."""
    weights = card["described_with"]
    which = f"the descriptors of [`{weights}`](../{weights}.md)"
    command = f"kjax match a.jpg b.jpg --weights {weights} --matcher learned"
    if weights == "rootsift":
        which, command = "SIFT", "kjax export sift --part matcher --for colmap --out sift.onnx"
    elif card["name"] != weights:
        command += f" --detector {card['name'].removeprefix(f'{weights}-')}"
    size = f"{card['parameters']:,} parameters in half precision"
    return _part_page(card, "matcher", f"A learned matcher for {which}, with {size}.", command)


def detector_page(card: Card) -> str:
    """Return the page of a detector."""
    size = f"{card['parameters']:,} parameters"
    what = f"A learned detector of keypoints with {size}, for all weights."
    return _part_page(card, "detector", what, f"kjax match a.jpg b.jpg --detector {card['name']}")


def _part_page(card: Card, part: str, what: str, command: str) -> str:
    title, code = f"# The {part} {card['name']}", f"```bash\n{command}\n```"
    return "\n\n".join([title, card["summary"], what, code, *_origin(card)]) + "\n"


def _origin(card: Card, *sets: str) -> list[str]:
    """Data, training, results and limits of any model."""
    groups = [PhotoGroup(**group) for group in card["photographs"]]
    rows = (
        (one.scene, one.count, "; ".join(one.authors), one.licence, one.source) for one in groups
    )
    return [
        f"SHA-256 of `{card['name']}.npz`, checked on every load: `{card['sha256']}`",
        "## Data and licence",
        *sets,
        table(("scene", "photos", "author", "licence", "source"), rows, text=5),
        f"Licence of the weights: {card['licence']}. Use: {permitted_use(groups)}.",
        "## Training",
        f"{card['pairs']:,} pairs, seed {card['seed']}, on {card['hardware']}; kjax at commit "
        f"`{card['commit']}`:",
        f"```bash\n{card['command']}\n```",
        "## Results",
        table(("metric", "value"), readable_results(card["results"]).items(), text=2),
        card["evaluation"],
        "## Limits",
        "\n".join(f"- {limit}" for limit in card["limits"]),
    ]
