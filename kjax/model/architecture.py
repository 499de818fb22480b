"""The fields of a descriptor and their limits, without importing JAX."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np

from kjax.errors import InputError, unknown_name
from kjax.model import CHANNELS, DIMENSION, HEADS, TRUNK_STRIDE
from kjax.model.position_encoding import CoordinateSystem, PositionKernel

SYSTEMS: dict[str, tuple[CoordinateSystem, ...]] = {
    "xy": ("xy",),
    "polar": ("polar",),
    "combined": ("xy", "polar"),
    "combined_star": ("xy", "polar"),
}
"""Coordinate systems of the encoded heads, in the order of the head's input."""
LARGEST_S, LARGEST_PATCH, LARGEST_WIDTH = 16, 512, 1024
"""Maximum arguments of `kjax.build`, ten times the usual ones."""
LARGEST_CONTEXT, MOST_PATCHES = 16, 4
"""Maximum width in `context`, and maximum number of widths."""

Model = TypeVar("Model", bound="Architecture")


@dataclasses.dataclass
class Architecture:
    """Fields of a `Descriptor`, the linen module that inherits them; see `kjax.build`."""

    head: str
    patch_size: int = 32
    position_kernel: PositionKernel = dataclasses.field(default_factory=PositionKernel)
    dropout: float = 0.3
    head_bias: bool = True
    dtype: Any = np.float32
    axis_name: str | None = None
    channels: tuple[int, ...] = CHANNELS
    dimension: int = DIMENSION
    folded: bool = False
    context: tuple[float, ...] = (1.0,)

    @classmethod
    def of(
        cls: type[Model],
        head: str = "combined_star",
        *,
        s: int = 2,
        dtype: Any = "float32",
        channels: Sequence[int] = CHANNELS,
        context: Sequence[int | float] = (1,),
        **more: Any,
    ) -> Model:
        """Check the arguments of `kjax.build`; the result is of this class."""
        if head not in HEADS:
            raise unknown_name("head", head, HEADS)
        kind = str(getattr(dtype, "__name__", dtype))
        if kind not in ("float32", "bfloat16", "float64"):
            raise InputError(f"dtype must be 'float32', 'bfloat16' or 'float64', not {dtype!r}")
        own = {field.name for field in dataclasses.fields(Architecture)}
        given = {name: more.pop(name) for name in own & more.keys()}
        channels, context = tuple(channels), tuple(map(float, context))
        size = given.get("patch_size", cls.patch_size)
        check_patch_size(size)
        if s > LARGEST_S or size > LARGEST_PATCH:
            raise InputError(
                f"s={s} and patches of {size}×{size} pixels would fill the memory: choose "
                f"s up to {LARGEST_S} and patches up to {LARGEST_PATCH}"
            )
        if not 0 <= (dropout := given.get("dropout", cls.dropout)) < 1:
            raise InputError(f"dropout must be at least 0 and below 1, not {dropout}")
        inside = all(1 <= width <= LARGEST_WIDTH for width in channels)
        if len(channels) != len(CHANNELS) or not inside:
            raise InputError(
                f"channels must be {len(CHANNELS)} numbers from 1 to {LARGEST_WIDTH}, such as "
                f"{CHANNELS}, not {channels}"
            )
        if not 1 <= (dimension := given.get("dimension", cls.dimension)) <= LARGEST_WIDTH:
            raise InputError(f"dimension must be from 1 to {LARGEST_WIDTH}, not {dimension}")
        if head in ("sum", "cat") and dimension != DIMENSION:
            raise InputError(f"the head {head!r} has no projection: omit dimension={dimension}")
        inside = len(context) <= MOST_PATCHES and max(context, default=0) <= LARGEST_CONTEXT
        increasing = all(low < high for low, high in itertools.pairwise((*context, math.inf)))
        if context[:1] != (1,) or not (inside and increasing):
            raise InputError(
                f"context must be 1, or up to {MOST_PATCHES} increasing widths from 1 to "
                f"{LARGEST_CONTEXT}, such as (1, 4), not {context}"
            )
        if head in ("sum", "cat") and len(context) > 1:
            raise InputError(f"the head {head!r} has no projection: omit context={context}")
        given |= {"position_kernel": PositionKernel(s=s, **more), "dtype": np.dtype(kind)}
        return cls(head=head, channels=channels, context=context, **given)

    @property
    def has_context(self) -> bool:
        """Whether a point has several patches."""
        return len(self.context) > 1

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """Shape of a point's patches: `(N, N)`, or `(C, N, N)` with context."""
        sides = (self.patch_size, self.patch_size)
        return (len(self.context), *sides) if self.has_context else sides

    @property
    def descriptor_size(self) -> int:
        """`dimension`, or the size of the maps of `sum` and `cat`, which have no projection."""
        positions = {"sum": 1, "cat": (self.patch_size // TRUNK_STRIDE) ** 2}.get(self.head)
        return self.dimension if positions is None else self.channels[-1] * positions

    def clone(self: Model, **changes: Any) -> Model:
        """Return a copy with other fields."""
        return dataclasses.replace(self, **changes)


def check_patch_size(size: int) -> None:
    """Raise if the network does not take patches of this size."""
    if size < 2 * TRUNK_STRIDE or size % TRUNK_STRIDE:
        raise InputError(f"the patch size must be a multiple of 4 and at least 8, not {size}")
