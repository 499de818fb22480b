"""Descriptors as StableHLO: one file that JAX runs without kjax, or flax, or the weights.

    exported = jax.export.deserialize(bytearray(Path("model.stablehlo").read_bytes()))
    descriptors = exported.call(patches)

Such files stay readable for at least six months of JAX releases (see `jax.export`).
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np
from jax import export
from jaxtyping import Array, Float32, Num, Shaped

from kjax.errors import InputError
from kjax.export.function import DescribingFunction
from kjax.extras import require
from kjax.files.json import parse_json

STABLEHLO_FILES = "a .stablehlo file"
PLATFORMS = ("cpu", "cuda", "tpu")


def save(path: Path, function: DescribingFunction) -> None:
    """Writes the function from patches [B,N,N] to descriptors."""
    folded, weights, dtype, batch, about = function
    require("flatbuffers", STABLEHLO_FILES)  # jax.export imports it when it is too late for us

    def describe_one(patch: Shaped[Array, "N N"]) -> Float32[Array, " dim"]:
        return folded.apply(weights, patch[None])[0]

    count = batch or export.symbolic_shape("batch")[0]
    size = folded.patch_size
    # Mapped over single patches: a model that is given a batch chooses its products by the number
    # of patches, which is not known here as a rule.
    mapped = jax.jit(jax.vmap(describe_one))
    with jax.default_matmul_precision("highest"):
        exported = export.export(mapped, platforms=PLATFORMS)(
            jax.ShapeDtypeStruct((count, size, size), dtype)
        )
    write(path, exported, about)


def write(path: Path, exported: export.Exported, about: Mapping[str, str]) -> None:
    """Writes any function, and what the file shall tell of itself."""
    # The format has no other place for remarks. JAX shows this name and never looks into it.
    named = dataclasses.replace(exported, fun_name=json.dumps(dict(about), ensure_ascii=False))
    path.write_bytes(named.serialize())


def load(path: Path) -> Callable[[Num[np.ndarray, "B N N"]], Float32[np.ndarray, "B dim"]]:
    """The function in a file."""
    exported = read(path)
    return lambda patches: np.asarray(exported.call(patches))


def read_about(path: Path) -> dict[str, str]:
    """What `save` was told, and what every exported function tells."""
    exported = read(path)
    name = exported.fun_name
    try:
        # Files that others wrote have the name of a function there.
        about = parse_json(name) if name.startswith("{") else {"function": name}
    except ValueError:
        raise _damaged(path) from None
    inputs, outputs = (
        ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in avals)
        for avals in (exported.in_avals, exported.out_avals)
    )
    return about | {
        "format": "StableHLO",
        "platforms": ", ".join(exported.platforms),
        "input": inputs,
        "output": outputs,
    }


def read(path: Path) -> export.Exported:
    """Any function in a file.

    Raises:
        InputError: it is something else.
    """
    require("flatbuffers", STABLEHLO_FILES)
    content = bytearray(path.read_bytes())
    try:
        return export.deserialize(content)
    except Exception:  # it has no error of its own for bytes that are something else
        raise _damaged(path) from None


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is not a whole file of jax.export")
