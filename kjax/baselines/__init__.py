"""Which rivals there are, and how to get one by name.

Nothing here imports JAX, OpenCV or torch: each rival's module is imported when it is asked for.
"""

from pathlib import Path

from kjax.baselines.descriptor import PatchDescriptor, Unavailable
from kjax.errors import InputError, unknown_name

OPENCV_BASELINES = ("sift", "rootsift", "brief", "orb", "bboost", "teblid")

MKD_MODES = {
    "mkd": None,
    "mkd-lw": "lw",
    "mkd-pca": "pca",
    "mkd-pcaws": "pcaws",
    "mkd-pcawt": "pcawt",
}
"""Whitening of each MKD row; None leaves the 238 raw dimensions."""

PUBLISHED = {
    "mkd": "https://github.com/manyids2/mkd_pytorch",
    "tfeat": "https://github.com/vbalnt/tfeat",
    "l2net": "https://github.com/yuruntian/L2-Net",
    "deepcompare": "https://github.com/szagoruyko/cvpr15deepcompare",
    "ddesc": "https://github.com/etrulls/deepdesc-release",
    "hardnet": "https://github.com/DagnyT/hardnet",
}
"""Addresses at which the authors of each learned rival published its weights."""

BASELINES = (*OPENCV_BASELINES, *MKD_MODES, "tfeat", "l2net", "deepcompare", "ddesc", "hardnet")


def load_baseline(
    name: str, weights: str | Path | None = None, *, training_set: str | None = None
) -> PatchDescriptor:
    """A rival by name, with the weights in a file where it has any.

    Args:
        name: one of `BASELINES`.
        weights: the file that its authors published, or a converted one; each rival's module says
            which formats it reads.
        training_set: which of several sets a file of MKD whitenings holds, e.g. "liberty".

    Raises:
        Unavailable: weights or library are missing.
        InputError: an unknown name, or weights that do not fit.
    """
    if name not in BASELINES:
        raise unknown_name("baseline", name, BASELINES)
    if name in OPENCV_BASELINES:
        return _load_opencv(name, weights)
    if name in MKD_MODES:
        return _load_mkd(name, weights, training_set)
    return _load_network(name, _required(name, weights))


def _required(name: str, weights: str | Path | None) -> Path:
    """The path of the weights, or one line on where to get them."""
    if weights is None:
        published = PUBLISHED[name.partition("-")[0]]
        raise Unavailable(
            f"weights are missing: give --weights {name}=FILE; published at {published}"
        )
    return Path(weights)


def _load_opencv(name: str, weights: str | Path | None) -> PatchDescriptor:
    from kjax.baselines import opencv

    if weights is not None:
        raise InputError(f"{name} is computed by OpenCV and takes no weights: leave {weights} out")
    return opencv.load(name)


def _load_mkd(name: str, weights: str | Path | None, training_set: str | None) -> PatchDescriptor:
    from kjax.baselines import mkd

    mode = MKD_MODES[name]
    if mode is None:
        if weights is not None:
            raise InputError(f"mkd is not whitened: give {weights} to mkd-pcawt or mkd-lw instead")
        return mkd.raw_mkd()
    return mkd.load(mode, _required(name, weights), training_set)


def _load_network(name: str, weights: Path) -> PatchDescriptor:
    from kjax.baselines import deepcompare, deepdesc, hardnet, l2net, tfeat

    loaders = {
        "tfeat": tfeat.load,
        "l2net": l2net.load,
        "deepcompare": deepcompare.load,
        "ddesc": deepdesc.load,
        "hardnet": hardnet.load,
    }
    return loaders[name](weights)


def baseline_file(item: str) -> tuple[str, str]:
    """The rival and the weights file that RIVAL=FILE names."""
    name, found, path = item.partition("=")
    if not found or not path:
        raise InputError(f"--weights takes RIVAL=FILE, not {item!r}")
    if name not in BASELINES:
        raise unknown_name("baseline", name, BASELINES)
    if not Path(path).is_file():
        raise InputError(f"--weights {name}: no such file: {path}")
    return name, path
