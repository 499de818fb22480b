"""What is known of pairs of photographs, in one file, as it is found: a kill loses nothing else."""

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from kjax.errors import InputError
from kjax.images.exchange.colmap_database import Geometry

_TABLES = (
    "CREATE TABLE IF NOT EXISTS matches (key TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS geometries (key TEXT PRIMARY KEY, "
    f"{', '.join(Geometry._fields)}) WITHOUT ROWID",
)


class PairStore(contextlib.AbstractContextManager["PairStore"]):
    """Matches and geometries by the keys of their pairs. Use it in a `with` statement."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it.

        Raises:
            InputError: it is damaged.
        """
        self._connection = sqlite3.connect(path)
        try:
            for statement in _TABLES:
                self._connection.execute(statement)
        except sqlite3.DatabaseError as error:
            raise InputError(f"{path} is damaged ({error}): remove it to match again") from None

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def missing(self, table: str, keys: Iterable[str]) -> list[str]:
        """Those keys that a table, `matches` or `geometries`, does not have yet."""
        query = f"SELECT 1 FROM {table} WHERE key = ?"
        return [key for key in keys if not self._connection.execute(query, (key,)).fetchone()]

    def add_matches(self, found: Mapping[str, Int32[np.ndarray, "_ 2"]]) -> None:
        """Keeps the matches of pairs, all of them or none."""
        rows = [(key, indices.astype("<i4").tobytes()) for key, indices in found.items()]
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO matches VALUES (?, ?)", rows)

    def matches(self, key: str) -> Int32[np.ndarray, "K 2"]:
        """The matches of a pair that has been matched."""
        query = "SELECT data FROM matches WHERE key = ?"
        (data,) = self._connection.execute(query, (key,)).fetchone()
        return np.frombuffer(data, "<i4").reshape(-1, 2).astype(np.int32)

    def add_geometries(self, found: Mapping[str, Geometry]) -> None:
        """Keeps the geometries of pairs, all of them or none."""
        insert = f"INSERT OR REPLACE INTO geometries VALUES (?{', ?' * len(Geometry._fields)})"
        with self._connection:
            self._connection.executemany(insert, [(key, *one) for key, one in found.items()])

    def geometry(self, key: str) -> Geometry:
        """The geometry of a pair that has been verified."""
        query = f"SELECT {', '.join(Geometry._fields)} FROM geometries WHERE key = ?"
        return Geometry(*self._connection.execute(query, (key,)).fetchone())
