"""How much a packed file may unpack to: enough for real data, too little for a bomb."""

from kjax.errors import InputError

FREE_BYTES = 128 << 20
"""Bytes that every file may unpack to, however small it is."""
LARGEST_RATIO = 20
"""How many times its own size a larger one may take. Photographs, weights and features take up to
three; only what is made to be nothing but zeros takes more."""


def check_unpacked(packed: int, unpacked: int, *, free: int = FREE_BYTES) -> None:
    """Refuses bytes that are out of all proportion to those of the file that they come from.

    Raises:
        InputError: without the file's name, which the caller knows.
    """
    if unpacked > max(free, LARGEST_RATIO * packed):
        raise InputError(
            f"{packed:,} bytes would unpack to {unpacked:,}: the file is damaged, or made to fill "
            "the memory"
        )
