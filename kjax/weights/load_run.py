"""Trained models out of the folder of a run, finished or not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kjax.errors import InputError
from kjax.model.descriptor import Descriptor
from kjax.runs.checkpoint import read_latest
from kjax.runs.config import validate
from kjax.runs.workdir import CHECKPOINTS_FOLDER, stored_config, weights_files
from kjax.weights.files import load_variables
from kjax.weights.torch_names import check_finite


class TrainedModel(NamedTuple):
    """A model with its weights, and what it was trained on."""

    name: str
    """Name of the workdir; with several seeds, `<workdir>_<seed>`."""
    model: Descriptor
    variables: dict[str, Any]
    seed: int
    train_sets: tuple[str, ...]
    """Names of the sets, which are those of their folders."""
    config: dict[str, Any]
    """The run's whole config."""


def load_run(workdir: str | Path) -> list[TrainedModel]:
    """The models of a run, one per seed: the final ones, or those of its latest checkpoint.

    The folder is only read, so the run may still be going on.

    Args:
        workdir: as given to `run_train.py`.

    Raises:
        InputError: the folder is not of a run, nothing is saved in it yet, or it is damaged.
    """
    workdir = Path(workdir)
    config = stored_config(workdir)
    try:
        checked = validate(config)
    except InputError as error:
        raise InputError(f"{workdir} is not of a run of this version of kjax: {error}") from None
    model, seeds = checked.model.build(), checked.all_seeds
    files = weights_files(workdir, seeds)
    if all(path.exists() for path in files):
        by_seed = [load_variables(path, model) for path in files]
    else:
        by_seed = _from_checkpoint(workdir, model, seeds)
    for variables in by_seed:
        check_finite(variables)
    name = workdir.resolve().name
    return [
        TrainedModel(
            name=name if len(seeds) == 1 else f"{name}_{seed}",
            model=model,
            variables=variables,
            seed=seed,
            train_sets=tuple(Path(folder).name for folder in checked.data.train),
            config=config,
        )
        for seed, variables in zip(seeds, by_seed, strict=True)
    ]


def _from_checkpoint(workdir: Path, model: Descriptor, seeds: Sequence[int]) -> list[Any]:
    """The variables of each seed in the latest checkpoint."""
    patches = np.zeros((1, model.patch_size, model.patch_size), np.float32)
    one = jax.eval_shape(model.init, jax.random.key(0), patches)
    several = len(seeds) > 1
    like = jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct((len(seeds), *leaf.shape), leaf.dtype) if several else leaf
        ),
        {"params": one["params"], "batch_stats": one["batch_stats"]},
    )
    saved = read_latest(workdir / CHECKPOINTS_FOLDER, like)
    if saved is None:
        raise InputError(f"the run in {workdir} has saved nothing yet: try again later")
    return [
        jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i] if several else leaf), saved)
        for i in range(len(seeds))
    ]
