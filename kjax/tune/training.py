"""Train on the patches: a whole network on an accelerator, or only its last layer on a CPU.

Two cores train on too few pairs, in too small batches, and that makes weights worse. On a CPU,
patches are therefore described once, and a linear map of the descriptors is learned in minutes.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from kjax.data.sets import read_train_sets
from kjax.errors import InputError
from kjax.eval.misalignment import describe_misaligned
from kjax.files.atomic import write_json
from kjax.model.folding import check_remap, remap
from kjax.runs import CONFIG_FILE
from kjax.runs import config as configs
from kjax.runs.checkpoint import saved_steps
from kjax.runs.config import AugmentConfig, RunConfig, validate
from kjax.runs.workdir import CHECKPOINTS_FOLDER, stored_config, weights_files
from kjax.train.refitting import BATCH, LEARNING_RATE, STEPS, learn_map
from kjax.train.run import run
from kjax.tune.sets import OwnSets, TuneSettings
from kjax.weights.files import save_variables
from kjax.weights.info import make_metadata
from kjax.weights.source import METADATA_FILE, WEIGHTS_FILE, LoadedModel, refitted_info

RUN_FOLDER = "run"
AUGMENTATION = AugmentConfig(
    misalignment=1.0,
    area=(0.15, 0.5),
    aspect_ratio=(0.9, 1.1),
    max_translation=0.1,
    max_rotation_degrees=5.0,
    max_blur=1.2,
    max_gamma=1.8,
    saturation=0.15,
    max_noise=0.15,
    compression=1.0,
    photometric_probability=0.5,
)
"""As in the last part of the shipped `best`'s training: exact and jittered patches."""
NESTED_WEIGHT = 0.3
"""Loss weight of shorter descriptors, as for the shipped models."""
POINTS = 10_000
"""Maximum number of own points to refit the last layer on, each in sixteen patches."""
PULL = 0.003
"""Weight of the pull towards the identity map, against forgetting."""


ACCELERATOR = 3_000, 4096, 0.1, "bfloat16"
"""Default steps, pairs, learning rate (a tenth of training from scratch's) and precision."""
PROCESSOR = 72, 1024, 0.03, "float32"
"""The same on CPUs: 15 minutes on two cores, which does little harm; see `docs/howto/tune.md`."""


class TunedFiles(NamedTuple):
    """Files that make the tuning's folder loadable, and sentences about how they were made."""

    files: tuple[Path, ...]
    how: tuple[str, ...]
    advice: str
    """What to try if the weights got worse."""


def layers_to_train(out: Path, layers: str | None, source: LoadedModel) -> tuple[str, bool]:
    """Return "all" or "last", the user's choice if given, and whether training has started."""
    workdir = out / RUN_FOLDER
    started = bool(saved_steps(workdir / CHECKPOINTS_FOLDER))
    if started or (workdir / WEIGHTS_FILE).is_file():
        return layers or ("last" if (workdir / METADATA_FILE).is_file() else "all"), True
    if layers == "all" or (layers is None and jax.default_backend() != "cpu"):
        return "all", False
    try:
        check_remap(source.variables)
    except InputError:
        if layers == "last":
            raise
        return "all", False
    return "last", False


def train_all(
    settings: TuneSettings, source: LoadedModel, sets: OwnSets, out: Path, *, progress: bool
) -> TunedFiles:
    """Train all layers, or resume the training below a folder."""
    workdir = out / RUN_FOLDER
    (weights,) = weights_files(workdir, (settings.seed,))
    if not weights.is_file():
        if saved_steps(workdir / CHECKPOINTS_FOLDER):
            # Continue with the same config, whatever the default of this device.
            started = validate(stored_config(workdir))
        else:
            started = make_config(settings, source, sets)
            if (workdir / CONFIG_FILE).is_file():  # of a run that saved nothing
                write_json(workdir / CONFIG_FILE, dataclasses.asdict(started))
        run(dataclasses.replace(started, progress=progress), workdir)
    config = validate(stored_config(workdir))
    shares = zip(config.data.train, config.data.shares, strict=True)
    mixed = ", ".join(f"{Path(name).name} {100 * share:.0f} %" for name, share in shares)
    how = (
        f"All layers: {config.train.total_steps:,} steps of {config.train.pairs:,} pairs from "
        f"{config.init}, learning rate {config.optimizer.learning_rate:g}, seed {config.seed}."
    )
    advice = f"use batches of more than {config.train.pairs:,} pairs, or a lower --learning-rate"
    return TunedFiles((weights, workdir / CONFIG_FILE), (how, f"Every batch: {mixed}."), advice)


