"""Load a model by name: shipped weights, a training run, or a weights file.

    best, or kjax-hardnet         weights that ship with kjax: `kjax.list_weights()`
    out/first                     a training run; its config defines the model
    tuned                         a folder of weights.npz and weights.json
    hardnet.pth                   a weights file that fits one head only
    weights.npz:polar,s=1         a weights file that fits several heads
    best.npz                      a weights file that kjax exported, with metadata

A training run takes precedence over shipped weights of the same name.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kjax.errors import InputError, unknown_name
from kjax.extras import jax
from kjax.files.json import parse_json
from kjax.model import CHANNELS, ENCODED_HEADS
from kjax.model.architecture import Architecture
from kjax.model.folding import shorten
from kjax.runs import CONFIG_FILE
from kjax.weights import shipped
from kjax.weights.files import SUFFIXES, load_state_dict, load_variables, read_metadata
from kjax.weights.info import (
    Fields,
    ModelInfo,
    display_name,
    fields_of,
    merge_fields,
    only_fields,
    parse_fields,
    parse_metadata,
)
from kjax.weights.torch_names import (
    PATHS,
    check_finite,
    infer_fields,
    infer_widths,
    plain_arrays,
    to_arrays,
)

if TYPE_CHECKING:
    from kjax.model.descriptor import Descriptor

WEIGHTS_FILE, METADATA_FILE = "weights.npz", "weights.json"
WHOLE_EXTENT = 12.0
"""Patch side of PhotoTourism divided by KeyPoint.size, which for SIFT is 2σ."""


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """Weights with their model.

    Attributes:
        path: weights file or workdir.
        arrays: variables, not folded, as NumPy arrays.
        candidates: models that the weights fit; several only for bare weights files.
        info: what else is known.
        inferred: whether the candidates were inferred from the weights' shapes, which do not
            determine the patch size of encoded heads.
        seed: seed of the training run, if there is one.
        config: config of that run.
    """

    path: Path
    arrays: dict[str, Any]
    candidates: tuple[Architecture, ...]
    info: ModelInfo
    inferred: bool = False
    seed: int | None = None
    config: dict[str, Any] | None = None

    @property
    def architecture(self) -> Architecture:
        """The only candidate; raises if there are several."""
        only_fields([fields_of(candidate) for candidate in self.candidates], self.path)
        return self.candidates[0]

    @property
    def model(self) -> "Descriptor":
        """The linen module of the only candidate; imports JAX, like `variables`."""
        from kjax.model.descriptor import as_module

        return as_module(self.architecture)

    @functools.cached_property
    def variables(self) -> dict[str, Any]:
        """The variables as JAX arrays."""
        return jax.device_put(self.arrays, may_alias=False)

    @property
    def extent(self) -> float:
        """Patch side divided by OpenCV's KeyPoint.size."""
        return WHOLE_EXTENT if self.info.extent is None else self.info.extent

    @property
    def ratio(self) -> float:
        """Default maximum distance ratio of matches."""
        return shipped.DEFAULT_RATIO if self.info.ratio is None else self.info.ratio

    @property
    def nested(self) -> tuple[int, ...]:
        """Numbers of leading entries that are descriptors themselves."""
        return self.info.nested


def load_source(name: str, *, seed: int | None = None, dimension: int | None = None) -> LoadedModel:
    """Load the model that a name stands for.

    Args:
        name: see the top of this file.
        seed: seed of a run that was trained with several.
        dimension: descriptor size; smaller ones need weights that were trained for it.
    """
    found = load_sources(name)
    if dimension is not None:
        found = [shortened(one, dimension) for one in found]
    seeds = [one.seed for one in found]
    if seed is None and len(found) == 1:
        return found[0]
    if seed is not None and seed in seeds:
        return found[seeds.index(seed)]
    if seeds == [None]:
        raise InputError(f"{name} is one set of weights: only workdirs have seeds to choose from")
    known = ", ".join(map(str, seeds))
    if seed is None:
        raise InputError(f"{name} has the seeds {known}: choose one with --seed")
    raise InputError(f"{name} has no seed {seed}: choose from {known}")


def load_sources(name: str) -> list[LoadedModel]:
    """Load the models that a name stands for, one for each seed of a run."""
    stem, _, text = name.partition(":")
    found, path = shipped.find(stem), Path(stem)
    if holds_weights(name):
        return [_load_with_info(Path(name) / WEIGHTS_FILE, _folder_info(Path(name)), {})]
    if Path(name).is_dir() and (found is None or is_workdir(name)):
        return load_run(name)
    if found is not None:
        if text:
            raise InputError(f"{stem} ships with its own model: leave out ':{text}'")
        return [load_shipped(found)]
    if path.suffix not in SUFFIXES:
        no_file = f"{name} is not a workdir or a weights file ({', '.join(SUFFIXES)})"
        raise InputError(
            f"{no_file}; {unknown_name('pretrained model', name, shipped.list_weights())}"
        )
    named = parse_fields(text) if text else {}
    if info := read_metadata(path):
        return [_load_with_info(path, info, named)]
    if named:
        try:
            widths = infer_widths(plain_arrays(load_state_dict(path)))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        model = model_of(widths | named)
        info = ModelInfo(model=fields_of(model))
        return [LoadedModel(path, load_variables(path, model, on_host=True), (model,), info)]
    variables = load_variables(path, on_host=True)
    return [LoadedModel(path, variables, possible_models(variables), ModelInfo(), inferred=True)]


