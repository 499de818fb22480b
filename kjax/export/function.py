"""What a file that holds a function is made from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kjax.model.descriptor import Descriptor


class DescribingFunction(NamedTuple):
    """The function from patches [B,N,N] to descriptors.

    Attributes:
        folded: a model as `kjax.fold` gives it.
        weights: the same.
        dtype: of the patches.
        batch: B, if the function shall take no other.
        about: what the file shall tell of itself.
    """

    folded: Descriptor
    weights: Mapping[str, Any]
    dtype: str = "float32"
    batch: int | None = None
    about: Mapping[str, str] = {}
