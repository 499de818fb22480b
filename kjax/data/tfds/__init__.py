"""TensorFlow Datasets builders, one folder each; importing one registers it with `tfds.load`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def find_local(dl_manager: Any, name: str, is_set: Callable[[Path], bool]) -> Path | None:
    """Find a set in TFDS's manual folder, or in its subfolder `name`; None if it is not there."""
    try:
        manual = Path(dl_manager.manual_dir)
    except AssertionError:  # TFDS raises it if there is no manual folder
        return None
    return next((folder for folder in (manual / name, manual) if is_set(folder)), None)
