"""Optional packages, imported on demand.

A missing package gives one line with a pip command that works for installations and checkouts: it
names the package itself, not an extra of kjax.
"""

import importlib
from types import ModuleType

from kjax.errors import InputError

PIP_NAMES = {"cv2": "opencv-contrib-python-headless", "skimage": "scikit-image"}
"""Names of packages for pip, if they differ from the module's."""


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
        pip_name = PIP_NAMES.get(package, package.replace("_", "-"))
        raise InputError(f"{purpose} needs {package}: pip install {pip_name}") from None
