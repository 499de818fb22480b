"""Descriptors under evaluation: training runs, weights, baselines, folders of descriptors.

Each is named by one argument on the command line:

    out/first                a training run: the workdir of `kjax train`
    weights.npz:xy,s=1       a weights file, with the head and fields of its model
    best, kjax-hardnet       weights that ship with kjax (`kjax info` lists them)
    rootsift                 a baseline
    results/mydesc           a folder of official HPatches CSV files

A suffix after the last colon gives the stored form: best:uint8, best:binary, fast:64 (the first 64
values; the weights must support it), fast:64,uint8. fast:int8 computes in 8 bits, by onnxruntime.

If a baseline and shipped weights share a name, it means the baseline: hardnet is the authors'
release, kjax-hardnet is ours. A folder takes precedence over shipped weights of the same name.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, UInt8

from kjax.baselines import BASELINES, load_baseline
from kjax.baselines.descriptor import Unavailable
from kjax.data.cache import cache_errors, cache_root
from kjax.errors import InputError, unknown_name
from kjax.files.npz import read_npz, write_npz
from kjax.images.runner import Runner
from kjax.model.describe import describe
from kjax.model.descriptor import Descriptor, parameter_count
from kjax.model.folding import fold, map_leaves
from kjax.model.quantization import FORMS, quantize
from kjax.runs import CONFIG_FILE
from kjax.version import __version__
from kjax.weights import shipped
from kjax.weights.files import SUFFIXES
from kjax.weights.info import display_name
from kjax.weights.shipped import PREFIX
from kjax.weights.source import holds_weights, is_workdir, load_sources, shortened

EXACT, INT8 = "float32", "int8"
CACHE_VERSION = 3
"""Raise this if descriptors of the same model and patches change."""

Folder = str | os.PathLike[str]
Describe = Callable[..., Float32[np.ndarray, "patches dim"]]
"""Maps uint8 patches to descriptors; `progress=False` hides the progress bar."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A descriptor under evaluation. Other fields are those of `kjax.eval.results.Result`.

    Attributes:
        train: names of the training sets, joined by +.
        describe: one function per seed; none for CSV files, or if missing.
        identity: hash of everything that the descriptors depend on, besides the patches.
        model: model and variables of the first seed, for kjax models.
        csv_folder: folder of ready descriptors.
        test_sets: names of the sets that the run in `workdir` was tested on.
    """

    name: str
    ours: bool
    source: str
    distance: str = "L2"
    parameters: int | None = None
    train: str | None = None
    describe: tuple[Describe, ...] = ()
    identity: str = ""
    model: tuple[Descriptor, Any] | None = None
    csv_folder: Path | None = None
    missing: str | None = None
    workdir: Path | None = None
    test_sets: tuple[str, ...] = ()


def find_entry(
    name: str, *, weights: Mapping[str, str] | None = None, cache_dir: Folder | None = None
) -> Entry:
    """Resolve a name from the command line; `weights` are files of baselines by their names."""
    source, dimension, form, dtype = _split_form(name)
    path, _, fields = source.partition(":")
    folder, known = Path(source), shipped.find(path)
    if path in BASELINES:
        entry = _baseline(path, (weights or {}).get(path), cache_dir)
    elif is_workdir(source) or holds_weights(source):
        entry = _ours(source, dimension, dtype, cache_dir)
    elif folder.is_dir() and any(folder.glob("*/ref.csv")):
        entry = Entry(folder.name, ours=False, source=f"CSV files in {folder}", csv_folder=folder)
    elif folder.is_dir() and known is None:
        raise InputError(
            f"{folder} is neither a workdir (no {CONFIG_FILE}) nor a folder of descriptors "
            "(no <sequence>/ref.csv)"
        )
    elif known is not None or Path(path).suffix in SUFFIXES:
        entry = _ours(source, dimension, dtype, cache_dir)
    elif not fields and "/" not in source and "." not in source:
        own = [f"{PREFIX}{one}" if one in BASELINES else one for one in shipped.list_weights()]
        raise unknown_name("descriptor", source, [*BASELINES, *own])
    else:
        raise InputError(
            f"{source} is not a workdir, a weights file ({', '.join(SUFFIXES)}), a folder of CSV "
            f"files or a baseline ({', '.join(BASELINES)})"
        )
    if (dimension is not None or dtype != EXACT) and not entry.ours:
        raise InputError(f"{name}: only kjax models have shorter descriptors, or {INT8}")
    if form is None:
        return entry
    if entry.csv_folder is not None or entry.distance != "L2":
        raise InputError(f"{entry.name} cannot become {form}: use a descriptor of floats")

    def quantized(one: Describe) -> Describe:
        return lambda patches, **options: as_numbers(one(patches, **options), form)

    return dataclasses.replace(
        entry,
        name=f"{entry.name}, {form}",
        distance="L1" if form == "binary" else "L2",
        describe=tuple(map(quantized, entry.describe)),
        identity=f"{entry.identity} {form}",
    )


def _split_form(name: str) -> tuple[str, int | None, str | None, str]:
    """Split off a name the stored form, i.e. number of values and quantization, and the dtype."""
    source, _, text = name.rpartition(":")
    parts = text.split(",")
    forms = [part for part in parts if part in FORMS]
    sizes = [int(part) for part in parts if part.isascii() and part.isdecimal()]
    known = len(forms) + len(sizes) + parts.count(INT8)
    if not source or known < len(parts) or Path(name).exists():
        return name, None, None, EXACT
    dtype = INT8 if INT8 in parts else EXACT
    return source, sizes[-1] if sizes else None, forms[-1] if forms else None, dtype


def as_numbers(
    rows: Float32[np.ndarray, "patches dim"], form: str
) -> Float32[np.ndarray, "patches numbers"]:
    """Quantize descriptors and convert back to floats; bits become 0 and 1 (L1 is Hamming)."""
    stored = quantize(rows, form)
    return (np.unpackbits(stored, axis=1) if form == "binary" else stored).astype(np.float32)


def _ours(name: str, dimension: int | None, dtype: str, cache_dir: Folder | None) -> Entry:
    """A training run with all its seeds, a weights file, or shipped weights."""
    sources = load_sources(name)
    if dimension is not None:
        sources = [shortened(source, dimension) for source in sources]
    first, info = sources[0], sources[0].info
    if first.model.has_context:
        raise shipped.no_surroundings(name)
    data = first.config["data"] if first.config is not None else None
    train = "+".join(info.train_sets) if data or info.sha256 else None
    identities, describe = [], []
    for one in sources:
        model = one.model
        settings = [model.head, model.patch_size, dataclasses.asdict(model.position_kernel)]
        settings += [] if dtype == EXACT else [dtype]
        identities.append(identity_of("kjax", settings, one.variables))
        describer = model_describer(model, one.variables, dtype)
        describe.append(cached(describer, identities[-1], cache_dir=cache_dir))
    if info.sha256:  # shipped weights
        size = first.model.dimension
        shorter = f" D={size}" if size in shipped.card(info.name).nested else ""
        title, source = f"{PREFIX}{info.name}{shorter}", f"ships with kjax {__version__}"
        data = None
    else:
        seeds = f", seeds {', '.join(str(one.seed) for one in sources)}" if sources[1:] else ""
        title = display_name(first.model)
        source = f"{title}, {first.path}{seeds}"
        if Path(name).is_dir():  # a run, or the folder of tuned weights
            title = Path(name).resolve().name + (f" D={dimension}" if dimension else "")
    return Entry(
        name=title if dtype == EXACT else f"{title} {dtype}",
        ours=True,
        source=source,
        parameters=parameter_count(first.variables),
        train=train,
        describe=tuple(describe),
        identity=" ".join(identities),
        model=(_exact(first.model), first.variables),
        workdir=first.path if data else None,
        test_sets=tuple(data["test"]) if data else (),
    )


def _baseline(name: str, weights: str | None, cache_dir: Folder | None) -> Entry:
    try:
        baseline = load_baseline(name, weights)
    except Unavailable as unavailable:
        own = f"; ours is {PREFIX}{name}" if shipped.find(name) else ""
        return Entry(name, ours=False, source="–", missing=f"{unavailable}{own}")
    content = np.fromfile(weights, np.uint8) if weights else np.empty(0, np.uint8)
    identity = identity_of("rival", [name, baseline.source], content)
    return Entry(
        name=baseline.name,
        ours=False,
        source=baseline.source,
        distance=baseline.distance,
        parameters=baseline.parameters,
        describe=(cached(baseline.describe, identity, cache_dir=cache_dir),),
        identity=identity,
    )


def model_describer(model: Descriptor, variables: Any, dtype: str = EXACT) -> Describe:
    """Make a function that describes patches in full precision or int8, not the training's."""
    if model.has_context:
        raise shipped.no_surroundings(display_name(model))
    if dtype == INT8:
        arrays, small = map_leaves(np.asarray, variables), model.clone(dtype=np.dtype(INT8))
        runner = Runner(*fold(small, arrays, on_host=True))
        return functools.partial(runner.describe, rounded=True)
    folded, weights = fold(_exact(model), variables)
    apply = functools.partial(_applied, folded, weights)

    def describe_patches(
        patches: UInt8[np.ndarray, "patches height width"], *, progress: bool = True
    ) -> Float32[np.ndarray, "patches dim"]:
        with jax.default_matmul_precision("highest"):
            return describe(apply, patches, size=model.patch_size, progress=progress)

    return describe_patches


