"""Optional packages, and JAX, imported on demand.

A missing package gives one line with the extra to install. Where kjax is installed, also from a
checkout, pip knows its extras.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kjax.errors import InputError

EXTRAS = {
    **dict.fromkeys(("cv2", "skimage"), "photos"),
    **dict.fromkeys(("jinja2", "matplotlib"), "figures"),
    **dict.fromkeys(("flatbuffers", "onnx", "onnxruntime", "safetensors"), "export"),
    **dict.fromkeys(("tensorflow", "tensorflow_datasets"), "tfds"),
    **{"h5py": "exchange", "pillow_heif": "heic", "ray": "cluster", "torch": "torch"},
}
"""The extra of kjax that installs each optional module."""


class _OnDemand(ModuleType):
    """A module that is imported when one of its names is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax, jnp = _OnDemand("jax"), _OnDemand("jax.numpy")


def is_jax_array(value: Any) -> bool:
    """Whether a value is JAX's array; if JAX was never imported, it is not."""
    return "jax" in sys.modules and isinstance(value, jax.Array)


def optional(module: str) -> ModuleType | None:
    """Import a module that is only faster; None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def require(module: str, purpose: str) -> ModuleType:
    """Import an optional module.

    Args:
        module: name for Python, "cv2" or "safetensors.numpy".
        purpose: what needs it, as the beginning of a sentence: "finding keypoints".
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        command = f"pip install 'kjax[{EXTRAS[package]}]'"
        raise InputError(f"{purpose} needs {package}: {command}") from None
