"""Checksums of whole files."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

CHECKSUMS = "SHA256SUMS"
"""Name of a file as `sha256sum` writes it."""


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_lines(folder: Path, paths: Iterable[Path]) -> Iterator[str]:
    """Lines of `CHECKSUMS` about files in a folder."""
    for path in paths:
        yield f"{sha256(path)}  {path.relative_to(folder)}\n"
