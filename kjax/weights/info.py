"""Facts about a model: from a shipped card, a training run, or a weights file's metadata.

Weights name their layers, not their head: `xy` and `polar` have the same arrays, and so do `sum`
and `cat`. If weights fit several heads, the user names one, as in weights.npz:polar,s=1, or the
file's metadata do. The metadata's entry `kjax`, the version that wrote the file, marks ours.
Nothing here imports JAX.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kjax.errors import InputError, unknown_name
from kjax.model import CHANNELS, DIMENSION, ENCODED_HEADS, HEADS
from kjax.version import __version__
from kjax.weights.ledger import PhotoGroup, permitted_use

if TYPE_CHECKING:
    from kjax.model.architecture import Architecture

Fields = dict[str, Any]
"""Arguments of `kjax.build`: head, s, patch_size, …"""
MARK = "kjax"
"""Metadata entry that identifies files written by kjax."""
LAYOUT = {"format": "pt"}
"""Metadata entry that tells other libraries that names and layout are PyTorch's."""


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """Facts about a model and its weights.

    Attributes:
        model: arguments of `kjax.build`; empty if only the weights' shapes are known.
        name: shipped name, also in files written from shipped weights.
        extent: patch side divided by OpenCV's KeyPoint.size, if known.
        ratio: default maximum distance ratio of matches, if known.
        nested: numbers of leading entries that are descriptors themselves.
        train_sets: names of the training sets, if known.
        remarks: further facts by label, for people.
        summary: one line on what shipped weights are good for.
        photographs: training photographs of shipped weights.
        sha256: SHA-256 of a shipped weights file.
    """

    model: Fields = dataclasses.field(default_factory=dict)
    name: str = ""
    extent: float | None = None
    ratio: float | None = None
    nested: tuple[int, ...] = ()
    train_sets: tuple[str, ...] = ()
    remarks: dict[str, str] = dataclasses.field(default_factory=dict)
    summary: str = ""
    photographs: tuple[PhotoGroup, ...] = ()
    sha256: str = ""

    @property
    def use(self) -> str:
        """Permitted use of shipped weights, in one line."""
        return permitted_use(self.photographs)

    def facts(self) -> dict[str, str]:
        """Return what is known beyond the model itself, as labels and short texts."""
        facts = {}
        if self.extent is not None:
            facts["extent"] = f"patches of {self.extent:g} × KeyPoint.size"
        if self.ratio is not None:
            facts["ratio"] = f"matches up to {self.ratio:g}"
        return facts | self.remarks


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The model that computed descriptors; a learned matcher works with no others.

    Attributes:
        name: name for people.
        sha256: hash of kjax weights; empty for other programs' descriptors.
        dimension: descriptor size.
    """

    name: str
    sha256: str
    dimension: int


def fields_of(model: "Architecture") -> Fields:
    """Return the arguments of `kjax.build` that define a trained model."""
    fields = {"head": model.head, "patch_size": model.patch_size}
    if model.head in ENCODED_HEADS:
        fields |= {"head_bias": model.head_bias, **dataclasses.asdict(model.position_kernel)}
    sizes = {"channels": model.channels, "dimension": model.dimension}
    return fields | sizes | {"context": model.context}


def display_name(model: "Architecture") -> str:
    """Return a model's name for people, e.g. "combined_star s=2" or "hardnet N=64"."""
    parts = [model.head]
    if model.head in ENCODED_HEADS:
        parts.append(f"s={model.position_kernel.s}")
    if model.patch_size != 32:
        parts.append(f"N={model.patch_size}")
    if model.channels != CHANNELS:
        parts.append(f"c={'-'.join(map(str, model.channels))}")
    if model.dimension != DIMENSION:
        parts.append(f"D={model.dimension}")
    if model.has_context:
        parts.append(f"context={','.join(f'{width:g}' for width in model.context)}")
    return " ".join(parts)


def parse_fields(text: str) -> Fields:
    """Parse "head,s=1,patch_size=64"."""
    head, *settings = text.split(",")
    fields: Fields = {"head": head}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in ("s", "patch_size") or not equals or not value.isdecimal():
            raise InputError(
                f"{setting!r} after a weights file: give the head, then s=… and patch_size=…, "
                "as in weights.npz:polar,s=1"
            )
        fields[name] = int(value)
    return fields


