"""Match the pairs of a collection and verify the matches with COLMAP, block by block.

COLMAP's verification is random. Each block has its own small database, one thread and a fixed seed,
so that a pair's result does not depend on other blocks.
"""

import contextlib
import functools
import itertools
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from tqdm import tqdm

from kjax.data.cutting.photographs import in_order
from kjax.errors import InputError
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.pairs import SIDE, Indices, exhaustive, in_blocks, renumbered
from kjax.images.collection.photographs import CollectionPhoto, FeatureFiles, key_of
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import Geometry, read_geometries, write_database
from kjax.images.exchange.colmap_program import Reconstructor
from kjax.images.features import Distance, Features, MatchingMethod
from kjax.images.learned import Matcher
from kjax.images.match import match_many

METHOD: MatchingMethod = "mutual_ratio"
METHOD_VERSION = 2
"""To be increased whenever the same features and settings give other matches."""
AT_ONCE, BLOCKS_AT_ONCE = 8, 4
"""Pairs per block, which a crash may lose, and blocks sent to another machine together."""
LEARNED_AT_ONCE, LEARNED_BLOCKS_AT_ONCE = 1, 16
"""The same for a learned matcher."""
VERIFIED_AT_ONCE = 16
"""Pairs verified together."""
NO_GEOMETRY = Geometry(0, 2, None, 0, None, None, None, None, None)
"""Geometry of a pair without matches, which COLMAP skips."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS matches (key TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS geometries (key TEXT PRIMARY KEY, "
    f"{', '.join(Geometry._fields)}) WITHOUT ROWID",
)


class PairStore(contextlib.AbstractContextManager["PairStore"]):
    """Append-only store of matches and geometries by key. Use it in a `with` statement."""

    def __init__(self, path: Path) -> None:
        """Open or create the file."""
        self._connection = sqlite3.connect(path)
        try:
            for statement in _TABLES:
                self._connection.execute(statement)
        except sqlite3.DatabaseError as error:
            raise InputError(f"{path} is damaged ({error}): remove it to match again") from None

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def missing(self, table: str, keys: Iterable[str]) -> set[str]:
        """Return the keys not yet in a table, `matches` or `geometries`."""
        query = f"SELECT 1 FROM {table} WHERE key = ?"
        return {key for key in keys if not self._connection.execute(query, (key,)).fetchone()}

    def add_matches(self, found: Mapping[str, Int32[np.ndarray, "_ 2"]]) -> None:
        """Add the matches of pairs in one transaction."""
        rows = [(key, indices.astype("<i4").tobytes()) for key, indices in found.items()]
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO matches VALUES (?, ?)", rows)

    def matches(self, key: str) -> Int32[np.ndarray, "K 2"]:
        """Return the matches of a pair."""
        query = "SELECT data FROM matches WHERE key = ?"
        (data,) = self._connection.execute(query, (key,)).fetchone()
        return np.frombuffer(data, "<i4").reshape(-1, 2).astype(np.int32)

    def add_geometries(self, found: Mapping[str, Geometry]) -> None:
        """Add the geometries of pairs in one transaction."""
        insert = f"INSERT OR REPLACE INTO geometries VALUES (?{', ?' * len(Geometry._fields)})"
        with self._connection:
            self._connection.executemany(insert, [(key, *one) for key, one in found.items()])

    def geometry(self, key: str) -> Geometry:
        """Return the geometry of a pair."""
        query = f"SELECT {', '.join(Geometry._fields)} FROM geometries WHERE key = ?"
        return Geometry(*self._connection.execute(query, (key,)).fetchone())


def match_missing(
    photographs: Sequence[CollectionPhoto],
    pairs: Sequence[Indices],
    files: FeatureFiles,
    store: PairStore,
    *,
    ratio: float,
    matcher: Matcher | None = None,
    engine: Engine = HERE,
) -> dict[Indices, str]:
    """Match the pairs not yet in the store, and return the keys of all pairs."""
    settings: tuple[Any, ...] = (METHOD, ratio)
    at_once, shard = AT_ONCE, BLOCKS_AT_ONCE
    if matcher is not None:
        settings = ("learned", matcher.sha256)
        at_once, shard = LEARNED_AT_ONCE, LEARNED_BLOCKS_AT_ONCE
    of_features = [files.key(photograph) for photograph in photographs]
    settings += (METHOD_VERSION,)
    keys = {pair: key_of(*(of_features[index] for index in pair), *settings) for pair in pairs}

    @functools.lru_cache(maxsize=2 * SIDE)
    def features(index: int) -> Features:
        return engine.share(files.read(photographs[index]))

    def with_features(block: list[Indices]) -> tuple:
        used, within = renumbered(block)
        return within, *map(features, used)

    missing = store.missing("matches", keys.values())
    todo = [pair for pair, key in keys.items() if key in missing]
    blocks = list(in_blocks(todo, at_once))
    match = functools.partial(match_block, matcher, ratio)
    matched = engine.map(match, map(with_features, blocks), threads=1, shard=shard)
    before = len(keys) - len(todo)
    with tqdm(total=len(keys), desc="matching", unit="pair", initial=before) as bar:
        for block, found in zip(blocks, matched, strict=True):
            store.add_matches({keys[pair]: one for pair, one in zip(block, found, strict=True)})
            bar.update(len(block))
    return keys


def match_block(
    matcher: Matcher | None,
    ratio: float,
    pairs: list[Indices],
    *features: Features,
    distance: Distance | None = None,
) -> list[Int32[np.ndarray, "_ 2"]]:
    """Match pairs of the given features with a learned matcher, or by nearest neighbours."""
    if matcher is not None:
        return [matcher.match(features[first], features[second]).indices for first, second in pairs]
    found = match_many(features, pairs, method=METHOD, ratio=ratio, distance=distance)
    return [one.indices for one in found]


def verify_missing(
    photographs: Sequence[CollectionPhoto],
    matched: Mapping[Indices, str],
    files: FeatureFiles,
    store: PairStore,
    reconstructor: Reconstructor,
    log: Path,
) -> dict[Indices, str]:
    """Verify pairs with these keys of matches, if missing; return the keys of all geometries."""
    blocks, keys = list(in_blocks(matched, VERIFIED_AT_ONCE)), dict[Indices, str]()
    for block in blocks:
        cameras = [
            [(photographs[index].size, photographs[index].camera.focal) for index in pair]
            for pair in block
        ]
        whole = key_of(reconstructor.name, [matched[pair] for pair in block], cameras)
        keys |= {pair: key_of(whole, number) for number, pair in enumerate(block)}

    def verify(work: tuple[list[Indices], list[np.ndarray]]) -> list[Geometry]:
        used, within = renumbered(work[0])
        photos = {str(at): photographs[index] for at, index in enumerate(used)}
        features = {name: files.read_keypoints(one) for name, one in photos.items()}
        cameras = {name: one.camera for name, one in photos.items()}
        pairs = [(str(first), str(second)) for first, second in within]
        matches = dict(zip(pairs, work[1], strict=True))
        with tempfile.TemporaryDirectory() as folder:
            database = Path(folder, "block.db")
            write_database(database, features, matches, cameras=cameras)
            reconstructor.verify(database, log=log)
            geometries = read_geometries(database)
        return [geometries.get(pair, NO_GEOMETRY) for pair in pairs]

    missing = store.missing("geometries", keys.values())
    todo = [block for block in blocks if missing.intersection(keys[pair] for pair in block)]
    before = len(keys) - sum(map(len, todo))
    with tqdm(total=len(keys), desc="verifying", unit="pair", initial=before) as bar:
        work = ((block, [store.matches(matched[pair]) for pair in block]) for block in todo)
        for (block, _), verified in in_order(verify, work, os.cpu_count() or 1):
            found = zip(block, verified.result(), strict=True)
            store.add_geometries({keys[pair]: geometry for pair, geometry in found})
            bar.update(len(block))
    return keys


def match_and_verify_all(
    database: Path,
    features: Mapping[str, Features],
    *,
    base: Path,
    ratio: float,
    log: Path,
    distance: Distance = "L2",
    threads: int = 1,
    matcher: Matcher | None = None,
) -> None:
    """Match every pair, and write a database verified by COLMAP, with the cameras of `base`.

    Without a learned matcher, matches are mutual nearest neighbours that pass the ratio test.
    """
    pairs, names = exhaustive(len(features)), itertools.combinations(features, 2)
    found = match_block(matcher, ratio, pairs, *features.values(), distance=distance)
    matches = dict(zip(names, found, strict=True))
    write_database(database, features, matches)
    colmap_program.copy_cameras(base, database)
    colmap_program.match_and_verify(database, log=log, threads=threads)
