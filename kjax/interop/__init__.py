"""Exchange with PyTorch: state dicts in and out, a reference implementation, and a comparison.

The names below are imported when they are first used: the twin in PyTorch needs none of them, and
no JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kjax.interop.files import load_variables, save_variables
    from kjax.interop.state_dict import from_torch, to_torch

_HOME = {
    "from_torch": "kjax.interop.state_dict",
    "load_variables": "kjax.interop.files",
    "save_variables": "kjax.interop.files",
    "to_torch": "kjax.interop.state_dict",
}

__all__ = ["from_torch", "load_variables", "save_variables", "to_torch"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kjax.interop' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
