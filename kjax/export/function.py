"""What a file that holds a function is made from, and how it is written."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kjax.errors import InputError
from kjax.files.atomic import write_whole
from kjax.model.descriptor import Descriptor

LIMIT = 1e-4
"""Largest difference to kjax's own numbers that is accepted."""


class DescribingFunction(NamedTuple):
    """The function from patches [B,N,N] to descriptors.

    Attributes:
        folded: a model as `kjax.fold` gives it.
        weights: the same.
        dtype: of the patches.
        batch: B, if the function shall take no other.
        about: what the file shall tell of itself.
    """

    folded: Descriptor
    weights: Mapping[str, Any]
    dtype: str = "float32"
    batch: int | None = None
    about: Mapping[str, str] = {}


def write_checked(path: Path, write: Callable[[Path], float]) -> float:
    """Keeps a file if `write`, which returns how it differs from kjax, finds `LIMIT` or less."""
    differences: list[float] = []

    def write_and_check(partial: Path) -> None:
        differences.append(write(partial))
        if not differences[0] <= LIMIT:  # NaN is no agreement either
            raise InputError(
                f"{path} would differ from kjax by {differences[0]:.1e}, more than {LIMIT:.0e}: "
                "it has not been kept"
            )

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, write_and_check)
    return differences[0]
