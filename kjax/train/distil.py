"""Weights that a training learns from: those of a teacher, and those it starts with.

Distillation: the teacher describes the same augmented patches, and the student matches one of two
targets beside its own loss. With `descriptors` it matches the teacher's descriptors, so both share
one space and can be compared. With `distances` it matches the teacher's distances between the
patches of a batch, in a space of its own.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, UInt8

from kjax.errors import InputError
from kjax.model.descriptor import Descriptor
from kjax.model.folding import fold, remap
from kjax.model.patches import resize_patches
from kjax.runs.config import DistillConfig, ModelConfig
from kjax.train.losses import distance_matrix
from kjax.weights.info import fields_of
from kjax.weights.source import load_sources

PATCHES_TO_ORDER_BY = 4096
_KNOWN_FROM_SHAPES = ("head", "s", "head_bias", "channels", "dimension")
"""Model fields that bare weights reveal; the constants of position kernels leave no trace."""

Views = tuple[Float[Array, "pairs dim"], Float[Array, "pairs dim"]]
"""ℓ2-normalised descriptors of the anchors and of the positives."""


def distillation_loss(student: Views, teacher: Views, match: str) -> Float[Array, " pairs"]:
    """Compute the distance between a student and its teacher, for every pair of a batch.

    For `descriptors` it is the squared distance between the two, mean of both views. For
    `distances` it is the mean squared difference of the distances from an anchor to all positives.
    """
    if match == "descriptors":
        apart = [jnp.square(own - other) for own, other in zip(student, teacher, strict=True)]
        return (apart[0] + apart[1]).sum(axis=1) / 2
    own, other = distance_matrix(*student), distance_matrix(*teacher)
    return jnp.square(own - other).mean(axis=1)


def sample(patches: UInt8[np.ndarray, "P side side"]) -> UInt8[np.ndarray, "p side side"]:
    """Return evenly spread patches, enough to order a teacher's entries by."""
    return patches[:: max(1, len(patches) // PATCHES_TO_ORDER_BY)][:PATCHES_TO_ORDER_BY]


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """A folded model and its weights. It equals only itself, like the program it is part of."""

    model: Descriptor
    variables: Any

    def ordered(self, patches: UInt8[np.ndarray, "P side side"]) -> "Teacher":
        """Return the teacher with its space rotated so that its first entries tell most.

        Distances between descriptors stay the same. Students with nested descriptors need this.
        """
        if "head" not in self.variables["params"]:
            return self
        chosen = sample(patches)
        size = self.model.patch_size
        rows = jax.jit(lambda x: self.model.apply(self.variables, resize_patches(x, size)))(chosen)
        rows = np.asarray(rows, np.float64)
        _, directions = np.linalg.eigh(rows.T @ rows)
        return dataclasses.replace(self, variables=remap(self.variables, directions[:, ::-1]))

    def describe(self, pairs: Num[Array, "pairs 2 N N"]) -> Views:
        """Describe both views, in inference mode."""
        flat = pairs.reshape(-1, *pairs.shape[2:])
        both = self.model.apply(self.variables, flat)
        return both[0::2], both[1::2]


def load_teacher(config: DistillConfig, student: Descriptor) -> Teacher | None:
    """Load the teacher that a config names, in the student's precision; None without a name.

    Raises:
        InputError: there is no such teacher, or it cannot teach this student.
    """
    if not config.teacher:
        return None
    source = load_sources(config.teacher)[0]  # the first seed of a run with several
    model, variables = source.model, source.variables
    if model.patch_size != student.patch_size:
        raise InputError(
            f"the teacher {config.teacher} takes patches of {model.patch_size} pixels, the model "
            f"{student.patch_size}: train with config.model.patch_size={model.patch_size}"
        )
    if model.context != student.context:
        raise InputError(
            f"the teacher {config.teacher} sees other surroundings than the model: train with "
            f'config.model.context="{model.context}"'
        )
    if config.match == "descriptors" and model.dimension != student.dimension:
        raise InputError(
            f"the teacher {config.teacher} has {model.dimension}-dimensional descriptors, the "
            f"model {student.dimension}-dimensional ones: use config.distill.match=distances"
        )
    folded, weights = fold(model.clone(dtype=student.dtype, axis_name=None), variables)
    return Teacher(folded, jax.tree.map(np.asarray, weights))


def load_start(name: str, config: ModelConfig) -> dict[str, Any] | None:
    """Load the variables that `config.init` names, for the model to train; None without a name.

    Raises:
        InputError: there are no such weights, or they belong to another model.
    """
    if not name:
        return None
    source = load_sources(name)[0]
    fitting = [model for model in source.candidates if model.head == config.head]
    model = fitting[0] if fitting else source.candidates[0]
    known = fields_of(model)
    if source.inferred:
        revealed = {*_KNOWN_FROM_SHAPES, *(["patch_size"] if model.head == "hardnet" else [])}
        known = {field: value for field, value in known.items() if field in revealed}
    if not model.has_context:  # a model with context may start from one without
        known.pop("context", None)
    other = {field: value for field, value in known.items() if value != getattr(config, field)}
    if other:
        has = ", ".join(f"{field} {value}" for field, value in other.items())
        settings = (f'--config.model.{field}="{value}"' for field, value in other.items())
        raise InputError(
            f"the weights of config.init, {name}, are of another model than config.model, with "
            f"{has}: set {' '.join(settings)}"
        )
    return source.variables
