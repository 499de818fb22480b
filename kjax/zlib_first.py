"""Python's zlib before pycolmap's: imported for what importing it does.

pycolmap's wheels for Linux (4.2.1 is one) export the functions of a zlib of their own, and bring
the system's libz.so.1 along. If nobody had loaded that before, its calls of itself end in
pycolmap's functions, for good: whatever compresses with it in this process then aborts, with
"free(): invalid pointer". Python's module zlib loads it in time.
"""

import sys
import warnings


def _came_before(first: str, second: str) -> bool:
    """Whether a module has been imported, and before the other one."""
    order = list(sys.modules)  # a dictionary keeps it
    return first in order and (second not in order or order.index(first) < order.index(second))


_TOO_LATE = (
    sys.platform == "linux"
    and "zlib" not in sys.builtin_module_names
    and _came_before("pycolmap._core", "zlib")
)

import zlib  # noqa: E402, F401

if _TOO_LATE:
    warnings.warn(
        "pycolmap was imported before zlib, so whatever compresses (PNG, .npz, …) may abort this "
        "program: import zlib, or kjax, first",
        RuntimeWarning,
        stacklevel=3,
    )
