"""Who takes part in an evaluation: runs, weights, rivals, folders of descriptors.

All are asked for by one word on the command line:

    out/first                     a training run: the workdir of `run_train.py`
    weights.npz:xy,s=1            weights, with the head and fields of the model that they are for
    combined-star, kjax-hardnet   weights that ship with kjax: `kjax.weights.shipped.list_weights()`
    rootsift                      a rival by its name
    results/mydesc                a folder of official HPatches CSV files

Behind a last colon may stand how descriptors are stored: best:uint8, best:binary, fast:64 (the
first numbers, of weights that were trained for it), fast:64,uint8.

A rival's name stands for the rival, so hardnet is the release and kjax-hardnet is kjax's own. A
folder wins over shipped weights of its name.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, UInt8

from kjax.baselines import BASELINES, load_baseline
from kjax.baselines.descriptor import Unavailable
from kjax.errors import InputError, unknown_name
from kjax.eval.descriptor_cache import identity_of
from kjax.eval.similarity_maps import Method
from kjax.eval.stored_forms import as_numbers, split_form
from kjax.model.describe import describe
from kjax.model.descriptor import Descriptor, parameter_count
from kjax.model.folding import fold
from kjax.runs.workdir import CONFIG_FILE
from kjax.version import __version__
from kjax.weights import shipped
from kjax.weights.files import SUFFIXES
from kjax.weights.info import display_name
from kjax.weights.shipped import PREFIX
from kjax.weights.source import LoadedModel, holds_weights, is_workdir, load_sources, shortened


@dataclasses.dataclass(frozen=True)
class Member:
    """One set of weights: an entry has one per seed.

    Attributes:
        describe: from uint8 patches to descriptors; takes `progress`, whether to show a bar.
        identity: what its result depends on, for the cache; empty if not to be kept.
        method: the model, if it is one of ours.
    """

    describe: Callable[..., Float32[np.ndarray, "patches dim"]]
    identity: str
    method: Method | None = None


@dataclasses.dataclass(frozen=True)
class Entry:
    """One who takes part. Most fields are those of `kjax.eval.results.DescriptorResult`.

    Attributes:
        name: of the descriptor; two runs of one model on different sets share it.
        ours: whether it is one of our models.
        source: where it came from.
        distance: "L2" or "L1".
        parameters: learned ones, if there are any.
        train: names of the training sets, joined by +.
        members: one per seed; none for CSV files, or if missing.
        csv_folder: of an entry that has its descriptors ready.
        missing: why it cannot take part.
        workdir: of a training run.
        test_sets: that the run was tested on, as its config names them.
    """

    name: str
    ours: bool
    source: str
    distance: str = "L2"
    parameters: int | None = None
    train: str | None = None
    members: tuple[Member, ...] = ()
    csv_folder: Path | None = None
    missing: str | None = None
    workdir: Path | None = None
    test_sets: tuple[str, ...] = ()


def find_entry(word: str, *, weights: Mapping[str, str] | None = None) -> Entry:
    """Who a word of the command line stands for.

    Args:
        word: see the top of this file.
        weights: files for rivals that need one, by name.
    """
    source, form = split_form(word)
    entry = _find_whole(source, weights or {}, form.dimension)
    if form.dimension is not None and not entry.ours:
        raise InputError(f"{word}: only kjax's own weights have shorter forms")
    return entry if form.quantization is None else _quantized(entry, form.quantization)


def _find_whole(word: str, weights: Mapping[str, str], dimension: int | None) -> Entry:
    path, _, fields = word.partition(":")
    if path in BASELINES:
        return _rival(path, weights.get(path))
    folder = Path(word)
    known = shipped.find(path)
    if is_workdir(word) or holds_weights(word):
        return _ours(word, dimension)
    if folder.is_dir() and (known is None or _has_descriptors(folder)):
        return _csv_folder(folder)
    if known is not None or Path(path).suffix in SUFFIXES:
        return _ours(word, dimension)
    if not fields and "/" not in word and "." not in word:
        raise unknown_name("rival", word, [*BASELINES, *shipped_words()])
    raise InputError(
        f"{word} is no workdir, weights file ({', '.join(SUFFIXES)}), folder of CSV files, "
        f"or rival ({', '.join(BASELINES)})"
    )


def shipped_words() -> list[str]:
    """Words for the shipped weights, where a rival has the name with the prefix."""
    return [f"{PREFIX}{name}" if name in BASELINES else name for name in shipped.list_weights()]


def _quantized(entry: Entry, form: str) -> Entry:
    """The entry with descriptors as bytes or bits."""
    if entry.csv_folder is not None or entry.distance != "L2":
        raise InputError(f"{entry.name} cannot become {form}: it is bits, or described already")

    def stored(member: Member) -> Member:
        def describe_patches(patches: np.ndarray, **options: bool) -> np.ndarray:
            return as_numbers(member.describe(patches, **options), form)

        identity = member.identity and f"{member.identity} {form}"
        return dataclasses.replace(member, describe=describe_patches, identity=identity)

    return dataclasses.replace(
        entry,
        name=f"{entry.name}, {form}",
        distance="L1" if form == "binary" else "L2",
        members=tuple(stored(member) for member in entry.members),
    )


def _ours(word: str, dimension: int | None) -> Entry:
    """A training run, with all its seeds, or weights from a file or shipped."""
    sources = load_sources(word)
    if dimension is not None:
        sources = [shortened(source, dimension) for source in sources]
    first = sources[0]
    if first.info.sha256:
        return _shipped(first)
    data = first.config["data"] if first.config is not None else None
    seeds = f", seeds {', '.join(str(one.seed) for one in sources)}" if len(sources) > 1 else ""
    return Entry(
        name=display_name(first.model),
        ours=True,
        source=f"{first.path}{seeds}",
        parameters=parameter_count(first.variables),
        train="+".join(first.info.train_sets) if data else None,
        members=tuple(model_member(one.model, one.variables) for one in sources),
        workdir=first.path if data else None,
        test_sets=tuple(data["test"]) if data else (),
    )


def _shipped(source: LoadedModel) -> Entry:
    dimension = source.model.dimension
    shorter = f" D={dimension}" if dimension in shipped.card(source.info.name).nested else ""
    return Entry(
        name=f"{PREFIX}{source.info.name}{shorter}",
        ours=True,
        source=f"ships with kjax {__version__}",
        parameters=parameter_count(source.variables),
        train="+".join(source.info.train_sets),
        members=(model_member(source.model, source.variables),),
    )


def model_member(model: Descriptor, variables: Any, *, keep: bool = True) -> Member:
    """A model with its weights, in full precision.

    Whatever the precision of the training: figures should not depend on the machine.

    Args:
        model: with BatchNorm.
        variables: its weights.
        keep: whether its descriptors go to the cache.
    """
    exact = model.clone(dtype=jnp.dtype("float32"), axis_name=None)
    folded, weights = fold(exact, variables)
    apply = functools.partial(_applied, folded, weights)

    def describe_patches(
        patches: UInt8[np.ndarray, "patches height width"], *, progress: bool = True
    ) -> Float32[np.ndarray, "patches dim"]:
        with jax.default_matmul_precision("highest"):
            return describe(apply, patches, size=model.patch_size, progress=progress)

    settings = [model.head, model.patch_size, dataclasses.asdict(model.position_kernel)]
    identity = identity_of("kjax", settings, variables) if keep else ""
    return Member(describe_patches, identity, (exact, variables))


@functools.partial(jax.jit, static_argnums=0)
def _applied(model: Descriptor, weights: Any, patches: Float32[Array, "n N N"]) -> Array:
    """One program for all weights of an architecture."""
    return jnp.asarray(model.apply(weights, patches))


def _rival(name: str, weights: str | None) -> Entry:
    try:
        rival = load_baseline(name, weights)
    except Unavailable as unavailable:
        own = f"; kjax's own are {PREFIX}{name}" if shipped.find(name) else ""
        return Entry(name, ours=False, source="–", missing=f"{unavailable}{own}")
    content = np.fromfile(weights, np.uint8) if weights else np.empty(0, np.uint8)
    identity = identity_of("rival", [name, rival.source], content)
    return Entry(
        name=rival.name,
        ours=False,
        source=rival.source,
        distance=rival.distance,
        parameters=rival.parameters,
        members=(Member(rival.describe, identity),),
    )


def _has_descriptors(folder: Path) -> bool:
    return any(folder.glob("*/ref.csv"))


def _csv_folder(folder: Path) -> Entry:
    if not _has_descriptors(folder):
        raise InputError(
            f"{folder} is neither a workdir (no {CONFIG_FILE}) nor a folder of descriptors "
            "(no <sequence>/ref.csv)"
        )
    return Entry(folder.name, ours=False, source=f"CSV files in {folder}", csv_folder=folder)
