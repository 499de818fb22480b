"""HardNet as a rival: a checkpoint of the release, or of kornia, through `kjax.weights`."""

from pathlib import Path
from typing import Any

from jaxtyping import Array

from kjax.baselines.descriptor import PatchDescriptor
from kjax.baselines.networks import batched, count
from kjax.model.descriptor import build
from kjax.model.dimensions import DIMENSION
from kjax.model.folding import fold
from kjax.weights.files import load_variables

PATCH_SIZE = 32


def load(path: Path) -> PatchDescriptor:
    """HardNet with released weights, BatchNorm folded; patches are resized as its authors do."""
    model = build("hardnet", patch_size=PATCH_SIZE)
    variables = load_variables(path, model)
    folded_model, folded = fold(model, variables)

    def apply(variables: Any, patches: Array) -> Array:
        return folded_model.apply(variables, patches)

    describe = batched(apply, folded, size=PATCH_SIZE)
    parameters = count(variables["params"])
    return PatchDescriptor("HardNet", path.name, "L2", DIMENSION, parameters, describe)
