"""A small model that learns from a large one: the teacher describes the same augmented patches.

Beside its own loss the student is given one of two targets. `descriptors`: the teacher's
descriptors themselves, so both live in one space and can be matched with each other. `distances`:
only the teacher's distances between the patches of a batch, so the student chooses its own space.
"""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from kjax.errors import InputError, unknown_name
from kjax.train.losses import distance_matrix

MATCHED = ("descriptors", "distances")
Views = tuple[Float[Array, "pairs dim"], Float[Array, "pairs dim"]]
"""ℓ2-normalised descriptors of the anchors and of the positives."""


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """Whom a model learns from.

    Attributes:
        teacher: a name that ships, a run or a weights file; "" for none.
        weight: of what is matched, beside the loss.
        match: one of `MATCHED`.
    """

    teacher: str = ""
    weight: float = 1.0
    match: str = "descriptors"

    def __post_init__(self) -> None:
        """Refuses unknown targets and weights that are none."""
        if self.match not in MATCHED:
            raise unknown_name("distill.match", self.match, MATCHED)
        if not 0 < self.weight < math.inf:
            raise InputError(f"distill.weight must be positive, not {self.weight}")


def distillation_loss(student: Views, teacher: Views, match: str) -> Float[Array, " pairs"]:
    """How far a student is from its teacher, for every pair of a batch.

    Args:
        student: its descriptors.
        teacher: those of the same patches.
        match: `descriptors`: the squared distance between the two, mean of both views.
            `distances`: the mean square of what the distances from an anchor to all positives
            differ by.
    """
    if match == "descriptors":
        apart = [jnp.square(own - other) for own, other in zip(student, teacher, strict=True)]
        return (apart[0] + apart[1]).sum(axis=1) / 2
    own, other = distance_matrix(*student), distance_matrix(*teacher)
    return jnp.square(own - other).mean(axis=1)
