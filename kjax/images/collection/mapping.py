"""COLMAP's mapper on a database: models in `sparse`, the largest first."""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from kjax.data.cache import new_folder
from kjax.data.colmap import Model, read_model
from kjax.images.collection.pairs import among_themselves, exhaustive, in_blocks
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import Pair, write_database
from kjax.images.exchange.reconstructors import Reconstructor
from kjax.images.features import Features
from kjax.images.matching import Distance, match_many

_REGISTERING = re.compile(rb"Registering image #\d+ \(\D*(\d+)\)")
"""A line of the mapper: which photograph, and the how manieth it is."""
_FOUND = "found"
"""Models are found in a folder of this name, then put in order beside it."""
AT_ONCE = 32
"""Pairs that are matched together."""


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


def verify_matches(
    database: Path,
    features: dict[str, Features],
    *,
    base: Path,
    ratio: float,
    log: Path,
    distance: Distance = "L2",
    progress: bool = True,
    threads: int = 1,
) -> None:
    """A new database of features and their mutual matches, which COLMAP verifies.

    Args:
        database: to write.
        features: of the photographs, by name.
        base: COLMAP's own database, whose cameras are taken.
        ratio: the largest that is kept.
        log: of what COLMAP prints.
        distance: of the descriptors.
        progress: show a bar.
        threads: of COLMAP.
    """
    matches = match_all(features, ratio=ratio, distance=distance, progress=progress)
    write_database(database, features, matches)
    colmap_program.copy_cameras(base, database)
    colmap_program.match_and_verify(database, log=log, threads=threads)


def match_all(
    features: dict[str, Features], *, ratio: float, distance: Distance, progress: bool
) -> dict[tuple[str, str], Pair]:
    """The mutual matches of every pair of photographs."""
    names, found = list(features), {}
    pairs = exhaustive(len(names))
    with tqdm(total=len(pairs), desc="matching", unit="pair", disable=not progress) as bar:
        for block in in_blocks(pairs, AT_ONCE):
            places, within = among_themselves(block)
            descriptors = [features[names[place]].descriptors for place in places]
            matched = match_many(
                descriptors, within, method="mutual_ratio", ratio=ratio, distance=distance
            )
            for (first, second), matches in zip(block, matched, strict=True):
                found[names[first], names[second]] = Pair(matches.indices)
            bar.update(len(block))
    return found


def largest_model(folders: Iterable[Path]) -> Model | None:
    """Of COLMAP's models that with the most photographs, and then points; None of none."""
    models = [read_model(folder) for folder in folders]
    return max(models, key=model_size, default=None)


def model_size(model: Model) -> tuple[int, int]:
    """Photographs and points: what makes a model larger than another."""
    return len(model.images), len(model.points.ids)
