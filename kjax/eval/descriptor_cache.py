"""Descriptors on disk: what has been described once is not described again.

Entries are named by what they were made from, the descriptor's identity and the grey values of the
patches, so none is ever out of date. They can be deleted at any time.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float32, UInt8

from kjax.data.cache import cache_errors, cache_root
from kjax.errors import InputError
from kjax.files.npz import read_npz, write_npz

VERSION = 1
"""A number to raise when descriptors of the same model and patches come out otherwise."""

Describe = Callable[[UInt8[np.ndarray, "patches height width"]], Float32[np.ndarray, "patches dim"]]


def cached(
    describe: Describe, identity: str, *, cache_dir: str | os.PathLike[str] | None = None
) -> Describe:
    """`describe` that looks into the cache first, and keeps what it had to compute.

    Args:
        describe: from patches to descriptors.
        identity: names everything that its result depends on, besides the patches; empty for
            what is not worth keeping.
        cache_dir: as in `kjax.data.cache.cache_root`.
    """
    if not identity:
        return describe
    folder = cache_root(cache_dir) / "descriptors"

    def look_first(
        patches: UInt8[np.ndarray, "patches height width"],
    ) -> Float32[np.ndarray, "patches dim"]:
        # An archive has a checksum of what it holds, a plain .npy file has not.
        path = folder / f"{_key(identity, patches)}.npz"
        found = _read(path, len(patches))
        if found is not None:
            return found
        descriptors = describe(patches)
        with cache_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_npz(path, {"rows": descriptors})
        return descriptors

    return look_first


def identity_of(kind: str, settings: Any, variables: Any = ()) -> str:
    """An identity made of settings that have a JSON form or a repr, and of arrays."""
    digest = hashlib.sha256(json.dumps([VERSION, kind, settings], default=repr).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array)
    return digest.hexdigest()


def _key(identity: str, patches: UInt8[np.ndarray, "patches height width"]) -> str:
    digest = hashlib.sha256(f"{identity} {patches.shape}".encode())
    digest.update(np.ascontiguousarray(patches))
    return digest.hexdigest()


def _read(path: Path, count: int) -> Float32[np.ndarray, "patches dim"] | None:
    """An entry; None if it is absent, or damaged as its checksum tells."""
    try:
        found = read_npz(path)["rows"]
    except (InputError, KeyError):
        return None
    return found if found.ndim == 2 and found.dtype == np.float32 and len(found) == count else None
