"""Descriptors of HPatches sequences, and distances between them on the device.

The official files are `<folder>/<sequence>/<image>.csv`, for the sixteen images of a sequence: no
header, one row per patch, commas between the values.

Distances: all descriptors are rows of one array and are referred to by row number. L2 distances
stay squared, as only their order matters. `in_double` and `count_closer` work in double precision:
call them under `jax.enable_x64(True)`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int32, UInt8
from tqdm import tqdm

from kjax.data import hpatches
from kjax.data.hpatches import IMAGES
from kjax.errors import InputError, first_line
from kjax.files.atomic import write_whole
from kjax.model.kernels.group_minima import Metric
from kjax.model.nearest import Neighbours, apart, padded_size, two_nearest

PAIRS_IN_BLOCK = 2048
"""Number of pairs that fit a CPU's cache together."""


@dataclasses.dataclass(frozen=True)
class SetDescriptors:
    """The descriptors of a set of sequences, in one array.

    `patches` is the number of patches per image of each sequence. Rows are sequence after sequence,
    in each image after image in the order of `kjax.data.hpatches.IMAGES`, in each patch after
    patch, in host memory or on a device.
    """

    patches: dict[str, int]
    rows: Float32[np.ndarray, "rows dim"] | Float32[Array, "rows dim"]

    @classmethod
    def from_sequences(
        cls, sequences: Mapping[str, Float32[np.ndarray, "images n d"]]
    ) -> "SetDescriptors":
        """Join arrays [16, n, dim], one per sequence."""
        if not sequences:
            raise InputError("no sequence: there are no descriptors to evaluate")
        first = next(iter(sequences.values()))
        for name, array in sequences.items():
            if array.shape[::2] != (len(IMAGES), first.shape[2]):
                raise InputError(
                    f"descriptors of {name} have {array.shape[2]} values in {len(array)} images, "
                    f"not {first.shape[2]} in {len(IMAGES)}: use one descriptor for all sequences"
                )
        patches = {name: array.shape[1] for name, array in sequences.items()}
        rows = [array.reshape(-1, array.shape[2]) for array in sequences.values()]
        return cls(patches, np.concatenate(rows))

    @property
    def dimension(self) -> int:
        """Number of values of a descriptor."""
        return self.rows.shape[1]

    @functools.cached_property
    def starts(self) -> dict[str, int]:
        """The first row of each sequence."""
        counts = np.array(list(self.patches.values()), np.int64)
        starts = len(IMAGES) * (np.cumsum(counts) - counts)
        return dict(zip(self.patches, starts.tolist(), strict=True))

    def __getitem__(self, name: str) -> Float32[np.ndarray, "16 n dim"]:
        start, count = self.starts[name], self.patches[name]
        rows = np.asarray(self.rows[start : start + len(IMAGES) * count])
        return rows.reshape(len(IMAGES), count, self.dimension)

    def of(self, names: Iterable[str]) -> "SetDescriptors":
        """Select sequences; the same object if they are all."""
        chosen = list(names)
        if chosen == list(self.patches):
            return self
        return SetDescriptors.from_sequences({name: self[name] for name in chosen})

    def on_device(self) -> "SetDescriptors":
        """Copy the rows to JAX's default device, unless they are on one."""
        if isinstance(self.rows, jax.Array):
            return self
        return SetDescriptors(self.patches, jnp.asarray(self.rows))

    @functools.cached_property
    def binary(self) -> bool:
        """Whether all values are 0 or 1."""
        return bool(((self.rows == 0) | (self.rows == 1)).all())


def describe_sequences(
    describe: Callable[[UInt8[np.ndarray, "m side side"]], Float32[np.ndarray, "m d"]],
    sequences: Iterable[hpatches.Sequence],
) -> SetDescriptors:
    """Describe sequences one by one; `describe` is called once per sequence."""
    described = {}
    for sequence in sequences:
        images, count = sequence.patches.shape[:2]
        rows = describe(sequence.patches.reshape(images * count, *sequence.patches.shape[2:]))
        described[sequence.name] = rows.astype(np.float32).reshape(images, count, -1)
    return SetDescriptors.from_sequences(described)


# Files


def read_descriptors(
    folder: Path, patches: Mapping[str, int] | None = None, *, progress: bool = True
) -> SetDescriptors:
    """Read the official CSV files of `patches`, the number of patches of each sequence, or all."""
    names = sorted(path.parent.name for path in folder.glob("*/ref.csv"))
    if not (patches or names):
        raise InputError(f"{folder} holds no descriptors: give the folder above <sequence>/ref.csv")
    read: dict[str, np.ndarray] = {}
    chosen = list(patches or names)
    for name in tqdm(chosen, desc="reading descriptors", unit="sequence", disable=not progress):
        images = [_read_file(folder / name / f"{image}.csv") for image in IMAGES]
        expected = (patches[name] if patches else len(images[0]), images[0].shape[1])
        for image, rows in zip(IMAGES, images, strict=True):
            if rows.shape != expected:
                raise InputError(
                    f"{folder / name / image}.csv has {rows.shape[0]} rows of {rows.shape[1]} "
                    f"values, not {expected[0]} of {expected[1]}: write one row per patch"
                )
        read[name] = np.stack(images)
    return SetDescriptors.from_sequences(read)


