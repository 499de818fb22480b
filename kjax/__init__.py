"""kjax: learned local patch descriptors in JAX.

The names below are imported when they are first used, so that `import kjax` is quick and pulls in
no framework that the caller does not need.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kjax.version import __version__

if TYPE_CHECKING:
    from kjax import pretrained
    from kjax.architecture import HEADS, Descriptor, build
    from kjax.folding import fold
    from kjax.images.describer import Describer, load
    from kjax.images.extraction import extract_patches
    from kjax.images.matching import match
    from kjax.interop import from_torch, load_variables, save_variables, to_torch
    from kjax.position_encoding import PositionKernel

_HOME = {
    "HEADS": "kjax.architecture",
    "Descriptor": "kjax.architecture",
    "build": "kjax.architecture",
    "fold": "kjax.folding",
    "PositionKernel": "kjax.position_encoding",
    "Describer": "kjax.images.describer",
    "load": "kjax.images.describer",
    "extract_patches": "kjax.images.extraction",
    "match": "kjax.images.matching",
    "from_torch": "kjax.interop",
    "load_variables": "kjax.interop",
    "save_variables": "kjax.interop",
    "to_torch": "kjax.interop",
}
_MODULES = ("pretrained",)

__all__ = [
    "HEADS",
    "Describer",
    "Descriptor",
    "PositionKernel",
    "__version__",
    "build",
    "extract_patches",
    "fold",
    "from_torch",
    "load",
    "load_variables",
    "match",
    "pretrained",
    "save_variables",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"kjax.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'kjax' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
