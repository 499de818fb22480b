"""Cameras of a scene's photographs by COLMAP, from all of them and its own SIFT.

Its descriptors are matched exactly (mutual, ratio 0.8): COLMAP 3.8 itself is slow at that on a CPU.
"""

import dataclasses
import shutil
from pathlib import Path

from kjax.data.colmap import Model
from kjax.errors import InputError
from kjax.images.collection.mapping import largest_model, verify_matches
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import read_features

KEYPOINTS = 4096
RATIO = 0.8


def scene_model(photos: Path, work: Path, *, threads: int) -> Model:
    """The largest model of a folder of photographs, made if it is not there yet.

    Args:
        photos: the folder.
        work: keeps the models, each in a folder of the scene's name.
        threads: of COLMAP.
    """
    done = work / photos.name / "sparse"
    if not done.is_dir():
        _make(photos, work / photos.name, threads)
    model = largest_model(colmap_program.models_below(done))
    if model is None:
        raise InputError(f"COLMAP finds no model of {photos}: see {done.parent / 'log.txt'}")
    return model


def _make(photos: Path, folder: Path, threads: int) -> None:
    """Beside its place first, so that half a run is none."""
    begun = folder.with_name(f"{folder.name}.begun")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    own, database, log = (begun / name for name in ("sift.db", "database.db", "log.txt"))
    colmap_program.extract_sift(
        own,
        photos,
        max_keypoints=KEYPOINTS,
        single_camera=colmap_program.of_one_size(photos),
        log=log,
        threads=threads,
    )
    rows = colmap_program.read_sift(own)
    found = read_features(own, colmap_program.photo_sizes(own))
    features = {
        name: dataclasses.replace(one, descriptors=rows[name]) for name, one in found.items()
    }
    verify_matches(database, features, base=own, ratio=RATIO, log=log, threads=threads)
    colmap_program.reconstruct(database, photos, begun / "sparse", log=log, threads=threads)
    shutil.rmtree(folder, ignore_errors=True)
    begun.rename(folder)
