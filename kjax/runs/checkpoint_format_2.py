"""Checkpoints of kjax 0.1, whose format had the number 2: one .npz file in orbax's folders.

They are only read. New ones are orbax's own: see `kjax.runs.checkpoint`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from kjax.errors import InputError
from kjax.files.npz import read_npz
from kjax.runs.checkpoint_tree import check_same, leaf_name

FORMAT = 2
FILE = Path("state", "arrays.npz")
"""Inside the folder of a checkpoint."""
ABOUT = "about"
"""Entry of the file that says, as JSON, its format and what type each array had."""


def read_tree(folder: Path, wanted: dict[str, Any]) -> Any:
    """The wanted leaves of the checkpoint in a folder, where they are wanted.

    Raises:
        ValueError: the file is damaged; the caller knows which checkpoint it is.
        InputError: it has another format, or other leaves.
    """
    arrays = _read_arrays(folder)
    check_same(arrays, wanted, folder)
    if jax.process_index() == 0:
        print(
            f"{folder} has the format of kjax 0.1: it is read, and the next one will be orbax's",
            file=sys.stderr,
        )

    def placed(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        array = arrays[leaf_name(path)]
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: array[index])

    return jax.tree_util.tree_map_with_path(placed, wanted)


def _read_arrays(folder: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """All arrays, by their paths in the state, such as `params.head.bias`."""
    try:
        saved = read_npz(folder / FILE)
    except InputError as error:
        raise ValueError(str(error)) from None
    # Before format 2, the description was a file of its own.
    about: dict[str, Any] = json.loads(str(saved.pop(ABOUT))) if ABOUT in saved else {"format": 1}
    if about["format"] != FORMAT:
        raise InputError(
            f"{folder} has format {about['format']}, and this kjax reads {FORMAT} and orbax's own: "
            "use the version that wrote it, or choose another workdir"
        )
    # NumPy's files know no bfloat16: they bring its bytes.
    return {name: array.view(about["dtypes"][name]) for name, array in saved.items()}
