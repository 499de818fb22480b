"""The folder of shipped weights: names, cards, and files that are what they were."""

from pathlib import Path
from typing import Any

from kjax.errors import InputError, unknown_name
from kjax.files.checksum import sha256
from kjax.files.json_text import parse_json
from kjax.pretrained.cards import Card, make_card

FOLDER = Path(__file__).parent
DEFAULT = "best"
"""What commands and `kjax.load` use if nothing is named."""
PREFIX = "kjax-"
"""What may stand before a name, to tell kjax's own weights from a rival's: kjax-hardnet."""
SAME_AS = "same_as"
"""The one field of a NAME.json that stands for another name."""


def names() -> list[str]:
    """Names of the models that ship with this version."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def find(word: str) -> str | None:
    """The shipped name that a word stands for, with or without `PREFIX`; None if there is none."""
    name = word.removeprefix(PREFIX)
    return name if name in names() else None


def card(name: str) -> Card:
    """What is known about a shipped model; of a name that stands for another, about that one."""
    found = find(name)
    if found is None:
        raise unknown_name("pretrained model", name, names())
    values = _read(found)
    if isinstance(values, dict) and SAME_AS in values:
        if (other := values[SAME_AS]) not in names():
            raise InputError(f"{_path(found)} is damaged ({other!r} is not there): reinstall kjax")
        found, values = other, _read(other)
    try:
        return make_card(values)
    except InputError as error:
        raise InputError(f"{_path(found)} is damaged ({error}): reinstall kjax") from None


def weights_file(shipped: Card) -> Path:
    """The weights of a card.

    Raises:
        InputError: they are missing, or not those that were shipped.
    """
    path = FOLDER / f"{shipped.name}.npz"
    if not path.is_file():
        raise InputError(f"{path} is missing: reinstall kjax")
    if sha256(path) != shipped.sha256:
        raise InputError(f"{path} was altered (its SHA-256 is not its card's): reinstall kjax")
    return path


def _read(name: str) -> Any:
    try:
        return parse_json(_path(name).read_bytes())
    except (ValueError, OSError):
        raise InputError(f"{_path(name)} is damaged or missing: reinstall kjax") from None


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json"