def merge_fields(stored: Mapping[str, Any], named: Mapping[str, Any]) -> Fields:
    """Merge a file's own fields with those the user named; only the patch size may differ."""
    for field in ("head", "s"):
        if field in stored and field in named and stored[field] != named[field]:
            raise InputError(
                f"the file's metadata has {field} {stored[field]}, not {named[field]}: "
                "leave out what follows its name"
            )
    return {**stored, **named}


def only_fields(candidates: Sequence[Mapping[str, Any]], path: Path) -> Fields:
    """Return the only candidate; raise if weights fit several models."""
    if len(candidates) == 1:
        return dict(candidates[0])
    heads = " and ".join(candidate["head"] for candidate in candidates)
    example = candidates[0]["head"]
    if example in ENCODED_HEADS:
        example += f",s={candidates[0]['s']}"
    raise InputError(f"{path} fits several heads, {heads}: name one, as in {path.name}:{example}")


def _parse_float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def _parse_widths(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.strip("()[]").rstrip(",").split(","))


MODEL_PARSERS: dict[str, Callable[[str], Any]] = {
    "head": str,
    "s": int,
    "patch_size": int,
    "head_bias": {"True": True, "False": False}.__getitem__,
    "kappa_xy": _parse_float,
    "kappa_rho": _parse_float,
    "kappa_theta": _parse_float,
    "scale_xy": _parse_float,
    "scale_rho": _parse_float,
    "scale_theta": _parse_float,
    "corner_radius": _parse_float,
    "channels": _parse_widths,
    "dimension": int,
    "context": lambda text: tuple(map(_parse_float, text.strip("()[]").rstrip(",").split(","))),
}
"""Parsers of the model's fields in metadata."""
PARSERS = MODEL_PARSERS | {"extent": _parse_float, "ratio": _parse_float, "nested": _parse_widths}


def make_metadata(info: ModelInfo) -> dict[str, str]:
    """Return the metadata of a weights file; empty if the model is not known for sure."""
    if not info.model:
        return {}
    values = {name: info.model.get(name) for name in MODEL_PARSERS}
    values |= {"extent": info.extent, "ratio": info.ratio, "nested": info.nested or None}
    remarks = {"name": info.name or None} | info.remarks
    return {
        **LAYOUT,
        MARK: __version__,
        **{label: text for label, text in remarks.items() if text is not None},
        **{name: str(value) for name, value in values.items() if value is not None},
    }


def parse_metadata(texts: Any) -> ModelInfo | None:
    """Parse a file's metadata, texts by name; return None if kjax did not write them."""
    if not isinstance(texts, Mapping) or not texts.keys() >= {MARK, "head"}:
        return None
    if not all(isinstance(text, str) for item in texts.items() for text in item):
        return None
    values: dict[str, Any] = {}
    for name, parse in PARSERS.items():
        if name in texts:
            try:
                values[name] = parse(texts[name])
            except (ValueError, KeyError):
                raise InputError(
                    f"{name} in the file's metadata is {texts[name][:40]!r}: it is damaged"
                ) from None
    if values["head"] not in HEADS:
        raise unknown_name("head", values["head"][:40], HEADS)
    for name, limit in (("extent", math.inf), ("ratio", 1)):
        if not 0 < values.get(name, 1) <= limit:
            raise InputError(f"{name} in the file's metadata is {values[name]:g}: it is damaged")
    labels = sorted(texts.keys() - {*PARSERS, *LAYOUT, MARK, "name"})  # files keep no order
    remarks = {label: " ".join(texts[label].split()) for label in labels}
    return ModelInfo(
        model={name: values[name] for name in MODEL_PARSERS if name in values},
        name=" ".join(texts.get("name", "").split()),
        extent=values.get("extent"),
        ratio=values.get("ratio"),
        nested=values.get("nested", ()),
        remarks=remarks | {"written by": f"kjax {texts[MARK]}"},
    )
