"""What both builders share: a set that the user already has needs no download."""

from collections.abc import Callable
from pathlib import Path

import tensorflow_datasets.public_api as tfds


def find_local(
    dl_manager: tfds.download.DownloadManager, name: str, is_set: Callable[[Path], bool]
) -> Path | None:
    """The set in TFDS's manual folder (or in its subfolder `name`), if it is there."""
    try:
        manual = Path(dl_manager.manual_dir)
    except AssertionError:  # how TFDS says that there is none
        return None
    return next((folder for folder in (manual / name, manual) if is_set(folder)), None)
