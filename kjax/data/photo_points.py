"""Training pairs straight from photographs: two views of one point, cut on the device.

Photographs lie in the device's memory with their octaves, one 32-bit word to a pixel. A pair is a
random SIFT keypoint of a random photograph, seen through two random affine maps, and where there
are several photographs of the place, in two of them. For models with context, a view has several
concentric patches. A pair is a function of (key of the step, index in the batch) alone.
"""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Key, UInt8, UInt32
from tqdm import tqdm

from kjax.data.cutting.keypoints import detect_in_grey, upright_without
from kjax.data.cutting.photographs import grey_values, list_photos, read_reduced
from kjax.data.phototour import SetPhotograph
from kjax.errors import InputError
from kjax.files.atomic import sha256
from kjax.runs.config import AugmentConfig

MAX_SIDE = 1024
"""Maximum side of a photograph in pixels; larger ones are reduced."""
OCTAVES = 6
MAX_POINTS = 3000
"""Maximum keypoints of a photograph."""
LEAST_SIDE = 12.0
"""Minimum side of a patch in pixels of the photograph."""
APART = 0.5
"""Distance of points in patch sides from which they are negatives of each other."""
_PHOTO = 2**32 - 1
"""Number folded into a step's key for the choice of photographs; pairs use their index."""


class ResidentPhotos(NamedTuple):
    """Photographs in an accelerator's memory. A pytree: pass it to jitted functions."""

    words: UInt32[Array, " pixels"]  # red, green and blue of all octaves, row by row
    starts: Int32[Array, "photos octaves"]  # index of an octave's first pixel
    sizes: Int32[Array, "photos octaves 2"]  # width and height
    points: Float[Array, "points 4"]  # x, y, side of the patch in pixels, angle in radians
    firsts: Int32[Array, " photos"]  # index of a photograph's first point
    counts: Int32[Array, " photos"]
    alike: Int32[Array, "photos 2"]  # first of the photographs of this place, and their number


class Places(NamedTuple):
    """Where pairs are: the place's first photograph, the point and the side of its patch."""

    photo: Int32[Array, " pairs"]
    xy: Float[Array, "pairs 2"]
    side: Float[Array, " pairs"]


# On the host


def paths_in(folder: str | Path) -> list[Path]:
    """Return the photographs of a folder and its subfolders."""
    if not Path(folder).is_dir():
        raise InputError(f"{folder} is not a folder of photographs")
    return list_photos(Path(folder))


def photographs_in(folder: str | Path) -> list[SetPhotograph]:
    """Return the photographs of a folder and its subfolders, with their checksums."""
    named = ((path.relative_to(folder).as_posix(), path) for path in paths_in(folder))
    return [SetPhotograph(i, name, sha256(path)) for i, (name, path) in enumerate(named)]


