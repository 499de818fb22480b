"""Which model do these weights belong to? `kjax.weights.fields` with the models themselves."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kjax.errors import InputError
from kjax.model.descriptor import Descriptor, build
from kjax.model.dimensions import CHANNELS, DIMENSION, ENCODED_HEADS
from kjax.weights.fields import Fields, fitting_fields, only_fields, parse_fields
from kjax.weights.torch_names import trunk_channels


def named_model(fields: str) -> Descriptor:
    """The model that "head,s=1,patch_size=64" describes.

    Args:
        fields: the head, then any of `s` and `patch_size`; the rest is as `kjax.build` has it.
    """
    return model_of(parse_fields(fields))


def model_of(fields: Mapping[str, Any]) -> Descriptor:
    """The model of some arguments of `kjax.build`; all errors are about input."""
    try:
        return build(**fields)
    except InputError:
        raise
    except ValueError as error:  # PositionKernel is mathematics and knows no InputError
        raise InputError(str(error)) from error


def fields_of(model: Descriptor) -> Fields:
    """The arguments of `kjax.build` that matter for a trained model."""
    fields: Fields = {"head": model.head, "patch_size": model.patch_size}
    if model.head in ENCODED_HEADS:
        fields |= {"head_bias": model.head_bias, **dataclasses.asdict(model.position_kernel)}
    # Only where they are not the paper's: older versions of kjax know no others.
    if model.channels != CHANNELS:
        fields["channels"] = model.channels
    if model.dimension != DIMENSION:
        fields["dimension"] = model.dimension
    return fields


def possible_models(variables: Mapping[str, Any]) -> list[Descriptor]:
    """All models that variables fit, by their layers and shapes.

    Encoded heads take patches of any size, and their weights do not tell which: it is left at the
    default of `kjax.build`.
    """
    params = variables["params"]
    head = params.get("head", {})
    shape: tuple[int, ...] = head["kernel"].shape if head else ()
    channels = trunk_channels(variables)
    candidates = fitting_fields(
        channels=channels,
        side=shape[0] if len(shape) == 4 else None,
        inputs=shape[0] if len(shape) == 2 else None,
        two_trunks="trunk_polar" in params,
    )
    bias = "bias" in head or len(shape) != 2
    dimension = shape[-1] if shape else DIMENSION
    return [
        build(**fields, head_bias=bias, channels=channels, dimension=dimension)
        for fields in candidates
    ]


def display_name(model: Descriptor) -> str:
    """The name for people, e.g. "combined_star s=2" or "hardnet N=64"."""
    parts = [model.head]
    if model.head in ENCODED_HEADS:
        parts.append(f"s={model.position_kernel.s}")
    if model.patch_size != 32:
        parts.append(f"N={model.patch_size}")
    if model.channels != CHANNELS:
        parts.append(f"c={'-'.join(map(str, model.channels))}")
    if model.dimension != DIMENSION:
        parts.append(f"D={model.dimension}")
    return " ".join(parts)


def only_model(candidates: Sequence[Descriptor], path: Path | None = None) -> Descriptor:
    """The one candidate; `path` is for the message if there are several."""
    only_fields([fields_of(candidate) for candidate in candidates], path)
    return candidates[0]