def _exact(model: Descriptor) -> Descriptor:
    return model.clone(dtype=jnp.dtype("float32"), axis_name=None)


@functools.partial(jax.jit, static_argnums=0)
def _applied(model: Descriptor, weights: Any, patches: Float32[Array, "n N N"]) -> Array:
    """One program for all weights of an architecture."""
    return jnp.asarray(model.apply(weights, patches))


# Cache


def cached(one: Describe, identity: str, *, cache_dir: Folder | None = None) -> Describe:
    """Wrap a describe function with a cache on disk, by a hash of the identity and the patches."""
    folder = cache_root(cache_dir) / "descriptors"

    def look_first(
        patches: UInt8[np.ndarray, "patches height width"], **options: bool
    ) -> Float32[np.ndarray, "patches dim"]:
        digest = hashlib.sha256(f"{identity} {patches.shape}".encode())
        digest.update(np.ascontiguousarray(patches))
        # An archive has a checksum; a plain .npy file has none.
        path = folder / f"{digest.hexdigest()}.npz"
        try:
            found = read_npz(path)["rows"]
            if found.ndim == 2 and found.dtype == np.float32 and len(found) == len(patches):
                return found
        except (InputError, KeyError):
            pass  # absent or damaged
        descriptors = one(patches, **options)
        with cache_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_npz(path, {"rows": descriptors})
        return descriptors

    return look_first


def identity_of(kind: str, settings: Any, variables: Any = ()) -> str:
    """Hash settings that have a JSON form or a repr, and arrays."""
    digest = hashlib.sha256(json.dumps([CACHE_VERSION, kind, settings], default=repr).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array)
    return digest.hexdigest()
