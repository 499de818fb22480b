"""Learned matchers that ship, and what is known about them.

Each is three files of `SUBFOLDER`, written by `benchmarks/tools/ship_matcher.py`: NAME.npz,
NAME.json, which is checked as a descriptor's card is, and NAME.md for people.
"""

import dataclasses
from pathlib import Path
from typing import Any

from kjax.errors import InputError, unknown_name
from kjax.files.checksum import sha256
from kjax.files.json_text import parse_json
from kjax.pretrained import shipped
from kjax.pretrained.cards import (
    check_results,
    read_fields,
    readable_photographs,
    readable_results,
)
from kjax.pretrained.ledger import Photographs, check_told, use

SUBFOLDER = "matcher_files"


@dataclasses.dataclass(frozen=True)
class MatcherCard:
    """The content of a matcher's NAME.json.

    Attributes:
        name: of the matcher.
        summary: one line on what it is good for.
        described_with: the shipped weights whose descriptors it matches.
        photographs: that it learned from, in short.
        ledger_sha256: of all that the ledger says about these photographs' scenes.
        command: that trained it.
        commit: of kjax, with which.
        seed: of the training.
        pairs: seen in training.
        hardware: of the training.
        results: by metric; shares from 0 to 1, or text.
        evaluation: how the results were obtained.
        limits: what it is not good for, or not known to be.
        licence: of the weights.
        parameters: how many are learned.
        sha256: of NAME.npz.
    """

    name: str
    summary: str
    described_with: str
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
        """What one may do with it, in one line."""
        return use(self.photographs)

    def facts(self) -> dict[str, str]:
        """What to tell people: labels and short texts, in order."""
        return {
            "use": self.use,
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
