"""HPatches folders: per sequence one reference column of 65×65 patches and fifteen others.

`<sequence>/ref.png` holds patches of the first image, one below the other; `e1 … e5`, `h1 … h5` and
`t1 … t5` hold the same scene points in the five other images, with easy, hard and tough geometric
noise. `i_…` sequences change in illumination, `v_…` in viewpoint.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from tqdm import tqdm

from kjax.data.cutting.photographs import as_pixels, grey_values, whole_greys
from kjax.errors import InputError, check_name
from kjax.files.images import open_image

PATCH_SIDE = 65
IMAGES = ("ref", *(f"{level}{number}" for level in "eht" for number in range(1, 6)))
"""Names of the sixteen columns of a sequence, in reading order."""
_ILLUMINATION = """
    i_ajuntament i_autannes i_bologna i_books i_boutique i_bridger i_brooklyn i_castle i_chestnuts
    i_contruction i_crownday i_crownnight i_dc i_dome i_duda i_fenis i_fog i_fruits i_gonnenberg
    i_greenhouse i_greentea i_indiana i_kions i_ktirio i_kurhaus i_leuven i_lionday i_lionnight
    i_londonbridge i_melon i_miniature i_nescafe i_nijmegen i_nuts i_objects i_parking i_partyfood
    i_pencils i_pinard i_pool i_porta i_resort i_salon i_santuario i_school i_ski i_smurf i_steps
    i_table i_tools i_toy i_troulos i_veggies i_village i_whitebuilding i_yellowtent i_zion
"""
_VIEWPOINT = """
    v_abstract v_adam v_apprentices v_artisans v_astronautis v_azzola v_bark v_bees v_beyus v_bip
    v_bird v_birdwoman v_blueprint v_boat v_bricks v_busstop v_calder v_cartooncity v_charing
    v_churchill v_circus v_coffeehouse v_colors v_courses v_dirtywall v_dogman v_eastsouth v_feast
    v_fest v_gardens v_grace v_graffiti v_home v_laptop v_london v_machines v_man v_maskedman
    v_pomegranate v_posters v_samples v_soldiers v_strand v_sunseason v_tabletop v_talent v_tempera
    v_there v_underground v_vitro v_wall v_wapping v_war v_weapons v_woman v_wormhole v_wounded
    v_yard v_yuri
"""
_TEST = {
    "a": """
    i_ajuntament i_autannes i_bologna i_books i_bridger i_brooklyn i_fog i_fruits i_kurhaus
    i_lionnight i_nijmegen i_porta i_resort i_salon i_santuario i_table i_tools i_troulos
    i_whitebuilding i_zion v_abstract v_azzola v_bees v_birdwoman v_busstop v_coffeehouse v_courses
    v_eastsouth v_feast v_fest v_man v_pomegranate v_soldiers v_strand v_tabletop v_talent
    v_underground v_woman v_yard v_yuri
    """,
    "b": """
    i_autannes i_bridger i_castle i_chestnuts i_dome i_duda i_fog i_fruits i_greenhouse i_kions
    i_kurhaus i_lionday i_melon i_partyfood i_pencils i_porta i_resort i_school i_ski i_village
    v_adam v_apprentices v_astronautis v_bees v_bip v_birdwoman v_charing v_churchill v_colors
    v_feast v_graffiti v_laptop v_london v_posters v_sunseason v_there v_underground v_war v_woman
    v_yard
    """,
    "c": """
    i_bologna i_boutique i_castle i_crownnight i_dc i_fog i_kions i_leuven i_londonbridge i_melon
    i_nijmegen i_parking i_partyfood i_pool i_ski i_smurf i_steps i_table i_tools i_troulos v_adam
    v_artisans v_azzola v_bees v_blueprint v_busstop v_coffeehouse v_dirtywall v_feast v_gardens
    v_graffiti v_machines v_man v_maskedman v_pomegranate v_talent v_tempera v_war v_weapons
    v_wounded
    """,
}

SEQUENCES: tuple[str, ...] = tuple((_ILLUMINATION + _VIEWPOINT).split())
"""Names of all 116 sequences, in alphabetical order."""
SPLITS: dict[str, tuple[str, ...]] = {
    **{name: tuple(listed.split()) for name, listed in _TEST.items()},
    "full": SEQUENCES,
    "illum": tuple(_ILLUMINATION.split()),
    "view": tuple(_VIEWPOINT.split()),
}
"""Test sequences of each split. In a, b and c, methods may train on the other sequences."""

Folder = str | os.PathLike[str]


class Noise(NamedTuple):
    """Standard deviations of a random misalignment."""

    rotation: float  # degrees
    translation: float  # along each side, in half sides of the reference
    scale: float  # of the binary logarithm
    ratio: float  # of the binary logarithm of the stretch along a random axis


NOISE = {
    "easy": Noise(10.0, 0.080, 0.080, 0.10),
    "hard": Noise(20.0, 0.165, 0.165, 0.22),
    "tough": Noise(30.0, 0.260, 0.260, 0.35),
}
"""Misalignment of HPatches' levels, whose median overlaps are 0.85, 0.72 and 0.60."""


