"""Which model do these weights belong to?

Weights name their layers, not their head: `xy` and `polar` have the same arrays, `sum` and `cat`
too. Where several heads fit, somebody has to say which: "polar,s=1", as in weights.npz:polar,s=1.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kjax.architecture import TRUNK_CHANNELS, TRUNK_STRIDE, Descriptor, build
from kjax.errors import InputError

ENCODED_HEADS = ("xy", "polar", "combined", "combined_star")
"""Heads with a number of frequencies s."""


def named_model(fields: str) -> Descriptor:
    """The model that "head,s=1,patch_size=64" describes.

    Args:
        fields: the head, then any of `s` and `patch_size`; the rest is as `kjax.build` has it.
    """
    head, *settings = fields.split(",")
    options: dict[str, Any] = {}
    for setting in settings:
        name, found, value = setting.partition("=")
        if name not in ("s", "patch_size") or not found or not value.isdecimal():
            raise InputError(
                f"{setting!r} after a weights file: give the head, then s=… and patch_size=…, "
                "as in weights.npz:polar,s=1"
            )
        options[name] = int(value)
    try:
        return build(head, **options)
    except InputError:
        raise
    except ValueError as error:  # PositionKernel is mathematics and knows no InputError
        raise InputError(str(error)) from error


def possible_models(variables: Mapping[str, Any]) -> list[Descriptor]:
    """All models that variables fit, by their layers and shapes.

    Encoded heads take patches of any size, and their weights do not tell which: it is left at the
    default of `kjax.build`.
    """
    params = variables["params"]
    if "head" not in params:
        return [build("sum"), build("cat")]
    shape = params["head"]["kernel"].shape
    if len(shape) == 4:
        return [build("hardnet", patch_size=TRUNK_STRIDE * shape[0])]
    # K = m·128·(2s+1)² tells m from s: a square of an odd number is never twice another.
    by_channel = shape[0] // TRUNK_CHANNELS
    systems = 1 if by_channel % 2 else 2
    s = round((by_channel / systems) ** 0.5) // 2
    if systems == 1:
        heads = ["xy", "polar"]
    else:
        heads = ["combined_star" if "trunk_polar" in params else "combined"]
    bias = "bias" in params["head"]
    return [build(head, s=s, head_bias=bias) for head in heads]


def display_name(model: Descriptor) -> str:
    """E.g. "combined_star s=2", or "hardnet N=64"."""
    parts = [model.head]
    if model.head in ENCODED_HEADS:
        parts.append(f"s={model.position_kernel.s}")
    if model.patch_size != 32:
        parts.append(f"N={model.patch_size}")
    return " ".join(parts)


def only_model(candidates: Sequence[Descriptor], path: Path | None = None) -> Descriptor:
    """The one candidate; `path` is for the message if there are several."""
    if len(candidates) == 1:
        return candidates[0]
    heads = " and ".join(candidate.head for candidate in candidates)
    example = candidates[0].head
    if example in ENCODED_HEADS:
        example += f",s={candidates[0].position_kernel.s}"
    raise InputError(
        f"{path or 'this set of weights'} fits several heads, {heads}: say which, as in "
        f"{path.name if path else 'weights.npz'}:{example}"
    )
