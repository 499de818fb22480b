"""The model that another one learns from, out of a name, a run or a weights file."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Num, UInt8

from kjax.errors import InputError
from kjax.model.descriptor import Descriptor
from kjax.model.folding import fold
from kjax.model.nesting import remap
from kjax.model.resampling import resize_patches
from kjax.train.distillation import DistillConfig, Views
from kjax.weights.source import load_sources

PATCHES_TO_ORDER_BY = 4096


def sample(patches: UInt8[np.ndarray, "P side side"]) -> UInt8[np.ndarray, "p side side"]:
    """Some of the patches, evenly spread: enough to order a teacher's entries by."""
    return patches[:: max(1, len(patches) // PATCHES_TO_ORDER_BY)][:PATCHES_TO_ORDER_BY]


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """A folded model and its weights; equal to itself alone, as what it is compiled into is."""

    model: Descriptor
    variables: Any

    def ordered(self, patches: UInt8[np.ndarray, "P side side"]) -> "Teacher":
        """The same teacher with its space turned: first entries tell most about such patches.

        Distances between descriptors stay the same. What learns them has nested descriptors.
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
        """Descriptors of both views, in inference."""
        flat = pairs.reshape(-1, *pairs.shape[2:])
        both = self.model.apply(self.variables, flat)
        return both[0::2], both[1::2]


def load_teacher(config: DistillConfig, student: Descriptor) -> Teacher | None:
    """The teacher that a config names, in the precision of the student; None if it names none.

    Raises:
        InputError: there is no such teacher, or it cannot teach this student.
    """
    if not config.teacher:
        return None
    source = load_sources(config.teacher)[0]  # of a run with several seeds, the first
    model, variables = source.model, source.variables
    if model.patch_size != student.patch_size:
        raise InputError(
            f"the teacher {config.teacher} takes patches of {model.patch_size} pixels, the model "
            f"{student.patch_size}: train with config.model.patch_size={model.patch_size}"
        )
    if config.match == "descriptors" and model.dimension != student.dimension:
        raise InputError(
            f"the teacher {config.teacher} has descriptors of {model.dimension} numbers, the model "
            f"of {student.dimension}: use config.distill.match=distances"
        )
    folded, weights = fold(model.clone(dtype=student.dtype, axis_name=None), variables)
    return Teacher(folded, jax.tree.map(np.asarray, weights))
