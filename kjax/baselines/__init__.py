"""Baselines: descriptors to compare with, loaded by name.

Importing this imports neither JAX nor OpenCV nor torch. A new network is a module with a function
`load(path) -> PatchDescriptor` and a line in `load_baseline`.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.errors import InputError, check_name

if TYPE_CHECKING:
    from kjax.baselines.descriptor import PatchDescriptor

OPENCV_BASELINES = ("sift", "rootsift", "brief", "orb", "bboost", "teblid")
MKD_BASELINES = ("mkd", "mkd-lw", "mkd-pca", "mkd-pcaws", "mkd-pcawt")
"""The first has 238 raw dimensions; the others are called after their whitening."""
NETWORKS = ("tfeat", "hardtfeat", "l2net", "deepcompare", "ddesc", "hardnet")
PUBLISHED = {
    "mkd": "https://github.com/manyids2/mkd_pytorch",
    "tfeat": "https://github.com/vbalnt/tfeat",
    "hardtfeat": "https://github.com/ducha-aiki/affnet",
    "l2net": "https://github.com/yuruntian/L2-Net",
    "deepcompare": "https://github.com/szagoruyko/cvpr15deepcompare",
    "ddesc": "https://github.com/etrulls/deepdesc-release",
    "hardnet": "https://github.com/DagnyT/hardnet",
}
"""Where the authors published the weights."""
BASELINES = (*OPENCV_BASELINES, *MKD_BASELINES, *NETWORKS)


def load_baseline(
    name: str, weights: str | Path | None = None, *, training_set: str | None = None
) -> "PatchDescriptor":
    """Load a baseline by name.

    Args:
        name: one of `BASELINES`.
        weights: file that its authors published, or a converted one; each baseline's module lists
            the formats it reads.
        training_set: training set of an MKD whitening, e.g. "liberty", if a file holds several.

    Raises:
        Unavailable: weights or library are missing.
        InputError: the name is unknown, or the weights do not fit.
    """
    check_name("baseline", name, BASELINES)
    if weights is not None and name in (*OPENCV_BASELINES, "mkd"):
        raise InputError(f"{name} takes no weights: omit {weights}")
    if name in OPENCV_BASELINES:
        from kjax.baselines import opencv

        return opencv.load(name)
    from kjax.baselines import deepcompare, deepdesc, l2net, mkd, tfeat
    from kjax.baselines.descriptor import Unavailable

    if name == "mkd":
        return mkd.load_raw()
    if weights is None:
        address = PUBLISHED[name.partition("-")[0]]
        raise Unavailable(f"weights are missing: give --baseline {name}=FILE, from {address}")
    load: dict[str, Callable[[Path], PatchDescriptor]] = {
        "tfeat": tfeat.load,
        "hardtfeat": functools.partial(tfeat.load, hard=True),
        "l2net": l2net.load,
        "deepcompare": deepcompare.load,
        "ddesc": deepdesc.load,
        "hardnet": l2net.load_hardnet,
    }
    try:
        if name in MKD_BASELINES:
            return mkd.load(name.removeprefix("mkd-"), Path(weights), training_set)
        return load[name](Path(weights))
    except InputError as error:
        raise InputError(f"{weights}: {error}") from None


def baseline_file(item: str) -> tuple[str, str]:
    """Parse NAME=FILE into a baseline's name and its weights file."""
    name, equals, path = item.partition("=")
    if not equals or not path:
        raise InputError(f"--baseline takes NAME=FILE, not {item!r}")
    check_name("baseline", name, BASELINES)
    if not Path(path).is_file():
        raise InputError(f"--baseline {name}: no such file: {path}")
    return name, path
