"""Patch sets by name, wherever a set's folder is expected.

A name is a folder in the PhotoTourism format, "embedded", or a TensorFlow Datasets set such as
tfds:phototour/liberty: decoded once into the cache folder, or in TFDS's manual folder.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from tqdm import tqdm

from kjax.data.cache import PATCHES_FILE, cache_entry, open_decoded
from kjax.data.cutting.patches import PATCH_SIDE
from kjax.data.embedded import embedded_test, embedded_train, train_photographs
from kjax.data.photo_points import photographs_in
from kjax.data.phototour import (
    NO_PAIRS,
    Folder,
    PatchSet,
    SetPhotograph,
    TestPairs,
    read_interest,
    read_phototour,
    read_set_photographs,
    read_with_pairs,
)
from kjax.errors import InputError, unknown_name
from kjax.extras import require
from kjax.files.npz import read_npy

EMBEDDED = "embedded"
"""Name of the set that ships with scikit-image."""
TFDS_PREFIX = "tfds:"
PAIRS_FILE = "pairs.npy"
FEATURES = {"patches", "patch_ids", "point_ids"}
"""Features of an example of a TFDS set, as in `kjax.data.tfds.phototour`."""
TFDS_SETS = ("phototour/liberty", "phototour/notredame", "phototour/yosemite")


def read_train_sets(names: Sequence[str], *, progress: bool = True) -> list[PatchSet]:
    """Read the named training sets."""
    return [_read_set(name, embedded_train, read_phototour, progress) for name in names]


def read_test_sets(names: Sequence[str], *, progress: bool = True) -> list[PatchSet]:
    """Read the named test sets with their pairs; raise if two sets have the same name."""
    sets = [_read_set(name, embedded_test, read_with_pairs, progress) for name in names]
    for name, one in zip(names, sets, strict=True):
        if not len(one.pairs.first):
            raise InputError(f"{name} has no test pairs: it lacks a split called test")
    found = [one.name for one in sets]
    if len(set(found)) < len(found):
        raise InputError(f"two test sets have the same name: {', '.join(found)}")
    return sets


def _read_set(
    name: str, embedded: Callable[..., PatchSet], read: Callable[..., PatchSet], progress: bool
) -> PatchSet:
    if name == EMBEDDED:
        return embedded(progress=progress)
    if name.startswith(TFDS_PREFIX):
        return read_tfds(name.removeprefix(TFDS_PREFIX), progress=progress)
    return read(name, progress=progress)


def read_photographs(name: str) -> list[SetPhotograph]:
    """Return the photographs that a training set was cut from; raise if they are unknown."""
    if name == EMBEDDED:
        return train_photographs()
    if name.startswith(TFDS_PREFIX):
        raise InputError(
            f"{name} does not list the photographs it was cut from: use another training set"
        )
    if Path(name).is_dir() and not any(Path(name).glob("*.txt")):  # photographs, not a set
        return photographs_in(name)
    return read_set_photographs(Path(name))


def by_photograph(patch_set: PatchSet) -> PatchSet:
    """Number the points by the photograph of their first patch, so that a batch can take several.

    Points of the same photograph, which matching has to tell apart, are harder negatives.
    """
    interest = read_interest(patch_set.folder, patch_count=len(patch_set.point_ids))
    if interest is None:
        raise InputError(
            f"{patch_set.folder} lacks interest.txt, which names each patch's photograph: "
            "train with config.train.group=1"
        )
    _, first, point = np.unique(patch_set.point_ids, return_index=True, return_inverse=True)
    photograph = interest[first, 0]
    # Shuffled, because neighbours in a detector's order overlap and are bad negatives.
    order = np.lexsort((np.random.default_rng(0).permutation(len(first)), photograph))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return dataclasses.replace(patch_set, point_ids=number[point])


# TensorFlow Datasets


def read_tfds(name: str, *, cache_dir: Folder | None = None, progress: bool = True) -> PatchSet:
    """Open a TFDS set by name, e.g. phototour/liberty, with its test pairs if it has any."""
    from kjax.data.pipelines import host_tensorflow

    for package in ("tensorflow", "tensorflow_datasets"):
        require(package, "a set of TensorFlow Datasets")
    host_tensorflow()  # before TFDS lets TensorFlow take the GPU
    import tensorflow_datasets as tfds

    # TFDS itself looks at the variable only once, when it is imported.
    data_dir = os.environ.get("TFDS_DATA_DIR")
    root = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        features = builder.info.features
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError):
        builder, features = None, FEATURES
        if name.partition(":")[0] not in TFDS_SETS:
            known = [f"{TFDS_PREFIX}{each}" for each in TFDS_SETS]
            raise unknown_name("set", f"{TFDS_PREFIX}{name}", known) from None
    if not set(features or ()) >= FEATURES:
        raise InputError(
            f"tfds:{name} is not a set of patches by 3-D point: its examples need "
            f"{', '.join(sorted(FEATURES))}, e.g. tfds:phototour/liberty"
        )
    if builder is None or not builder.is_prepared():
        own = name.partition("/")[2].partition(":")[0]
        manual = root / "downloads" / "manual" / own
        if not (manual / "info.txt").is_file():
            raise InputError(
                f"tfds:{name} is not prepared in {root}: set TFDS_DATA_DIR to where it is, put its "
                f'folder at {manual}, or run: python -c "from kjax.data.tfds.phototour.'
                f"phototour_dataset_builder import Builder; Builder(config='{own}')."
                'download_and_prepare()"'
            )
        return read_with_pairs(manual, cache_dir=cache_dir, progress=progress)
    folder = Path(builder.data_dir)
    entry = cache_entry("tfds", folder, cache_dir)
    patches, point_ids = open_decoded(
        entry,
        sorted(path for path in folder.iterdir() if path.is_file()),
        lambda partial: _decode_tfds(builder, name, partial, progress),
    )
    pairs = NO_PAIRS
    if (entry / PAIRS_FILE).exists():
        first, second = read_npy(entry / PAIRS_FILE).T
        pairs = TestPairs(first, second, point_ids[first] == point_ids[second])
    own = builder.builder_config.name if builder.builder_config else builder.name
    return PatchSet(own, patches, point_ids, folder, pairs)


def _decode_tfds(builder: Any, name: str, partial: Path, progress: bool) -> Int64[np.ndarray, " P"]:
    """Write the patches in the order of their numbers, and the test pairs; return point ids."""
    import tensorflow_datasets as tfds

    def examples(split: str, **options: Any) -> Iterator[dict[str, np.ndarray]]:
        in_order = tfds.ReadConfig(interleave_cycle_length=1)
        options |= {"shuffle_files": False, "read_config": in_order}
        return iter(tfds.as_numpy(builder.as_dataset(split=split, **options)))

    labels_only = tfds.decode.PartialDecoding({"patch_ids": True, "point_ids": True})
    labels = list(examples("train", decoders=labels_only))
    numbers = np.concatenate([np.empty(0, np.int64), *(label["patch_ids"] for label in labels)])
    if not len(numbers) or not np.array_equal(np.sort(numbers), np.arange(len(numbers))):
        raise InputError(f"tfds:{name} is empty, lacks patches or repeats some: prepare it again")
    point_ids = np.empty(len(numbers), np.int64)
    point_ids[numbers] = np.concatenate([label["point_ids"] for label in labels])
    shape = (len(numbers), PATCH_SIDE, PATCH_SIDE)
    patches = np.lib.format.open_memmap(partial / PATCHES_FILE, "w+", np.uint8, shape)
    desc = f"decoding tfds:{name}"
    for point in tqdm(examples("train"), desc, len(labels), disable=not progress):
        patches[point["patch_ids"]] = point["patches"][..., 0]
    patches.flush()
    if "test" in builder.info.splits:
        pairs = [pair["patch_ids"] for pair in examples("test", decoders=labels_only)]
        np.save(partial / PAIRS_FILE, np.asarray(pairs, np.int64).reshape(-1, 2))
    return point_ids