def read_photos(
    folder: str | Path, places: str | Path = "", *, extent: float | None, progress: bool = True
) -> ResidentPhotos:
    """Read the photographs of a folder, detect keypoints and reduce to octaves, on the host.

    Photographs in one subfolder of `places` show one place from one point, pixel by pixel. `extent`
    is the side of a patch over the keypoint's diameter. Without it, there are no keypoints.
    """

    def read(path: Path) -> tuple[list[np.ndarray], np.ndarray]:
        pixels, _ = read_reduced(path, MAX_SIDE)
        grey = np.asarray(grey_values(pixels))
        points = np.zeros((0, 4), np.float32)
        if extent is not None:
            found = detect_in_grey(grey, max_keypoints=MAX_POINTS)
            sides = np.maximum(extent * found.scales, LEAST_SIDE)
            angles = np.deg2rad(upright_without(found.angles))
            points = np.column_stack([found.xy, sides, angles])
        if pixels.dtype != np.uint8 or pixels.ndim == 2:
            pixels = np.repeat(np.clip(grey, 0, 255).astype(np.uint8)[..., None], 3, axis=2)
        return make_octaves(pixels[..., :3]), points

    alone, alike = paths_in(folder), paths_in(places) if places else []
    paths = [*alone, *alike]
    names = [*map(str, alone), *(str(path.parent) for path in alike)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        bar = tqdm(pool.map(read, paths), "reading photographs", len(paths), disable=not progress)
        parts = [(*part, name) for part, name in zip(bar, names, strict=True)]
    if extent is not None:
        parts = [part for part in parts if len(part[1])]
    if not parts:
        raise InputError(f"no photograph in {folder} has keypoints: give other photographs")
    return pack_photos(*zip(*parts, strict=True))


def pack_photos(
    octaves: Sequence[list[np.ndarray]],
    points: Sequence[Float[np.ndarray, "_ 4"]],
    places: Sequence[str],
) -> ResidentPhotos:
    """Concatenate the octaves and points of photographs; those of a place follow each other."""
    every = [octave for own in octaves for octave in own]
    ends = np.cumsum([0, *(octave.size for octave in every)])
    if ends[-1] >= 2**31:
        raise InputError(f"{len(octaves)} photographs have more than 2³¹ pixels: give fewer")
    counts = np.array([len(own) for own in points], np.int32)
    sizes = np.array([octave.shape[::-1] for octave in every], np.int32)
    packed: Any = {  # NumPy's, until they are copied to a device
        "words": np.concatenate([octave.reshape(-1) for octave in every]),
        "starts": ends[:-1].astype(np.int32).reshape(-1, OCTAVES),
        "sizes": sizes.reshape(-1, OCTAVES, 2),
        "points": np.concatenate(points).astype(np.float32),
        "firsts": (np.cumsum(counts) - counts).astype(np.int32),
        "counts": counts,
        "alike": np.array([[places.index(one), places.count(one)] for one in places], np.int32),
    }
    return ResidentPhotos(**packed)


def make_octaves(pixels: UInt8[np.ndarray, "h w 3"]) -> list[UInt32[np.ndarray, "_ _"]]:
    """Halve a photograph again and again, by the mean of four pixels; pack its channels."""
    octaves = []
    for _ in range(OCTAVES):
        wide = pixels.astype(np.uint32)
        octaves.append(wide[..., 0] | wide[..., 1] << 8 | wide[..., 2] << 16)
        if min(pixels.shape[:2]) >= 4:
            even = wide[: len(wide) // 2 * 2, : wide.shape[1] // 2 * 2]
            total = even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]
            pixels = ((total + 2) // 4).astype(np.uint8)
    return octaves


# On the device


def draw_views(
    photos: ResidentPhotos,
    key: Key[Array, ""],
    indices: Int[Array, " pairs"],
    *,
    size: int,
    widths: tuple[float | int, ...],
    group: int,
    config: AugmentConfig,
) -> tuple[Float[Array, "pairs 2 widths 3 {size} {size}"], Places]:
    """Cut the pairs with these indices in a step's batch, in colours from 0 to 255.

    `widths` are those of the concentric patches; `group` pairs in a row share a photograph.
    """
    photo_key = jax.random.fold_in(key, _PHOTO)

    def cut_pair(index: Array) -> tuple[Array, Places]:
        own = jax.random.fold_in(photo_key, index // group)
        photo = jax.random.randint(own, (), 0, photos.counts.shape[0])
        point_key, first, second = jax.random.split(jax.random.fold_in(key, index), 3)
        chosen, upright = jax.random.uniform(point_key, (2,))
        number = (chosen * photos.counts[photo]).astype(jnp.int32)
        point = photos.points[photos.firsts[photo] + jnp.minimum(number, photos.counts[photo] - 1)]
        point = point.at[3].set(jnp.where(upright < config.upright_share, 0.0, point[3]))
        start, count = photos.alike[photo, 0], photos.alike[photo, 1]
        other = start + jax.random.randint(second, (), 0, count)
        views = []
        for view_key, seen in ((first, photo), (second, other)):
            frame = random_frame(view_key, point, config)
            patches = [cut_patch(photos, seen, frame, width, size) for width in widths]
            views.append(jnp.stack(patches))
        return jnp.stack(views), Places(start, point[:2], point[2])

    return jax.vmap(cut_pair)(indices)


def random_frame(
    key: Key[Array, ""], point: Float[Array, "4"], config: AugmentConfig
) -> Float[Array, "2 3"]:
    """Return a view of a point: an affine map from units of its side to the photograph."""
    x, y, side, angle = (point[i] for i in range(4))
    normal = jax.random.normal(key, (4,))
    axis, stretch = jax.random.uniform(jax.random.fold_in(key, 1), (2,))
    scale = side * jnp.exp(config.scale_noise * normal[0])
    turn = angle + math.radians(config.rotation_noise) * normal[1]
    # Rotation times a symmetric matrix: eigenvalues e^±ratio, along an axis at half `twice`.
    ratio, twice = 0.5 * math.log(config.max_stretch) * stretch, 2 * math.pi * axis
    even, odd = jnp.cosh(ratio), jnp.sinh(ratio)
    along, across = odd * jnp.cos(twice), odd * jnp.sin(twice)
    cosine, sine = scale * jnp.cos(turn), scale * jnp.sin(turn)
    left, right = jnp.stack([even + along, across]), jnp.stack([across, even - along])
    shift = config.shift_noise * side * normal[2:]
    rows = [
        jnp.append(cosine * left - sine * right, x + shift[0]),
        jnp.append(sine * left + cosine * right, y + shift[1]),
    ]
    return jnp.stack(rows)


def cut_patch(
    photos: ResidentPhotos,
    photo: Int[Array, ""],
    frame: Float[Array, "2 3"],
    width: float | int,
    size: int,
) -> Float[Array, "3 {size} {size}"]:
    """Sample a patch of `width` sides bilinearly, from the octave whose pixels are as large."""
    area = jnp.abs(frame[0, 0] * frame[1, 1] - frame[0, 1] * frame[1, 0])
    step = jnp.log2(width / size) + 0.5 * jnp.log2(area)
    grid = (jnp.arange(size, dtype=jnp.float32) - (size - 1) / 2) * (width / size)
    x, y = (row[0] * grid[None, :] + row[1] * grid[:, None] + row[2] for row in frame)
    return sample_photo(photos, photo, x, y, step)


def sample_photo(
    photos: ResidentPhotos,
    photo: Int[Array, ""],
    x: Float[Array, "h w"],
    y: Float[Array, "h w"],
    step: Float[Array, ""],
) -> Float[Array, "3 h w"]:
    """Sample bilinearly, from the octave for samples that are 2^step pixels apart."""
    octave = jnp.clip(jnp.round(step - 0.25), 0, OCTAVES - 1).astype(jnp.int32)
    last = photos.sizes[photo, octave] - 1
    zoom = jnp.exp2(-octave.astype(jnp.float32))

    def cells(place: Array, end: Array) -> tuple[Array, Array]:
        place = jnp.clip((place + 0.5) * zoom - 0.5, 0, end.astype(jnp.float32))
        # The last cell is closed, so that all four neighbours exist on the border, too.
        before = jnp.minimum(jnp.floor(place), jnp.maximum(end - 1, 0))
        return before.astype(jnp.int32), (place - before)[None]

    left, beyond_left = cells(x, last[0])
    top, beyond_top = cells(y, last[1])
    corner = photos.starts[photo, octave] + top * (last[0] + 1) + left
    right, down = jnp.minimum(last[0], 1), jnp.where(last[1] > 0, last[0] + 1, 0)

    def read(index: Array) -> Array:
        word = photos.words.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
        shifts = jnp.array([0, 8, 16], jnp.uint32)[:, None, None]
        return ((word[None] >> shifts) & 255).astype(jnp.float32)

    upper = read(corner) * (1 - beyond_left) + read(corner + right) * beyond_left
    lower = read(corner + down) * (1 - beyond_left) + read(corner + down + right) * beyond_left
    return upper * (1 - beyond_top) + lower * beyond_top


def overlapping(places: Places) -> Bool[Array, "pairs pairs"]:
    """Mark pairs of one photograph that are too close to be negatives of each other."""
    same = places.photo[:, None] == places.photo[None, :]
    apart = jnp.abs(places.xy[:, None] - places.xy[None, :]).max(axis=-1)
    return same & (apart < APART * jnp.maximum(places.side[:, None], places.side[None, :]))
