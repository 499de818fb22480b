"""kjax: learned local patch descriptors in JAX.

The names below are imported when they are first used, so that `import kjax` is quick and pulls in
no framework that the caller does not need.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kjax import zlib_first  # noqa: F401
from kjax.version import __version__

if TYPE_CHECKING:
    from kjax.images.aligning import align_matches
    from kjax.images.describer import Describer, load
    from kjax.images.extraction import extract_patches
    from kjax.images.learned_matching import load_matcher
    from kjax.images.matching import match, match_many
    from kjax.model.descriptor import HEADS, Descriptor, build
    from kjax.model.folding import fold
    from kjax.model.position_encoding import PositionKernel
    from kjax.model.quantization import quantize
    from kjax.weights.files import load_variables, save_variables
    from kjax.weights.shipped import list_weights
    from kjax.weights.torch_names import from_torch, to_torch

_HOME = {
    "HEADS": "kjax.model.descriptor",
    "Descriptor": "kjax.model.descriptor",
    "align_matches": "kjax.images.aligning",
    "build": "kjax.model.descriptor",
    "fold": "kjax.model.folding",
    "PositionKernel": "kjax.model.position_encoding",
    "quantize": "kjax.model.quantization",
    "Describer": "kjax.images.describer",
    "load": "kjax.images.describer",
    "extract_patches": "kjax.images.extraction",
    "match": "kjax.images.matching",
    "match_many": "kjax.images.matching",
    "from_torch": "kjax.weights.torch_names",
    "list_weights": "kjax.weights.shipped",
    "load_matcher": "kjax.images.learned_matching",
    "load_variables": "kjax.weights.files",
    "save_variables": "kjax.weights.files",
    "to_torch": "kjax.weights.torch_names",
}

__all__ = [
    "HEADS",
    "Describer",
    "Descriptor",
    "PositionKernel",
    "__version__",
    "align_matches",
    "build",
    "extract_patches",
    "fold",
    "from_torch",
    "list_weights",
    "load",
    "load_matcher",
    "load_variables",
    "match",
    "match_many",
    "quantize",
    "save_variables",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kjax' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
