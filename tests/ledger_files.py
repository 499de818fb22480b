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


def row(scene: str, file: str, author: str, licence: str) -> LedgerRow:
    digest, source = hashed(f"{scene}/{file}"), f"example.org/{scene}"
    return LedgerRow(digest, scene, file, source, author, licence)


ROWS = [
    *(row("beach", f"{i}.jpg", name, "CC-BY-4.0") for i, name in enumerate(("Ann", "Ann", "Bob"))),
    row("field", "0.jpg", "unknown", "CC0-1.0"),
    row("tower", "0.jpg", "Cy", "none-stated"),
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
