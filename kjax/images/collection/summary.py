"""What became of a collection, in figures."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kjax.data.colmap import NO_POINT, read_keypoints
from kjax.images.collection.mapping import largest_model
from kjax.images.exchange.colmap_database import read_matches


@dataclasses.dataclass(frozen=True)
class Summary:
    """Figures of a database and of what was mapped from it.

    Attributes:
        photos: that there are.
        keypoints: of all photographs.
        pairs: of photographs that were matched.
        verified_pairs: with a two-view geometry.
        verified_matches: of all of them.
        models: that the mapper found; the rest is about the largest.
        images: that are registered.
        points: in 3-D.
        observations: of the points in the images.
        track_length: observations per point.
        error: mean of the points' mean reprojection errors, in pixels.
    """

    photos: int
    keypoints: int
    pairs: int
    verified_pairs: int
    verified_matches: int
    models: int
    images: int
    points: int
    observations: int
    track_length: float
    error: float


class Stopwatch:
    """Seconds of the stages of some work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Measures one stage."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start


def summarize(database: Path, folders: Sequence[Path]) -> Summary:
    """The figures of a database and of the models that were mapped from it."""
    verified = [len(pair) for pair in read_matches(database, verified=True).values()]
    keypoints = read_keypoints(database)
    largest = largest_model(folders)
    images = [] if largest is None else list(largest.images.values())
    points = 0 if largest is None else len(largest.points.ids)
    observations = int(sum((image.point_ids != NO_POINT).sum() for image in images))
    return Summary(
        photos=len(keypoints),
        keypoints=sum(map(len, keypoints.values())),
        pairs=len(read_matches(database)),
        verified_pairs=sum(count > 0 for count in verified),
        verified_matches=sum(verified),
        models=len(folders),
        images=len(images),
        points=points,
        observations=observations,
        track_length=observations / points if points else 0.0,
        error=float(np.mean(largest.points.error)) if largest is not None and points else 0.0,
    )