def _read_file(path: Path) -> Float32[np.ndarray, "n dim"]:
    try:
        with open(path, encoding="utf-8") as file:
            if not file.readline().strip():
                raise ValueError("the first line is empty")
            file.seek(0)
            rows = np.loadtxt(file, np.float32, comments=None, delimiter=",", ndmin=2)
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror}): a sequence needs the sixteen files "
            "ref.csv, e1.csv … t5.csv"
        ) from error
    except ValueError as error:
        raise InputError(
            f"{path} is not a table of numbers ({first_line(error)}): write commas between "
            "values, no header, and the same number of values per row"
        ) from error
    if not np.isfinite(rows).all():
        raise InputError(f"{path} holds NaN or infinity: export the descriptors again")
    return rows


def write_descriptors(descriptors: SetDescriptors, folder: Path) -> None:
    """Write the official CSV files, with enough digits to read the same values back."""
    # Nine significant digits distinguish any two float32 values.
    row = ",".join(["%.9g"] * descriptors.dimension) + "\n"
    for name in descriptors.patches:
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        for image, rows in zip(IMAGES, descriptors[name], strict=True):
            # One formatting call per file is several times faster than one per value.
            text = (row * len(rows) % tuple(rows.ravel().tolist())).encode()
            write_whole(target / f"{image}.csv", functools.partial(Path.write_bytes, data=text))


# Distances


@functools.partial(jax.jit, static_argnames="distance")
def pair_distances(
    rows: Float32[Array, "rows dim"],
    first: Int32[Array, "blocks block"],
    second: Int32[Array, "blocks kinds block"],
    *,
    distance: Metric,
) -> Float32[Array, "blocks kinds block"]:
    """Compute distances from each first row to several second ones, in single precision."""

    def of_block(places: tuple[Array, Array]) -> Float32[Array, "kinds block"]:
        one, others = places
        start = _take(rows, one)
        return jnp.stack([_length(_take(rows, other) - start, distance) for other in others])

    return jax.lax.map(of_block, (first, second))


def nearest(
    rows: Float32[Array, "rows dim"], start: int, count: int, *, images: int, distance: Metric
) -> Neighbours:
    """Find the nearest patch to each reference patch in each of a sequence's other images.

    The sequence begins at row `start` and has `count` patches per image. The result has one row
    per image after the reference image.
    """
    starts = start + count * np.stack([np.zeros(images, int), np.arange(1, images + 1)], axis=1)
    sizes = (padded_size(count), padded_size(count))
    (found,) = two_nearest(
        rows, starts, np.full_like(starts, count), sizes, metric=distance, both=False, second=False
    )
    return Neighbours(*(column[:, :count] for column in found))


@jax.jit
def in_double(
    rows: Float32[Array, "rows dim"], places: Int32[Array, " n"]
) -> Float64[Array, "n dim"]:
    """Take rows in double precision."""
    return _take(rows, places).astype(jnp.float64)


@functools.partial(jax.jit, static_argnames=("lengths", "distance"))
def count_closer(
    rows: Float32[Array, "rows dim"],
    queries: Int32[Array, " queries"],
    positives: Int32[Array, "positives queries"],
    others: Float64[Array, "others dim"],
    pool: Int32[Array, " pool"],
    *,
    lengths: tuple[int, ...],
    distance: Metric,
) -> Int32[Array, "positives parts queries"]:
    """Count the patches in each part of a pool that are closer to a query than its positives.

    `queries` and `positives` are indices of rows. `pool` holds indices into `others`, in order;
    negative ones are skipped. `lengths` are those of its parts.
    """
    wanted = in_double(rows, queries)
    far, slack = apart(others, wanted, distance)
    # A tie does not count as closer, and rounding must not break one.
    far = _take(far + slack, jnp.maximum(pool, 0))
    far = jnp.where((pool < 0)[:, None], jnp.inf, far)
    ends = [sum(lengths[: part + 1]) for part in range(len(lengths))]

    def count(places: Int32[Array, " queries"]) -> Int32[Array, "parts queries"]:
        closer = far < _length(in_double(rows, places) - wanted, distance)[None, :]
        parts = [closer[end - size : end] for end, size in zip(ends, lengths, strict=True)]
        return jnp.stack([part.sum(axis=0, dtype=jnp.int32) for part in parts])

    # One positive at a time: a CPU then compares many queries in one instruction.
    return jax.lax.map(count, positives)


def _take(rows: Float[Array, "rows dim"], places: Int32[Array, " n"]) -> Float[Array, "n dim"]:
    """Index without bounds checks, which would cost as much again."""
    return rows.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _length(differences: Float[Array, "n dim"], distance: Metric) -> Float[Array, " n"]:
    parts = jnp.abs(differences) if distance == "L1" else differences * differences
    # A product with ones, as XLA's sums on a CPU add one number at a time.
    return jnp.dot(parts, jnp.ones(parts.shape[1], parts.dtype), precision="highest")
