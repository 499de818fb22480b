"""A small ledger in a folder of shipped weights, and sets cut from its photographs."""

import csv
import hashlib
from pathlib import Path

import numpy as np

from kjax.data.phototour import SetPhotograph, write_phototour, write_set_photographs
from kjax.files.atomic import CHECKSUMS, checksum_lines
from kjax.weights import shipped
from kjax.weights.ledger import LEDGER_FILE, LedgerRow


def hashed(name: str) -> str:
    """What stands for the hash of a photograph."""
    return hashlib.sha256(name.encode()).hexdigest()


ROWS = [
    LedgerRow(hashed(f"{scene}/{file}"), scene, file, f"example.org/{scene}", author, licence)
    for scene, file, author, licence in (
        ("beach", "0.jpg", "Ann", "CC-BY-4.0"),
        ("beach", "1.jpg", "Ann", "CC-BY-4.0"),
        ("beach", "2.jpg", "Bob", "CC-BY-4.0"),
        ("field", "0.jpg", "unknown", "CC0-1.0"),
        ("tower", "0.jpg", "Cy", "none-stated"),
    )
]


def write_ledger(folder: Path, rows: list[LedgerRow]) -> None:
    """Writes and seals, whatever the rows are."""
    with (folder / LEDGER_FILE).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([LedgerRow._fields, *rows])
    seal()


def seal() -> None:
    """Writes the hashes of the cards and the ledger, as `benchmarks/ship.py` does."""
    folder = shipped.FOLDER
    files = [*folder.glob("*.json"), *folder.glob("*/*.json"), folder / LEDGER_FILE]
    (folder / CHECKSUMS).write_text("".join(checksum_lines(folder, files)))


def write_set(folder: Path, *names: str) -> Path:
    """A set of two points in each photograph, named scene/file."""
    numbers = np.repeat(np.arange(len(names)), 4).astype(float)
    interest = np.column_stack([numbers, np.ones((len(numbers), 4))])
    patches = np.zeros((len(numbers), 64, 64), np.uint8)
    write_phototour(folder, patches, np.arange(len(numbers)) // 2, interest=interest)
    listed = [SetPhotograph(number, name, hashed(name)) for number, name in enumerate(names)]
    write_set_photographs(folder, listed)
    return folder
