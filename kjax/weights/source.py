"""Weights by one word, with the head and its fields behind a colon where they are needed.

    out/first                     a training run, whose config tells all
    tuned                         a folder of weights.npz and weights.json, which tells all
    hardnet.pth                   weights that fit one head only
    weights.npz:polar,s=1         weights that fit several
    weights.safetensors           weights that kjax wrote, with metadata that tell all
    hardnet, or kjax-hardnet      weights that ship with kjax: `kjax.weights.shipped.list_weights()`

A workdir that has the name of shipped weights wins over them. What people are told about a source
is in `kjax.weights.facts`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kjax.errors import InputError, unknown_name
from kjax.files.json_text import parse_json
from kjax.model.descriptor import Descriptor
from kjax.model.nesting import shorten
from kjax.weights import shipped as pretrained
from kjax.weights.cards import DEFAULT_RATIO
from kjax.weights.fields import merge_fields, parse_fields
from kjax.weights.files import SUFFIXES, load_variables, read_metadata, read_widths
from kjax.weights.identify import display_name, model_of, only_model, possible_models
from kjax.weights.metadata import Metadata, parse_metadata

WEIGHTS_FILE, METADATA_FILE = "weights.npz", "weights.json"
WHOLE_EXTENT = 12.0
"""Side of PhotoTourism's patches over KeyPoint.size, which of SIFT is 2σ."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Weights with the models that they can be for.

    Attributes:
        path: the weights file, or the workdir.
        variables: of the model, not folded.
        candidates: one, unless a bare weights file fits several.
        announced: whether the weights alone told the candidates: they do not tell the patch size of
            encoded heads.
        seed: of the training run, if there was one.
        config: of that run.
        card: of weights that ship with kjax.
        metadata: of a file that kjax wrote with them.
    """

    path: Path
    variables: dict[str, Any]
    candidates: tuple[Descriptor, ...]
    announced: bool = False
    seed: int | None = None
    config: dict[str, Any] | None = None
    card: pretrained.Card | None = None
    metadata: Metadata | None = None

    @property
    def extent(self) -> float:
        """Side of the patches that suit the weights, over OpenCV's KeyPoint.size.

        A training shows crops of patches that cover 24σ; the size of a middling crop is best. One
        that went on from shipped weights keeps theirs.
        """
        return WHOLE_EXTENT if self.known_extent is None else self.known_extent

    @property
    def known_extent(self) -> float | None:
        """The extent that suits the weights; None if nothing is known of their training."""
        if self.card is not None:
            return self.card.extent
        if self.config is not None:
            start = _known_start(self.config)
            own = typical_extent(self.config["augment"]["area"])
            return own if start is None or start.extent is None else start.extent
        return self.metadata.extent if self.metadata else None

    @property
    def ratio(self) -> float:
        """Of a match, the largest that suits the weights."""
        return DEFAULT_RATIO if self.known_ratio is None else self.known_ratio

    @property
    def known_ratio(self) -> float | None:
        """The ratio that suits the weights; None if it was not looked for."""
        if self.card is not None:
            return self.card.ratio
        if self.config is not None:
            start = _known_start(self.config)
            return None if start is None else start.ratio
        return self.metadata.ratio if self.metadata else None

    @property
    def nested(self) -> tuple[int, ...]:
        """Numbers of first entries that are descriptors themselves, if the training saw to it."""
        if self.card is not None:
            told = self.card.nested
        elif self.config is not None:
            told = tuple(self.config["loss"].get("nested", ()))
        else:
            told = self.metadata.nested if self.metadata else ()
        return tuple(sorted(width for width in told if width < self.candidates[0].dimension))

    @property
    def train_sets(self) -> tuple[str, ...]:
        """Names of the sets that the weights have seen, as far as that is known."""
        if self.card is not None:
            return tuple(self.card.data_names)
        return _sets_of_run(self.config) if self.config is not None else ()

    @property
    def name(self) -> str | None:
        """The name of weights that shipped with kjax, also in a file written from them."""
        if self.card is not None:
            return self.card.name
        return self.metadata.remarks.get("name") if self.metadata else None

    @property
    def model(self) -> Descriptor:
        """The model, if there is but one candidate."""
        return only_model(self.candidates, self.path)


def typical_extent(area: Sequence[float]) -> float:
    """The extent of a middling crop, whose share of the patch's area is uniform in a range."""
    return round(WHOLE_EXTENT * math.sqrt(sum(area) / 2), 1)


def load_source(word: str, *, seed: int | None = None, dimension: int | None = None) -> Source:
    """The weights that a word of the command line stands for.

    Args:
        word: see the top of this file.
        seed: which of several a run was trained with.
        dimension: numbers in a descriptor, if fewer than the weights give: see `shortened`.
    """
    sources = load_sources(word)
    if dimension is not None:
        sources = [shortened(source, dimension) for source in sources]
    seeds = [source.seed for source in sources]
    if seed is None and len(sources) == 1:
        return sources[0]
    if seed is not None and seed in seeds:
        return sources[seeds.index(seed)]
    if seeds == [None]:
        raise InputError(f"{word} is one set of weights: only workdirs have seeds to choose from")
    known = ", ".join(map(str, seeds))
    if seed is None:
        raise InputError(f"{word} has the seeds {known}: choose one with --seed")
    raise InputError(f"{word} has no seed {seed}: choose from {known}")


