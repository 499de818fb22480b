"""Who verifies matches and maps photographs: pycolmap where it is installed, else COLMAP."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from kjax.errors import InputError
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_program import run_logged

Word = Literal["auto", "pycolmap", "colmap"]
SCRIPT = Path(__file__).with_name("pycolmap_script.py")
MISSING = "neither pycolmap nor colmap is here: pip install pycolmap, or apt-get install colmap"


class Verify(Protocol):
    """Adds two-view geometries to a database that has matches."""

    def __call__(self, database: Path, *, log: Path) -> None:
        """The log gets what is printed."""


class Reconstruct(Protocol):
    """Writes models below a new folder, and returns the folder of each."""

    def __call__(
        self,
        database: Path,
        photos: Path,
        out: Path,
        *,
        log: Path,
        threads: int,
        watch: Callable[[], object],
    ) -> list[Path]:
        """`watch` is called now and then meanwhile."""


class Reconstructor(NamedTuple):
    """A program and its version, which what it finds depends on."""

    name: str
    verify: Verify
    reconstruct: Reconstruct


def find_reconstructor(word: Word = "auto") -> Reconstructor:
    """The program that a word stands for.

    Raises:
        InputError: it is not installed.
    """
    installed = importlib.util.find_spec("pycolmap") is not None
    if word == "pycolmap" and not installed:
        raise InputError("pycolmap is not installed: pip install pycolmap")
    if installed and word != "colmap":
        version = importlib.metadata.version("pycolmap")
        return Reconstructor(f"pycolmap {version}", _verify, _reconstruct)
    if word == "auto" and shutil.which("colmap") is None:
        raise InputError(MISSING)
    return Reconstructor(_program_name(), colmap_program.verify_matches, colmap_program.reconstruct)


def _program_name() -> str:
    """As it introduces itself: "COLMAP 3.8"."""
    command = [colmap_program.require_colmap(), "help"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return said.partition(" --")[0].strip() or "COLMAP"


def _run(log: Path, command: str, *words: object, watch: Callable[[], object] | None) -> None:
    program = [sys.executable, str(SCRIPT), command, *map(str, words)]
    run_logged(program, log, what=f"pycolmap ({command})", watch=watch)


def _verify(database: Path, *, log: Path) -> None:
    _run(log, "verify", database, watch=None)


def _reconstruct(
    database: Path,
    photos: Path,
    out: Path,
    *,
    log: Path,
    threads: int,
    watch: Callable[[], object],
) -> list[Path]:
    out.mkdir(parents=True)
    # Newer versions bring a database up to date, which COLMAP 3.8 then reads no longer.
    copied = shutil.copy(database, out.with_suffix(".db"))

    def attempt(begin_with: Mapping[str, int]) -> None:
        options = [f"{name}={value}" for name, value in begin_with.items()]
        _run(log, "map", copied, photos, out, threads, *options, watch=watch)

    return colmap_program.first_models(attempt, out)
