"""Packages that are extras: the one place that imports them for those who ask.

A package that is missing is one line, with a command that works whether kjax came from an index or
runs from a checkout: it names the package itself, not an extra of kjax.
"""

import importlib
from types import ModuleType

from kjax.errors import InputError

PIP_NAMES = {
    "cv2": "opencv-contrib-python-headless",
    "flatbuffers": "flatbuffers",
    "h5py": "h5py",
    "matplotlib": "matplotlib",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "ray": "ray",
    "safetensors": "safetensors",
    "skimage": "scikit-image",
    "tensorboardX": "tensorboardX",
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "tensorflow-datasets",
    "torch": "torch",
}
"""What pip calls the packages that kjax imports only when they are needed."""


def require(module: str, purpose: str) -> ModuleType:
    """A module that an extra brings, or one line that says what needs it and how to get it.

    Args:
        module: its name for Python, "cv2" or "safetensors.numpy".
        purpose: what it is for, as the beginning of a sentence: "finding keypoints".

    Raises:
        InputError: it is not installed.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"{purpose} needs {package}: pip install {PIP_NAMES[package]}") from None
