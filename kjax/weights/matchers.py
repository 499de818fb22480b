"""Learned matchers that ship, and what is known about them.

Each is three files of `SUBFOLDER`, written by `benchmarks/ship_matcher.py`: NAME.npz,
NAME.json, which is checked as a descriptor's card is, and NAME.md for people.
"""

import dataclasses
from pathlib import Path
from typing import Any

from kjax.errors import InputError, unknown_name
from kjax.files.checksum import sha256
from kjax.files.json_text import parse_json
from kjax.weights import shipped
from kjax.weights.cards import TrainedCard, check_results, read_fields
from kjax.weights.ledger import check_told

SUBFOLDER = "matchers"


@dataclasses.dataclass(frozen=True)
class MatcherCard(TrainedCard):
    """The content of a matcher's NAME.json.

    Attributes:
        described_with: the shipped weights whose descriptors it matches.
    """

    described_with: str


def matchers_folder() -> Path:
    """Where their files are."""
    return shipped.FOLDER / SUBFOLDER


def matcher_names() -> list[str]:
    """Names of the matchers that ship with this version."""
    return sorted(path.stem for path in matchers_folder().glob("*.json"))


def matcher_card(name: str) -> MatcherCard:
    """What is known about a shipped matcher.

    Raises:
        InputError: there is none of that name, or its card is damaged.
    """
    if name not in matcher_names():
        raise unknown_name("matcher", name, matcher_names())
    path = matchers_folder() / f"{name}.json"
    shipped.check_unaltered(path)
    try:
        card = make_matcher_card(parse_json(path.read_bytes()))
        check_told(card.photographs, card.ledger_sha256, shipped.photographs())
    except (InputError, ValueError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}): reinstall kjax") from None
    return card


def make_matcher_card(values: Any) -> MatcherCard:
    """A card from what a JSON file holds.

    Raises:
        InputError: a field is missing, unknown, empty or of the wrong kind.
    """
    card = read_fields(MatcherCard, values)
    check_results(card.results)
    return card


def matcher_file(name: str) -> Path:
    """The weights of a shipped matcher.

    Raises:
        InputError: there is none of that name, or it is not what was shipped.
    """
    card, path = matcher_card(name), matchers_folder() / f"{name}.npz"
    if not path.is_file() or sha256(path) != card.sha256:
        raise InputError(f"{path} is missing or was altered: reinstall kjax")
    return path