def load_shipped(name: str) -> LoadedModel:
    """Load shipped weights, ignoring the current folder."""
    info = shipped.card(name)
    path, model = shipped.weights_file(info), model_of(info.model)
    return LoadedModel(path, load_variables(path, model, on_host=True), (model,), info)


def load_run(workdir: str | Path) -> list[LoadedModel]:
    """Load the models of a training run, one per seed: final, or of the latest checkpoint.

    The folder is only read, so the run may still be active.
    """
    # Here, because they bring JAX and orbax, which weights files do not need.
    from kjax.runs.checkpoint import read_latest, saved_steps
    from kjax.runs.config import validate
    from kjax.runs.workdir import CHECKPOINTS_FOLDER, stored_config, weights_files

    workdir = Path(workdir)
    config = stored_config(workdir)
    try:
        run = validate(config)
    except InputError as error:
        raise InputError(f"{workdir} is not a run of this version of kjax: {error}") from None
    model, seeds, several = run.model.build(), run.all_seeds, len(run.all_seeds) > 1
    files = weights_files(workdir, seeds)
    steps = f"{run.train.total_steps:,}"
    if all(path.exists() for path in files):
        by_seed = [load_variables(path, model, on_host=True) for path in files]
    else:
        patches = np.zeros((1, *model.patch_shape), np.float32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), patches)
        like = {name: shapes[name] for name in ("params", "batch_stats")}
        if several:
            like = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((len(seeds), *leaf.shape), leaf.dtype), like
            )
        saved = read_latest(workdir / CHECKPOINTS_FOLDER, like)
        if saved is None:
            raise InputError(f"the run in {workdir} has saved nothing yet: try again later")
        by_seed = [
            jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i] if several else leaf), saved)
            for i in range(len(seeds))
        ]
        steps = f"{max(saved_steps(workdir / CHECKPOINTS_FOLDER)):,} of {steps}"
    for variables in by_seed:
        check_finite(variables)
    info = run_info(config)
    rates = _false_positive_rates(workdir)
    remarks = {
        "trained on": ", ".join(info.train_sets),
        **({"started from": run.init} if run.init else {}),
        "precision": run.model.dtype,
        "steps": steps,
        "seed": "",
        **({"FPR@95": rates} if rates else {}),
    }
    found = []
    for seed, variables in zip(seeds, by_seed, strict=True):
        remarks["seed"] = str(seed)
        own = dataclasses.replace(info, model=fields_of(model), remarks=dict(remarks))
        found.append(LoadedModel(workdir, variables, (model,), own, seed=seed, config=config))
    return found


def shortened(source: LoadedModel, dimension: int) -> LoadedModel:
    """Return the model whose descriptors are the first entries, normalised."""
    whole = source.candidates[0].dimension
    if dimension == whole:
        return source
    if dimension not in source.nested:
        known = " and ".join(map(str, (*source.nested, whole)))
        raise InputError(
            f"{source.info.name or source.path} has descriptors of {known} numbers, not "
            f"{dimension}: train with config.loss.nested for others"
        )
    model, arrays = shorten(source.architecture, source.arrays, dimension)
    nested = tuple(width for width in source.nested if width < dimension)
    info = dataclasses.replace(source.info, model=fields_of(model), nested=nested)
    return dataclasses.replace(source, candidates=(model,), arrays=arrays, info=info)


def facts(sources: Sequence[LoadedModel]) -> dict[str, str]:
    """Return what is known about a model, as labels and short texts.

    Args:
        sources: one, or one per seed of a run.
    """
    source, model = sources[0], sources[0].candidates[0]
    texts = {"name": source.info.name} if source.info.name else {}
    texts["head"] = " or ".join(candidate.head for candidate in source.candidates)
    if model.head in ENCODED_HEADS:
        texts["s"] = str(model.position_kernel.s)
    any_size = source.inferred and model.head != "hardnet"
    texts["patch size"] = "any multiple of 4 (default: 32)" if any_size else str(model.patch_size)
    if model.channels != CHANNELS:
        texts["channels"] = ", ".join(map(str, model.channels))
    shorter = " or ".join(map(str, source.nested))
    texts["dimension"] = f"{model.dimension}{f', or the first {shorter}' if shorter else ''}"
    if model.has_context:
        widths = " and ".join(f"{width:g}" for width in model.context)
        texts["context"] = f"concentric patches, {widths} times as wide"
    arrays = {PATHS[name]: a for name, a in to_arrays(source.arrays).items() if name in PATHS}
    learned = sum(array.size for path, array in arrays.items() if path[0] == "params")
    size = sum(array.nbytes for array in arrays.values()) / 1e6
    texts["parameters"] = f"{learned:,}, {size:.1f} MB as {next(iter(arrays.values())).dtype}"
    texts |= source.info.facts()
    if len(sources) > 1:
        texts["seed"] = ", ".join(str(one.seed) for one in sources)
    return texts


