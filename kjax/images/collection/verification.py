"""Geometric verification of matches by COLMAP, block by block, each in a small database.

COLMAP's search is random. In a block of its own, with one thread and its seed fixed, a pair comes
out the same whatever else is verified, before or at the same time.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from kjax.data.cutting.photographs import in_order
from kjax.images.collection.describing import FeatureFiles
from kjax.images.collection.keys import key_of
from kjax.images.collection.pair_store import PairStore
from kjax.images.collection.pairs import Places, in_blocks
from kjax.images.collection.photographs import Photograph
from kjax.images.exchange.colmap_database import (
    Geometry,
    Pair,
    read_geometries,
    write_database,
)
from kjax.images.exchange.reconstructors import Reconstructor

AT_ONCE = 16
"""Pairs of a block."""
NO_GEOMETRY = Geometry(0, 2, None, 0, None, None, None, None, None)
"""Of a pair without matches, which COLMAP says nothing about."""


def geometry_keys(
    photographs: Sequence[Photograph],
    matched: Mapping[Places, str],
    reconstructor: Reconstructor,
) -> dict[Places, str]:
    """What the geometry of each pair is kept as: it depends on the whole block."""
    keys: dict[Places, str] = {}
    for block in in_blocks(matched, AT_ONCE):
        cameras = [
            [(photographs[place].size, photographs[place].camera.focal) for place in pair]
            for pair in block
        ]
        whole = key_of(reconstructor.name, [matched[pair] for pair in block], cameras)
        keys |= {pair: key_of(whole, number) for number, pair in enumerate(block)}
    return keys


def verify_missing(
    photographs: Sequence[Photograph],
    matched: Mapping[Places, str],
    keys: Mapping[Places, str],
    files: FeatureFiles,
    store: PairStore,
    *,
    reconstructor: Reconstructor,
    log: Path,
) -> None:
    """Verifies the pairs that have not been verified yet.

    Args:
        photographs: that pairs are places of.
        matched: keys of the pairs' matches.
        keys: of their geometries.
        files: of the features.
        store: of both.
        reconstructor: who verifies.
        log: of what it prints.
    """
    blocks = list(in_blocks(matched, AT_ONCE))
    missing = set(store.missing("geometries", keys.values()))
    todo = [block for block in blocks if missing.intersection(keys[pair] for pair in block)]

    def verify(work: tuple[list[Places], dict[Places, Pair]]) -> dict[Places, Geometry]:
        block, found = work
        places = sorted({place for pair in block for place in pair})
        names = {place: str(number) for number, place in enumerate(places)}
        photos = {names[place]: files.read_keypoints(photographs[place]) for place in places}
        cameras = {names[place]: photographs[place].camera for place in places}
        named = {(names[first], names[second]): (first, second) for first, second in block}
        with tempfile.TemporaryDirectory() as folder:
            database = Path(folder, "block.db")
            pairs = {pair: found[places] for pair, places in named.items()}
            write_database(database, photos, pairs, cameras=cameras)
            reconstructor.verify(database, log=log)
            geometries = read_geometries(database)
        return {places: geometries.get(pair, NO_GEOMETRY) for pair, places in named.items()}

    with tqdm(total=len(keys), desc="verifying", unit="pair") as bar:
        bar.update(len(keys) - sum(map(len, todo)))
        work = (
            (block, {pair: Pair(store.matches(matched[pair])) for pair in block}) for block in todo
        )
        for (block, _), verified in in_order(verify, work, os.cpu_count() or 1):
            store.add_geometries({keys[pair]: one for pair, one in verified.result().items()})
            bar.update(len(block))
