"""kjax: learned local patch descriptors in JAX.

The names below are imported on first use, so `import kjax` is quick and imports no framework that
the caller does not need.
"""

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from kjax.version import __version__

# pycolmap's wheels for Linux (4.2.1 is one) export the functions of their own zlib and load the
# system's libz.so.1. Unless Python's zlib was loaded before, whatever compresses in this process
# then aborts with "free(): invalid pointer".
_modules = list(sys.modules)  # in the order of their import
_TOO_LATE = (
    sys.platform == "linux"
    and "zlib" not in sys.builtin_module_names
    and "pycolmap._core" in _modules
    and "zlib" not in _modules[: _modules.index("pycolmap._core")]
)
import zlib  # noqa: E402

if _TOO_LATE:
    warnings.warn(
        "pycolmap was imported before zlib, so whatever compresses (PNG, .npz, …) may abort this "
        "program: import zlib, or kjax, first",
        RuntimeWarning,
        stacklevel=2,
    )

if TYPE_CHECKING:
    from kjax.images.align import align_matches
    from kjax.images.describer import Describer, load
    from kjax.images.draw import plot_matches
    from kjax.images.extract import extract_patches
    from kjax.images.learned import load_matcher
    from kjax.images.match import match, match_many
    from kjax.images.pairs import match_photos
    from kjax.images.poses import relative_pose
    from kjax.model import HEADS
    from kjax.model.descriptor import Descriptor, build
    from kjax.model.folding import fold
    from kjax.model.position_encoding import PositionKernel
    from kjax.model.quantization import quantize
    from kjax.weights.files import load_variables, save_variables
    from kjax.weights.shipped import list_weights
    from kjax.weights.torch_names import from_torch, to_torch

_HOME = {
    "HEADS": "model",
    "Describer": "images.describer",
    "Descriptor": "model.descriptor",
    "PositionKernel": "model.position_encoding",
    "align_matches": "images.align",
    "build": "model.descriptor",
    "extract_patches": "images.extract",
    "fold": "model.folding",
    "from_torch": "weights.torch_names",
    "list_weights": "weights.shipped",
    "load": "images.describer",
    "load_matcher": "images.learned",
    "load_variables": "weights.files",
    "match": "images.match",
    "match_many": "images.match",
    "match_photos": "images.pairs",
    "plot_matches": "images.draw",
    "quantize": "model.quantization",
    "relative_pose": "images.poses",
    "save_variables": "weights.files",
    "to_torch": "weights.torch_names",
}
"""Modules of the public names."""
__all__ = [
    "__version__",
    *_HOME,
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kjax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kjax.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
