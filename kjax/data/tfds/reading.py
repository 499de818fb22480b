"""A set of TensorFlow Datasets as a `PatchSet`, the same as from the folder it was made of.

TFDS keeps a set in records that can only be read one after the other, and the pairs of a step lie
anywhere. So a prepared set is decoded once into arrays in the cache folder, which are then mapped.
A set that lies unprepared in TFDS's manual folder is read there.

TensorFlow is imported when a set is first read.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from tqdm import tqdm

from kjax.data.phototour import (
    PATCH_SIDE,
    PATCHES_FILE,
    Folder,
    PatchSet,
    TestPairs,
    cache_entry,
    open_decoded,
    read_phototour,
    read_standard_pairs,
)
from kjax.data.set_names import TFDS_PREFIX
from kjax.data.tfdata import host_tensorflow
from kjax.errors import InputError, unknown_name
from kjax.extras import require
from kjax.files.arrays import read_npy

PAIRS_FILE = "pairs.npy"
"""Of an entry of the cache: the test pairs, where the set has any."""
FEATURES = {"patches", "patch_ids", "point_ids"}
"""Of an example, as `kjax.data.tfds.phototour` makes them."""


def read_tfds(name: str, *, cache_dir: Folder | None = None, progress: bool = True) -> PatchSet:
    """Opens a set by its name for `tfds.builder`, e.g. phototour/liberty.

    The first time, a prepared one is decoded into the cache folder.

    Raises:
        InputError: there is no such set, it is not prepared, or it is not one of patches.
    """
    builder = find_builder(name)
    if not set(builder.info.features or ()) >= FEATURES:
        raise InputError(
            f"tfds:{name} is not a set of patches by 3-D point: its examples need "
            f"{', '.join(sorted(FEATURES))}, e.g. tfds:phototour/liberty"
        )
    if not builder.is_prepared():
        return read_phototour(_manual_folder(builder, name), cache_dir=cache_dir, progress=progress)
    folder = Path(builder.data_dir)
    patches, point_ids = open_decoded(
        cache_entry("tfds", folder, cache_dir),
        lambda: sorted(path for path in folder.iterdir() if path.is_file()),
        lambda partial: _decode(builder, name, partial, progress),
    )
    return PatchSet(_own_name(builder), patches, point_ids, folder)


def read_tfds_test(
    name: str, *, cache_dir: Folder | None = None, progress: bool = True
) -> tuple[PatchSet, TestPairs]:
    """Opens a set, as `read_tfds` does with the same arguments, with its test pairs."""
    patch_set = read_tfds(name, cache_dir=cache_dir, progress=progress)
    if (patch_set.folder / "info.txt").is_file():  # it was read in the manual folder
        return patch_set, read_standard_pairs(patch_set)
    path = cache_entry("tfds", patch_set.folder, cache_dir) / PAIRS_FILE
    if not path.exists():
        raise InputError(f"tfds:{name} has no test pairs: it lacks a split called test")
    first, second = read_npy(path).T
    matching = patch_set.point_ids[first] == patch_set.point_ids[second]
    return patch_set, TestPairs(first, second, matching)


def find_builder(name: str) -> Any:
    """TFDS's builder of a set by name, with kjax's own among those it knows.

    Raises:
        InputError: TensorFlow or TFDS is not installed, or there is no such set.
    """
    for package in ("tensorflow", "tensorflow_datasets"):
        require(package, "a set of TensorFlow Datasets")
    host_tensorflow()  # before TFDS lets it take the GPU
    import tensorflow_datasets as tfds

    from kjax.data.tfds.phototour.phototour_dataset_builder import TITLES

    try:
        # TFDS itself looks at the variable only once, when it is imported.
        return tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError):
        known = [f"{TFDS_PREFIX}phototour/{config}" for config in TITLES]
        raise unknown_name("set", f"{TFDS_PREFIX}{name}", known) from None


def _own_name(builder: Any) -> str:
    """That of its config, as the folder of the set would be called."""
    return builder.builder_config.name if builder.builder_config else builder.name


def _manual_folder(builder: Any, name: str) -> Path:
    """Where an unprepared set lies, if it does: TFDS would prepare it from there."""
    root = Path(builder.data_dir).parents[2 if builder.builder_config else 1]
    folder = root / "downloads" / "manual" / _own_name(builder)
    if (folder / "info.txt").is_file():
        return folder
    raise InputError(
        f"tfds:{name} is not prepared in {root}: set TFDS_DATA_DIR to where it is, put its folder "
        f'at {folder}, or run: python -c "from kjax.data.tfds.reading import find_builder; '
        f"find_builder('{name}').download_and_prepare()\""
    )


def _decode(builder: Any, name: str, partial: Path, progress: bool) -> Int64[np.ndarray, " P"]:
    """Writes the patches in the order of their numbers, and the test pairs if there are any."""
    labels = list(_examples(builder, "train", labels_only=True))
    if not labels:
        raise InputError(f"tfds:{name} is empty: prepare it again")
    numbers = np.concatenate([label["patch_ids"] for label in labels])
    count = len(numbers)
    if not np.array_equal(np.sort(numbers), np.arange(count)):
        raise InputError(f"tfds:{name} lacks patches, or has some twice: prepare it again")
    point_ids = np.empty(count, np.int64)
    point_ids[numbers] = np.concatenate([label["point_ids"] for label in labels])
    patches = np.lib.format.open_memmap(
        partial / PATCHES_FILE, mode="w+", dtype=np.uint8, shape=(count, PATCH_SIDE, PATCH_SIDE)
    )
    points = tqdm(
        _examples(builder, "train"),
        total=len(labels),
        desc=f"decoding tfds:{name}",
        disable=not progress,
    )
    for point in points:
        patches[point["patch_ids"]] = point["patches"][..., 0]
    patches.flush()
    if "test" in builder.info.splits:
        pairs = [pair["patch_ids"] for pair in _examples(builder, "test", labels_only=True)]
        np.save(partial / PAIRS_FILE, np.asarray(pairs, np.int64).reshape(-1, 2))
    return point_ids


def _examples(
    builder: Any, split: str, *, labels_only: bool = False
) -> Iterator[dict[str, np.ndarray]]:
    """The examples of a split in the order in which they were prepared."""
    import tensorflow_datasets as tfds

    labels = tfds.decode.PartialDecoding({"patch_ids": True, "point_ids": True})
    dataset = builder.as_dataset(
        split=split,
        shuffle_files=False,
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
        decoders=labels if labels_only else None,
    )
    return iter(tfds.as_numpy(dataset))
