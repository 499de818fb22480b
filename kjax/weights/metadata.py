"""What a weights file tells about its model besides the weights: texts by name.

`.safetensors` files have room for them. Those of kjax are the arguments of `kjax.build`, the
`extent`, the `ratio`, and remarks for people; `kjax`, the version that wrote them, tells that they
are ours.
Nothing here imports JAX.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from kjax.errors import InputError, unknown_name
from kjax.model.dimensions import HEADS
from kjax.version import __version__
from kjax.weights.fields import Fields

MARK = "kjax"
"""The entry by which files of kjax are known."""
LAYOUT = {"format": "pt"}
"""Other libraries look here whether names and layout are PyTorch's, which they are."""


def _switch(text: str) -> bool:
    return {"True": True, "False": False}[text]


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _widths(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.strip("()[]").rstrip(",").split(","))


READERS: dict[str, Callable[[str], Any]] = {
    "head": str,
    "s": int,
    "patch_size": int,
    "head_bias": _switch,
    "kappa_xy": _number,
    "kappa_rho": _number,
    "kappa_theta": _number,
    "scale_xy": _number,
    "scale_rho": _number,
    "scale_theta": _number,
    "corner_radius": _number,
    "channels": _widths,
    "dimension": int,
    "extent": _number,
    "ratio": _number,
    "nested": _widths,
}


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What a file of kjax tells.

    Attributes:
        fields: of the model.
        extent: side of the patches that suit the weights, over OpenCV's KeyPoint.size, if known.
        remarks: what else it tells, for people.
        nested: numbers of first entries that are descriptors themselves.
        ratio: the largest of a match that suits the weights, if known.
    """

    fields: Fields
    extent: float | None
    remarks: dict[str, str]
    nested: tuple[int, ...] = ()
    ratio: float | None = None


def make_metadata(
    fields: Mapping[str, Any],
    *,
    extent: float | None,
    remarks: Mapping[str, str],
    nested: tuple[int, ...] = (),
    ratio: float | None = None,
) -> dict[str, str]:
    """The texts for a file; `parse_metadata` gives all of it back."""
    known = {"extent": extent, "nested": nested or None, "ratio": ratio}
    values = dict(fields) | {name: value for name, value in known.items() if value is not None}
    return {
        **LAYOUT,
        MARK: __version__,
        **{name: text for name, text in remarks.items() if name not in READERS},
        **{name: str(value) for name, value in values.items()},
    }


def parse_metadata(texts: Mapping[str, str]) -> Metadata | None:
    """What the texts of a file say; None if kjax did not write them.

    Raises:
        InputError: a text is not what its name promises.
    """
    if MARK not in texts or "head" not in texts:
        return None
    values: dict[str, Any] = {}
    for name, read in READERS.items():
        if name in texts:
            try:
                values[name] = read(texts[name])
            except (ValueError, KeyError):
                raise InputError(
                    f"{name} in the file's metadata is {texts[name][:40]!r}: it is damaged"
                ) from None
    if values["head"] not in HEADS:
        raise unknown_name("head", values["head"][:40], HEADS)
    extent = values.pop("extent", None)
    if extent is not None and extent <= 0:
        raise InputError(f"extent in the file's metadata is {extent:g}: it must be positive")
    ratio = values.pop("ratio", None)
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(
            f"ratio in the file's metadata is {ratio:g}: it must be above 0 and at most 1"
        )
    ours = {*READERS, *LAYOUT, MARK}
    # Sorted, because files keep no order.
    remarks = {name: " ".join(texts[name].split()) for name in sorted(texts.keys() - ours)}
    remarks["written by"] = f"kjax {texts[MARK]}"
    return Metadata(values, extent, remarks, values.pop("nested", ()), ratio)