def refitted_info(
    source: LoadedModel, name: str, *, nested: tuple[int, ...], sets: Sequence[str]
) -> ModelInfo:
    """Return the info of refitted weights, without the name and scores of the original.

    Args:
        source: original weights.
        name: name that they were loaded by.
        nested: numbers of leading entries that are descriptors now.
        sets: datasets that they were refitted on.
    """
    remarks = {"refitted from": name, "refitted on": ", ".join(sets)}
    if source.info.train_sets:
        remarks["trained on"] = ", ".join(source.info.train_sets)
    return ModelInfo(
        model=fields_of(source.model),
        extent=source.info.extent,
        ratio=source.info.ratio,
        nested=nested,
        remarks=remarks,
    )


def weights_path(name: str) -> Path:
    """Return the weights file of a shipped name, or the path itself."""
    found = shipped.find(name)
    return Path(name) if found is None else shipped.weights_file(shipped.card(found))


def is_workdir(name: str) -> bool:
    """Whether a folder is a training run."""
    return (Path(name) / CONFIG_FILE).is_file()


def holds_weights(name: str) -> bool:
    """Whether a folder that is not a run holds weights and their metadata."""
    return (Path(name) / METADATA_FILE).is_file() and not is_workdir(name)


def model_of(fields: Mapping[str, Any]) -> Architecture:
    """Check the fields of a model; all errors are about input."""
    try:
        return Architecture.of(**fields)
    except InputError:
        raise
    except (ValueError, TypeError) as error:  # PositionKernel does not know InputError
        raise InputError(str(error)) from error


def possible_models(variables: Mapping[str, Any]) -> tuple[Architecture, ...]:
    """Return all models that variables fit, with the default patch size for encoded heads."""
    return tuple(Architecture.of(**fields) for fields in infer_fields(to_arrays(variables)))


def typical_extent(area: Sequence[float]) -> float:
    """Return the extent of a medium crop, whose share of the patch area is uniform in a range."""
    return round(WHOLE_EXTENT * math.sqrt(sum(area) / 2), 1)


def _load_with_info(path: Path, info: ModelInfo, named: Fields) -> LoadedModel:
    """Load a weights file whose metadata define the model."""
    try:
        model = model_of(merge_fields(info.model, named))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    try:
        arrays = load_variables(path, model, on_host=True)
    except InputError as error:
        raise InputError(f"{error} (its metadata says {display_name(model)})") from None
    return LoadedModel(path, arrays, (model,), dataclasses.replace(info, model=fields_of(model)))


def _folder_info(folder: Path) -> ModelInfo:
    path = folder / METADATA_FILE
    try:
        info = parse_metadata(parse_json(path.read_bytes()))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except ValueError:
        info = None
    if info is None:
        raise InputError(f"{path} is damaged: make the weights again")
    return info


def run_info(config: Mapping[str, Any]) -> ModelInfo:
    """Return extent, ratio and training sets of a run.

    A run that continues from other weights inherits their extent and ratio.
    """
    from kjax.runs.workdir import stored_config

    init, start = config.get("init", ""), ModelInfo()
    if init and is_workdir(init):
        start = run_info(stored_config(Path(init)))
    elif init and holds_weights(init):
        start = _folder_info(Path(init))
    elif init and shipped.find(init) is not None:
        start = shipped.card(init)
    data, extent = config["data"], start.extent
    if data.get("photos"):
        extent = data["extent"]
    sets = (Path(folder).name for folder in (*data["train"], data.get("photos")) if folder)
    return ModelInfo(
        extent=typical_extent(config["augment"]["area"]) if extent is None else extent,
        ratio=start.ratio,
        nested=tuple(sorted(config["loss"].get("nested", ()))),
        train_sets=tuple(dict.fromkeys([*start.train_sets, *sets])),
    )


def _false_positive_rates(workdir: Path) -> str:
    """Return a run's final FPR@95 by test set; empty if there is none yet."""
    from kjax.runs.workdir import RESULTS_FILE

    path = workdir / RESULTS_FILE
    if not path.exists():
        return ""
    try:
        scores = parse_json(path.read_bytes())
        rates = []
        for name in scores:
            if name.startswith("fpr95/") and not name.endswith("_std"):
                spread = scores.get(f"{name}_std")
                spread = "" if spread is None else f" ± {100 * spread:.2f}"
                rates.append(f"{name.removeprefix('fpr95/')} {100 * scores[name]:.2f}{spread} %")
        return ", ".join(rates)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return f"unknown ({RESULTS_FILE} is damaged)"
