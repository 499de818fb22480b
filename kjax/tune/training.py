"""The training of a whole network, for accelerators: an ordinary run, with a config made here."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from kjax.files.atomic import write_json
from kjax.runs.checkpoint import saved_steps
from kjax.runs.config import (
    AugmentConfig,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainConfig,
    override,
    validate,
)
from kjax.runs.workdir import CHECKPOINTS_FOLDER, CONFIG_FILE, stored_config, weights_files
from kjax.train.run import run
from kjax.tune.sets import OwnSets
from kjax.tune.settings import Settings
from kjax.tune.trained import RUN_FOLDER, Trained
from kjax.weights.source import LoadedModel

MISALIGNED = (
    "augment.misalignment=1.0",
    "augment.area=(0.15,0.5)",
    "augment.aspect_ratio=(0.9,1.1)",
    "augment.max_translation=0.1",
    "augment.max_rotation_degrees=5.0",
)
"""Pairs as in HPatches' matching task: an exact reference patch and a jittered one."""
PHOTOMETRY = (
    "augment.max_blur=1.2",
    "augment.max_gamma=1.8",
    "augment.saturation=0.15",
    "augment.max_noise=0.15",
    "augment.compression=1.0",
    "augment.photometric_probability=0.5",
)
"""Moderate changes of grey values."""
AUGMENTATION = (*MISALIGNED, *PHOTOMETRY)
"""That of the last part of the training of the shipped `best`: without pairs cut askew, weights
forget to match them."""
NESTED_WEIGHT = 0.3
"""That of the shipped models with shorter forms."""


class Effort(NamedTuple):
    """How much a device trains, unless told otherwise."""

    steps: int
    pairs: int
    rate: float
    dtype: str


ACCELERATOR = Effort(3_000, 4096, 0.1, "bfloat16")
"""The rate is without dampening; that of a training from chance, 10 with 0.9 of it, would be 1."""
PROCESSOR = Effort(72, 1024, 0.03, "float32")
"""What two cores make in a quarter of an hour, and takes little away: see `docs/howto/tune.md`."""


def train(
    settings: Settings, source: LoadedModel, sets: OwnSets, out: Path, *, progress: bool
) -> Trained:
    """Trains, or goes on with the training below a folder.

    Raises:
        Stopped: after Ctrl-C; the state has been saved.
    """
    workdir = out / RUN_FOLDER
    (weights,) = weights_files(workdir, (settings.seed,))
    if not weights.is_file():
        _run(settings, source, sets, out, progress=progress)
    config = validate(stored_config(workdir))
    return Trained(
        (weights, workdir / CONFIG_FILE),
        _how(config),
        f"tune in larger batches than {config.train.pairs:,} pairs, as on an accelerator, or at a "
        "lower --learning-rate",
    )


def _how(config: RunConfig) -> tuple[str, ...]:
    shares = zip(config.data.train, config.data.shares, strict=True)
    mixed = ", ".join(f"{Path(name).name} {100 * share:.0f} %" for name, share in shares)
    return (
        f"{config.train.total_steps:,} steps of {config.train.pairs:,} pairs from {config.init}, "
        f"with a learning rate of {config.optimizer.learning_rate:g}, seed {config.seed}.",
        f"Of every batch: {mixed}.",
    )


def _run(
    settings: Settings, source: LoadedModel, sets: OwnSets, out: Path, *, progress: bool
) -> None:
    workdir = out / RUN_FOLDER
    if has_begun(out):
        # As it was begun, whatever would suit this device.
        config = validate(stored_config(workdir))
    else:
        config = make_config(settings, source, sets)
        if (workdir / CONFIG_FILE).is_file():  # of a run that was not begun
            write_json(workdir / CONFIG_FILE, dataclasses.asdict(config))
    run(dataclasses.replace(config, progress=progress), workdir)


def has_begun(out: Path) -> bool:
    """Whether the training below a folder has saved anything."""
    return bool(saved_steps(out / RUN_FOLDER / CHECKPOINTS_FOLDER))


def make_config(settings: Settings, source: LoadedModel, sets: OwnSets) -> RunConfig:
    """Every field of the run."""
    effort = PROCESSOR if jax.default_backend() == "cpu" else ACCELERATOR
    steps = settings.steps or effort.steps
    general = settings.general if settings.share else ()
    own_share = 1 - settings.share
    config = RunConfig(
        seed=settings.seed,
        seeds=(),
        init=settings.start,
        model=_model_config(source, effort.dtype),
        data=DataConfig(
            train=(str(sets.train.resolve()), *general),
            test=(),
            pipeline="auto",
            shares=(own_share, *(settings.share / len(general) for _ in general)),
        ),
        augment=AugmentConfig(),
        loss=LossConfig(nested=source.nested, nested_weight=NESTED_WEIGHT),
        optimizer=OptimizerConfig(
            name="sgd",
            learning_rate=settings.learning_rate or effort.rate,
            momentum=0.9,
            dampening=0.0,  # with it the first gradient, of one batch, counts as much as ten
            weight_decay=1e-4,
        ),
        train=TrainConfig(
            pairs=settings.pairs or _fitting_pairs(effort.pairs, sets.points[0] / own_share),
            pairs_per_epoch=1,
            epochs=1,
            steps=steps,
            joint_batch_norm=True,
            steps_per_dispatch=100 if effort is ACCELERATOR else 1,
            log_every=max(1, steps // 50),
            eval_every=0,
            checkpoint_every=max(1, steps // 10),
            keep_checkpoints=1,
        ),
        progress=True,
        tensorboard=False,
    )
    changed = ConfigDict(dataclasses.asdict(config))
    override(changed, [f"--config.{setting}" for setting in AUGMENTATION])
    return validate(changed)


def _fitting_pairs(wanted: int, most: float) -> int:
    """Fewer where a set is small: a batch has every point once at most."""
    pairs = min(wanted, int(most))
    return max(2, pairs - pairs % jax.device_count())


def _model_config(source: LoadedModel, dtype: str) -> ModelConfig:
    model = source.model
    fields: dict[str, Any] = {
        name: getattr(model, name)
        for name in ("head", "patch_size", "dropout", "head_bias", "channels", "dimension")
    }
    return ModelConfig(dtype=dtype, **fields, **dataclasses.asdict(model.position_kernel))
