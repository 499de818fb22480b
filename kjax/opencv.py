"""OpenCV, which is an extra: the one place that imports it for those who ask."""

from types import ModuleType

from kjax.errors import InputError


def require_opencv(purpose: str) -> ModuleType:
    """OpenCV, or one line that says what needs it and how to get it."""
    try:
        import cv2
    except ImportError:
        raise InputError(f"{purpose} needs OpenCV: pip install 'kjax[photos]'") from None
    return cv2
