"""COLMAP's mapper on a database: models in `sparse`, the largest first."""

import os
import re
import shutil
from pathlib import Path

from tqdm import tqdm

from kjax.data.cache import new_folder
from kjax.data.colmap import read_model
from kjax.images.exchange.reconstructors import Reconstructor
from kjax.images.mapping import model_size

_REGISTERING = re.compile(rb"Registering image #\d+ \(\D*(\d+)\)")
"""A line of the mapper: which photograph, and the how manieth it is."""
_FOUND = "found"
"""Models are found in a folder of this name, then put in order beside it."""


def map_photographs(
    database: Path, photos: Path, out: Path, *, count: int, reconstructor: Reconstructor, log: Path
) -> list[Path]:
    """Maps photographs; the folder of the models appears when all are there.

    Args:
        database: with verified matches.
        photos: the folder that names in it are relative to.
        out: of the models: 0, 1 and so on, the one of most photographs first.
        count: of the photographs.
        reconstructor: who maps.
        log: of what it prints.
    """
    shutil.rmtree(out, ignore_errors=True)
    # The mapper asks for them by name from wherever it runs.
    database, photos = database.resolve(), photos.resolve()
    with new_folder(out) as partial, tqdm(total=count, desc="mapping", unit="photo") as bar:
        follow = _Follower(log, bar)
        found = reconstructor.reconstruct(
            database,
            photos,
            partial / _FOUND,
            log=log,
            threads=os.cpu_count() or 1,
            watch=follow,
        )
        sizes = {folder: model_size(read_model(folder)) for folder in found}
        for number, folder in enumerate(sorted(found, key=sizes.__getitem__, reverse=True)):
            folder.rename(partial / str(number))
        follow.move(max(sizes.values(), default=(0, 0))[0])
        shutil.rmtree(partial / _FOUND, ignore_errors=True)
        (partial / f"{_FOUND}.db").unlink(missing_ok=True)
    return sorted(out.iterdir(), key=lambda folder: int(folder.name))


class _Follower:
    """Moves a bar to where a log says that the mapper is."""

    def __init__(self, log: Path, bar: tqdm) -> None:
        self._log, self._bar = log, bar
        self._read = log.stat().st_size if log.exists() else 0

    def __call__(self) -> None:
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        # The last line may still be written: it is read again.
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        if registered := _REGISTERING.findall(whole):
            self.move(int(registered[-1]))

    def move(self, registered: int) -> None:
        """Moves the bar."""
        self._bar.n = registered
        self._bar.refresh()
