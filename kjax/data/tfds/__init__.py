"""TensorFlow Datasets builders, one folder each; importing one registers it with `tfds.load`."""

import contextlib
from pathlib import Path
from typing import Any

from kjax.data.download import download_set


def find_or_download(dl_manager: Any, name: str, landmark: str) -> Path:
    """Find a set in TFDS's manual folder, or in its subfolder `name`; otherwise download it."""
    with contextlib.suppress(AssertionError):  # TFDS raises it if there is no manual folder
        manual = Path(dl_manager.manual_dir)
        for folder in (manual / name, manual):
            if any(folder.glob(landmark)):
                return folder
    return download_set(name, Path(dl_manager.download_dir))
