"""A state as a checkpoint has it: nested dicts of arrays, with names that others can read."""

from pathlib import Path
from typing import Any

import flax.serialization
import jax
import numpy as np

from kjax.errors import InputError

NAMED_DIFFERENCES = 3
"""How many leaves an error message names."""


def to_save(state: Any) -> dict[str, Any]:
    """Host copies of what is whole on each device, for any number and kind of them; and the rest.

    Copied, not viewed: the next step may reuse the memory while this is being written.
    """

    def copied(leaf: Any) -> Any:
        whole = getattr(leaf, "is_fully_replicated", True) and not _is_key(leaf)
        return np.array(leaf) if whole else leaf

    return jax.tree.map(copied, flax.serialization.to_state_dict(state))


def to_restore(like: Any) -> dict[str, Any]:
    """The shapes of a state, with the devices of its leaves; or else, JAX's first."""
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def described(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None) or first
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(described, flax.serialization.to_state_dict(like))


def leaf_name(path: tuple[Any, ...]) -> str:
    """Such as `params.trunk.conv1.kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def check_same(saved: Any, wanted: dict[str, Any], where: Path) -> None:
    """Compares names, shapes and types in those of the state's parts that are wanted.

    Raises:
        InputError: they differ; the message names some leaves that do.
    """
    there, here = _kinds(saved, wanted.keys()), _kinds(wanted, wanted.keys())
    # The parameters first: if they differ, so does what the optimiser keeps of them.
    names = sorted(here | there, key=lambda name: not name.startswith("params"))
    differences = [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
        for name in names
        if there.get(name) != here.get(name)
    ]
    if differences:
        more = len(differences) - NAMED_DIFFERENCES
        rest = f"; and {more} more" if more > 0 else ""
        raise InputError(
            f"the checkpoint {where} is of another model or optimiser: "
            f"{'; '.join(differences[:NAMED_DIFFERENCES])}{rest}: "
            "use the config it was saved with, or choose another workdir"
        )


def _kinds(tree: Any, parts: Any) -> dict[str, str]:
    """Type and shape of each leaf, by name."""
    named = {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return {name: _kind(leaf) for name, leaf in named.items() if name.partition(".")[0] in parts}


def _kind(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return f"no array but {type(leaf).__name__}"
    stored = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    kind = f"{stored.dtype}[{','.join(map(str, stored.shape))}]"
    # Which only what is saved has: a chunk takes its whole size in memory.
    chunk = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
    larger = any(size > max(whole, 1) for size, whole in zip(chunk, leaf.shape, strict=False))
    return f"{kind} in chunks of {chunk}" if larger else kind


def _is_key(leaf: Any) -> bool:
    """Whether NumPy does not know it: a key of random numbers."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