def load_sources(word: str) -> list[Source]:
    """The weights that a word stands for, one source for each seed of a run."""
    name, _, fields = word.partition(":")
    shipped = pretrained.find(name)
    if holds_weights(word):
        told = _metadata_of_folder(Path(word))
        return [_of_told_model(Path(word) / WEIGHTS_FILE, told, {})]
    if Path(word).is_dir() and (shipped is None or is_workdir(word)):
        return _of_run(Path(word))
    if shipped is not None:
        if fields:
            raise InputError(f"{name} ships with all that is known of it: leave out ':{fields}'")
        return [load_shipped(shipped)]
    path = Path(name)
    if path.suffix not in SUFFIXES:
        raise _unknown_source(word)
    if fields or read_metadata(path):
        return [_of_known_model(path, fields)]
    variables = load_variables(path)
    return [Source(path, variables, tuple(possible_models(variables)), announced=True)]


def shortened(source: Source, dimension: int) -> Source:
    """The source whose descriptors are the first entries, normalised.

    Raises:
        InputError: the weights were not trained for that.
    """
    whole = source.candidates[0].dimension
    if dimension == whole:
        return source
    if dimension not in source.nested:
        known = " and ".join(map(str, (*source.nested, whole)))
        raise InputError(
            f"{source.name or source.path} has no descriptors of {dimension} numbers, but of "
            f"{known}: shorter ones come from a training with config.loss.nested"
        )
    model, variables = shorten(source.model, source.variables, dimension)
    return dataclasses.replace(source, candidates=(model,), variables=variables)


def _of_known_model(path: Path, fields: str) -> Source:
    """A weights file of which we are told the model, by its metadata or by the user."""
    named = parse_fields(fields) if fields else {}
    metadata = read_metadata(path)
    if metadata is None:
        model = model_of(read_widths(path) | named)
        return Source(path, load_variables(path, model), (model,))
    return _of_told_model(path, metadata, named)


def _of_told_model(path: Path, metadata: Metadata, named: dict[str, Any]) -> Source:
    try:
        model = model_of(merge_fields(metadata.fields, named))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    try:
        variables = load_variables(path, model)
    except InputError as error:
        raise InputError(f"{error} (its metadata says {display_name(model)})") from None
    return Source(path, variables, (model,), metadata=metadata)


def load_shipped(name: str) -> Source:
    """Weights that ship with kjax, whatever lies in the current folder.

    Args:
        name: one of `kjax.weights.shipped.list_weights()`.
    """
    card = pretrained.card(name)
    path, model = pretrained.weights_file(card), card.build()
    return Source(path, load_variables(path, model), (model,), card=card)


def weights_path(word: str) -> Path:
    """The weights file that a word stands for: a path, or the file of a shipped name."""
    name = pretrained.find(word)
    return Path(word) if name is None else pretrained.weights_file(pretrained.card(name))


def is_workdir(word: str) -> bool:
    """Whether a folder is that of a training run."""
    from kjax.runs.workdir import CONFIG_FILE

    return (Path(word) / CONFIG_FILE).is_file()


def holds_weights(word: str) -> bool:
    """Whether a folder that is no run has weights, and a file that tells their model."""
    return (Path(word) / METADATA_FILE).is_file() and not is_workdir(word)


def _metadata_of_folder(folder: Path) -> Metadata:
    path = folder / METADATA_FILE
    try:
        told = parse_metadata(parse_json(path.read_bytes()))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, TypeError, AttributeError):
        told = None
    if told is None:
        raise InputError(f"{path} is damaged: make the weights again")
    return told


def _known_start(config: Mapping[str, Any]) -> pretrained.Card | Metadata | None:
    """What tells of the weights that a run went on from, maybe by way of other runs."""
    from kjax.runs.workdir import stored_config

    init = config.get("init", "")
    if init and is_workdir(init):
        return _known_start(stored_config(Path(init)))
    if init and holds_weights(init):
        return _metadata_of_folder(Path(init))
    shipped = pretrained.find(init) if init else None
    return None if shipped is None else pretrained.card(shipped)


def _sets_of_run(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The sets of a run, after those of the weights that it started from."""
    from kjax.runs.workdir import stored_config

    before: Sequence[str] = ()
    if (init := config.get("init", "")) and is_workdir(init):
        before = _sets_of_run(stored_config(Path(init)))
    elif init and (shipped := pretrained.find(init)) is not None:
        before = pretrained.card(shipped).data_names
    own = (Path(folder).name for folder in config["data"]["train"])
    return tuple(dict.fromkeys([*before, *own]))


def _unknown_source(word: str) -> InputError:
    no_file = f"{word} is no workdir or weights file ({', '.join(SUFFIXES)})"
    if not (known := pretrained.list_weights()):
        return InputError(f"{no_file}, and no weights ship with this version of kjax")
    return InputError(f"{no_file}; {unknown_name('pretrained model', word, known)}")


def _of_run(workdir: Path) -> list[Source]:
    # Here, because it brings orbax, which weights files can do without.
    from kjax.weights.load_run import load_run

    return [
        Source(workdir, one.variables, (one.model,), seed=one.seed, config=one.config)
        for one in load_run(workdir)
    ]