def make_config(settings: TuneSettings, source: LoadedModel, sets: OwnSets) -> RunConfig:
    """Return the config of a training run of all layers."""
    on_cpu = jax.default_backend() == "cpu"
    default_steps, most_pairs, rate, dtype = PROCESSOR if on_cpu else ACCELERATOR
    steps = settings.steps or default_steps
    general = settings.general if settings.share else ()
    own_share = 1 - settings.share
    # A batch has every point at most once.
    pairs = min(most_pairs, int(sets.points[0] / own_share))
    fields = ("head", "patch_size", "dropout", "head_bias", "channels", "dimension")
    model: dict[str, Any] = {name: getattr(source.model, name) for name in fields}
    model |= dataclasses.asdict(source.model.position_kernel)
    return RunConfig(
        seed=settings.seed,
        seeds=(),
        init=settings.start,
        model=configs.ModelConfig(dtype=dtype, **model),
        data=configs.DataConfig(
            train=(str(sets.train.resolve()), *general),
            test=(),
            pipeline="auto",
            shares=(own_share, *(settings.share / len(general) for _ in general)),
        ),
        augment=AUGMENTATION,
        loss=configs.LossConfig(nested=source.nested, nested_weight=NESTED_WEIGHT),
        optimizer=configs.OptimizerConfig(
            name="sgd",
            learning_rate=settings.learning_rate or rate,
            momentum=0.9,
            dampening=0.0,  # otherwise the first gradient, of one batch, counts ten times
            weight_decay=1e-4,
        ),
        train=configs.TrainConfig(
            pairs=settings.pairs or max(2, pairs - pairs % jax.device_count()),
            pairs_per_epoch=1,
            epochs=1,
            steps=steps,
            joint_batch_norm=True,
            steps_per_dispatch=1 if on_cpu else 100,
            log_every=max(1, steps // 50),
            eval_every=0,
            checkpoint_every=max(1, steps // 10),
            keep_checkpoints=1,
        ),
        progress=True,
        tensorboard=False,
    )


def refit_last(
    settings: TuneSettings, source: LoadedModel, sets: OwnSets, out: Path, *, progress: bool
) -> TunedFiles:
    """Refit the last layer, unless that is done."""
    own = min(POINTS, sets.points[0])
    general = settings.general if settings.share else ()
    others = own * settings.share / (1 - settings.share)
    points = {str(sets.train.resolve()): own} | {
        name: max(1, round(others / len(general))) for name in general
    }
    batch, steps = settings.pairs or BATCH, settings.steps or STEPS
    rate = settings.learning_rate or LEARNING_RATE
    path = out / RUN_FOLDER / WEIGHTS_FILE
    if not path.is_file():
        patches = read_train_sets(list(points), progress=progress)
        views = [
            describe_misaligned(source, [one], points=count, progress=progress)[0]
            for one, count in zip(patches, points.values(), strict=True)
        ]
        options: dict[str, Any] = {
            "pull": PULL,
            "learning_rate": rate,
            "batch": batch,
            "steps": steps,
        }
        options |= {"seed": settings.seed, "progress": progress}
        matrix = learn_map(np.concatenate(views, axis=1), source.nested, **options)
        path.parent.mkdir(exist_ok=True)
        names = [Path(name).name for name in points]
        info = refitted_info(source, settings.start, nested=source.nested, sets=names)
        write_json(path.with_name(METADATA_FILE), make_metadata(info))
        save_variables(path, remap(source.variables, matrix), info=info)
    mixed = ", ".join(f"{Path(name).name} {count:,}" for name, count in points.items())
    return TunedFiles(
        (path.with_name(METADATA_FILE), path),
        (
            f"Only the last layer: a linear map of the descriptors of {settings.start}, "
            f"{steps:,} steps of {batch:,} points, learning rate {rate:g}, seed {settings.seed}.",
            f"Maximum number of points, each in sixteen patches: {mixed}.",
        ),
        "train all layers on an accelerator (--layers all)",
    )