class Sequence(NamedTuple):
    """One sequence: `patches[k, n]` is the n-th scene point in the column `IMAGES[k]`."""

    name: str
    patches: UInt8[np.ndarray, "16 n side side"]


def list_sequences(folder: Folder, *, split: str | None = None) -> list[Path]:
    """List the sequence folders that a split of `SPLITS` tests, or all that are present."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    found = {path.parent.name: path.parent for path in sorted(folder.glob("*/ref.png"))}
    if not found:
        raise InputError(f"{folder} holds no sequence: give the folder above <sequence>/ref.png")
    if split is None:
        return list(found.values())
    check_name("HPatches split", split, SPLITS)
    if missing := [name for name in SPLITS[split] if name not in found]:
        raise InputError(
            f"{folder} lacks {len(missing)} of the {len(SPLITS[split])} sequences of split "
            f"{split}, e.g. {missing[0]}: download or unpack HPatches again"
        )
    return [found[name] for name in SPLITS[split]]


def read_hpatches(
    folder: Folder, *, split: str | None = None, progress: bool = True
) -> Iterator[Sequence]:
    """Read one sequence after the other; all of HPatches at once would take 10 GB."""
    paths = list_sequences(folder, split=split)
    for path in tqdm(paths, desc="HPatches", disable=not progress):
        yield read_sequence(path)


def read_sequence(folder: Folder) -> Sequence:
    """Read the sixteen columns of one sequence."""
    folder = Path(folder)
    columns = [read_column(folder / f"{image}.png") for image in IMAGES]
    if len({len(column) for column in columns}) > 1:
        raise InputError(f"{folder} has columns of different lengths: download or unpack it again")
    return Sequence(folder.name, np.stack(columns))


def read_column(path: Path) -> UInt8[np.ndarray, "n 65 65"]:
    """Read the patches of one file."""
    if not path.is_file():
        raise InputError(f"{path.parent} lacks {path.name}: download or unpack it again")
    with open_image(path, advice="download or unpack it again") as image:
        width, height = image.size
        if width != PATCH_SIDE or height % PATCH_SIDE:
            raise InputError(
                f"{path} has {width}×{height} pixels; a column of patches is {PATCH_SIDE} wide "
                f"and a multiple of {PATCH_SIDE} high"
            )
        return whole_greys(grey_values(as_pixels(image))).reshape(-1, PATCH_SIDE, PATCH_SIDE)


def decoded_hash(sequences: Iterable[Sequence]) -> str:
    """Return the SHA-256 of names and grey values; it does not depend on the packing."""
    digest = hashlib.sha256()
    for sequence in sequences:
        digest.update(f"{sequence.name} {sequence.patches.shape[1]}\n".encode())
        digest.update(np.ascontiguousarray(sequence.patches))
    return digest.hexdigest()
