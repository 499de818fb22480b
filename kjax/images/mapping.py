"""Photographs mapped by COLMAP with other descriptors than its own."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tqdm import tqdm

from kjax.data.colmap import Model, read_model
from kjax.data.cutting.keypoints import Keypoints
from kjax.errors import InputError
from kjax.images.collection.pairs import among_themselves, exhaustive, in_blocks
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import Pair, write_database
from kjax.images.features import Features
from kjax.images.matching import Distance, match_many

AT_ONCE = 32
"""Pairs that are matched together."""


def keypoints_of(features: Features) -> Keypoints:
    """What COLMAP found, to be described by others."""
    if features.scales is None or features.angles is None:
        raise InputError("COLMAP's keypoints have no scale and orientation: let it find them anew")
    scores = np.ones(len(features), np.float32)
    return Keypoints(features.xy, features.scales, features.angles, scores)


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
