"""The photographs that the words of a command stand for, and the names that they go by."""

import glob
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from kjax.data.cutting.photographs import list_photos
from kjax.errors import InputError


def named_photographs(words: Iterable[str]) -> dict[str, Path]:
    """Photographs by name, each once, from files, folders or patterns.

    A name is the path below the one folder that is given, or below the folder that all files and
    folders have in common. So photographs of one name in two folders stay apart.

    Raises:
        InputError: a word stands for nothing, or a name cannot be written down.
    """
    places = [place for word in words for place in _places(word)]
    try:
        root = os.path.commonpath([place if place.is_dir() else place.parent for place in places])
    except ValueError:
        raise InputError("photographs on several drives have no common folder") from None
    files = (list_photos(place) if place.is_dir() else [place] for place in places)
    named = {
        file.relative_to(root).as_posix(): file for file in itertools.chain.from_iterable(files)
    }
    for name in named:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(f"the name of {name!r} is no UTF-8: rename the file") from None
    return named


def _places(word: str) -> list[Path]:
    """Files and folders that a word stands for, as absolute paths; links stay links."""
    found = [word] if os.path.exists(word) else sorted(glob.glob(word, recursive=True))
    if not found:
        raise InputError(f"no such file, folder or pattern: {word}")
    return [Path(os.path.abspath(place)) for place in found]
