"""The folder of shipped weights: names, cards, the ledger, and files that are what they were.

SHA256SUMS holds the hashes of all cards and of the ledger, a card those of its weights and of what
the ledger says about its photographs. So damage is found, and so are careless edits: of a licence,
of a card whose weights were replaced, of one file out of another version. It is no signature: who
can write all of these files can make them agree.
"""

from pathlib import Path
from typing import Any

from kjax.errors import InputError, unknown_name
from kjax.files.atomic import write_text
from kjax.files.checksum import CHECKSUMS, checksum_lines, sha256
from kjax.files.json_text import parse_json
from kjax.weights.cards import Card, make_card
from kjax.weights.ledger import LEDGER_FILE, Ledger, check_told, read_ledger

FOLDER = Path(__file__).parent / "trained"
DEFAULT = "best"
"""What commands and `kjax.load` use if nothing is named."""
PREFIX = "kjax-"
"""What may stand before a name, to tell kjax's own weights from a rival's: kjax-hardnet."""
SAME_AS = "same_as"
"""The one field of a NAME.json that stands for another name."""


def list_weights() -> list[str]:
    """Names of the models that ship with this version."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def find(word: str) -> str | None:
    """The shipped name that a word stands for, with or without `PREFIX`; None if there is none."""
    name = word.removeprefix(PREFIX)
    return name if name in list_weights() else None


def card(name: str) -> Card:
    """What is known about a shipped model; of a name that stands for another, about that one."""
    found = find(name)
    if found is None:
        raise unknown_name("pretrained model", name, list_weights())
    values = _read(found)
    if isinstance(values, dict) and SAME_AS in values:
        if (other := values[SAME_AS]) not in list_weights():
            raise InputError(f"{_path(found)} is damaged ({other!r} is not there): reinstall kjax")
        found, values = other, _read(other)
    known = photographs()
    try:
        made = make_card(values)
        check_told(made.photographs, made.ledger_sha256, known)
    except InputError as error:
        raise InputError(f"{_path(found)} is damaged ({error}): reinstall kjax") from None
    return made


def photographs() -> Ledger:
    """What is known about the photographs that weights learned from."""
    path = FOLDER / LEDGER_FILE
    check_unaltered(path)
    return read_ledger(path)


def seal() -> None:
    """Writes the hashes of all cards and of the ledger, as they are now."""
    cards = [*sorted(FOLDER.glob("*.json")), *sorted(FOLDER.glob("*/*.json"))]
    files = [*cards, FOLDER / LEDGER_FILE]
    write_text(FOLDER / CHECKSUMS, "".join(checksum_lines(FOLDER, files)))


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
    check_unaltered(_path(name))
    try:
        return parse_json(_path(name).read_bytes())
    except (ValueError, OSError):
        raise InputError(f"{_path(name)} is damaged or missing: reinstall kjax") from None


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def check_unaltered(path: Path) -> None:
    """Refuses a card, or a ledger, that is not what was sealed."""
    try:
        sealed = (FOLDER / CHECKSUMS).read_text(encoding="utf-8").splitlines(keepends=True)
        (found,) = checksum_lines(FOLDER, [path])
    except (ValueError, OSError):
        raise InputError(f"{path} or {CHECKSUMS} is damaged or missing: reinstall kjax") from None
    if found not in sealed:
        raise InputError(f"{path} was altered (it is not in {CHECKSUMS}): reinstall kjax")
