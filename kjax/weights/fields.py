"""What a model is, in a few fields: head, s, patch size, …: the arguments of `kjax.build`.

Weights name their layers, not their head: `xy` and `polar` have the same arrays, `sum` and `cat`
too. Where several heads fit, somebody has to say which: "polar,s=1", as in weights.npz:polar,s=1,
or the metadata of a file. Nothing here imports JAX.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kjax.errors import InputError
from kjax.model.dimensions import CHANNELS, ENCODED_HEADS, TRUNK_STRIDE

Fields = dict[str, Any]


def parse_fields(text: str) -> Fields:
    """What "head,s=1,patch_size=64" says."""
    head, *settings = text.split(",")
    fields: Fields = {"head": head}
    for setting in settings:
        name, found, value = setting.partition("=")
        if name not in ("s", "patch_size") or not found or not value.isdecimal():
            raise InputError(
                f"{setting!r} after a weights file: give the head, then s=… and patch_size=…, "
                "as in weights.npz:polar,s=1"
            )
        fields[name] = int(value)
    return fields


def fitting_fields(
    *,
    side: int | None = None,
    inputs: int | None = None,
    two_trunks: bool = False,
    channels: Sequence[int] = CHANNELS,
) -> list[Fields]:
    """The fields of all models that weights fit.

    Encoded heads take patches of any size, and their weights do not tell which.

    Args:
        side: n of `hardnet`'s fully connected layer, None for the other heads.
        inputs: K of an encoded head, None for the other heads.
        two_trunks: whether there is a second trunk.
        channels: of the convolutions.
    """
    if side is not None:
        return [{"head": "hardnet", "patch_size": TRUNK_STRIDE * side}]
    if inputs is None:
        return [{"head": "sum"}, {"head": "cat"}]
    # K = m·c·(2s+1)² tells m from s: a square of an odd number is never twice another.
    by_channel = inputs // channels[-1]
    systems = 1 if by_channel % 2 else 2
    s = round((by_channel / systems) ** 0.5) // 2
    both = "combined_star" if two_trunks else "combined"
    heads = ["xy", "polar"] if systems == 1 else [both]
    return [{"head": head, "s": s} for head in heads]


def merge_fields(told: Mapping[str, Any], named: Mapping[str, Any]) -> Fields:
    """What a file's metadata tells and what is named behind it.

    Raises:
        InputError: they are different models. Only the size of the patches is for users to choose.
    """
    for field in ("head", "s"):
        if field in told and field in named and told[field] != named[field]:
            raise InputError(
                f"the file's metadata has {field} {told[field]}, not {named[field]}: "
                "leave out what follows its name"
            )
    return {**told, **named}


def only_fields(candidates: Sequence[Mapping[str, Any]], path: Path | None = None) -> Fields:
    """The one candidate; `path` is for the message if there are several."""
    if len(candidates) == 1:
        return dict(candidates[0])
    heads = " and ".join(candidate["head"] for candidate in candidates)
    example = candidates[0]["head"]
    if example in ENCODED_HEADS:
        example += f",s={candidates[0]['s']}"
    raise InputError(
        f"{path or 'this set of weights'} fits several heads, {heads}: say which, as in "
        f"{path.name if path else 'weights.npz'}:{example}"
    )
