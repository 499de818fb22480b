"""A whole training run, from its config to its results."""

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from PIL import Image

from kjax.data.appearance import KINDS
from kjax.data.photo_points import ResidentPhotos, photographs_in, read_photos
from kjax.data.phototour import PatchSet
from kjax.data.pipelines import make_resident
from kjax.data.sets import by_photograph, read_photographs, read_test_sets, read_train_sets
from kjax.errors import InputError
from kjax.files.atomic import write_json, write_whole
from kjax.runs.checkpoint import Checkpoints, saved_steps
from kjax.runs.config import OptimizerConfig, RunConfig, check_choice, flat_fields
from kjax.runs.processes import failing_together
from kjax.runs.workdir import (
    CHECKPOINTS_FOLDER,
    RESULTS_FILE,
    claim_workdir,
    stored_config,
    weights_files,
    workdir_errors,
)
from kjax.train.distil import load_start, load_teacher
from kjax.train.input import choose_pipeline, make_evaluation, make_run
from kjax.train.loop import Schedule, step_of, train
from kjax.train.metrics_log import MetricsLog
from kjax.train.optim import linear_decay, torch_sgd
from kjax.train.parallel import DescriptorProgram, first_pairs, initial_state
from kjax.train.step import StepConfig, TrainState
from kjax.weights import shipped
from kjax.weights.files import save_variables
from kjax.weights.info import fields_of
from kjax.weights.ledger import are_open, check_open
from kjax.weights.source import is_workdir, run_info

SHOWN = 64
"""Pairs that `show_pairs` draws."""


def run(config: RunConfig, workdir: Path) -> dict[str, float]:
    """Train as configured, or resume the run in the workdir; return the final evaluation.

    `kjax.runs.workdir` lists the files that it writes.
    """
    with failing_together():
        # Once there is a checkpoint, the weights that the run started from are not needed.
        resumes = bool(saved_steps(workdir / CHECKPOINTS_FOLDER))
        program = make_program(dataclasses.replace(config, init="") if resumes else config)
        train_set = read_train_set(config)
        test_sets = read_test_sets(config.data.test, progress=config.progress)
        stored = stored_config(workdir) if is_workdir(str(workdir)) else {}
        before = flat_fields(stored).get("data.pipeline")
    if isinstance(train_set, PatchSet):
        program = with_ordered_teacher(program, config, train_set.patches)
    pipeline, why = choose_pipeline(config.data.pipeline, program, train_set, before=before)
    resolved = dataclasses.replace(config, data=dataclasses.replace(config.data, pipeline=pipeline))
    with claim_workdir(workdir, resolved, notes={"pipeline": f"{pipeline}: {why}"}):
        if config.progress and config.data.pipeline == "auto" and jax.process_index() == 0:
            print(f"{pipeline} pipeline: {why}", file=sys.stderr)
        checkpoints = Checkpoints(
            workdir / CHECKPOINTS_FOLDER,
            keep=config.train.keep_checkpoints,
            best_metric="fpr95" if test_sets else None,
        )
        start = initial_state(program)
        state = checkpoints.restore_latest(start) or start
        first_step = step_of(state)
        with failing_together():
            log = MetricsLog(workdir, config.tensorboard, resume_step=first_step)
        try:
            state, scores = train(
                make_run(program, train_set, pipeline=pipeline, first_step=first_step),
                pairs=program.pairs,
                schedule=Schedule(
                    total=config.train.total_steps,
                    per_dispatch=config.train.steps_per_dispatch,
                    log_every=config.train.log_every,
                    eval_every=config.train.eval_every,
                    checkpoint_every=config.train.checkpoint_every,
                ),
                checkpoints=checkpoints,
                log=log,
                evaluate=make_evaluation(
                    program.model, test_sets, several_seeds=program.several_seeds
                ),
                learning_rate=make_learning_rate(config),
                state=state,
                progress=config.progress,
            )
        finally:
            log.close()
            checkpoints.close()
        with failing_together(), workdir_errors(workdir):
            if jax.process_index() == 0:
                write_json(workdir / RESULTS_FILE, scores)
                save_weights(workdir, program, state)
    return scores


def make_program(config: RunConfig) -> DescriptorProgram:
    """Return what the run compiles."""
    for role, name in {"teacher": config.distill.teacher, "start": config.init}.items():
        if config.data.only_open and name and not learned_from_open(name):
            raise InputError(
                f"the {role} {name} is not known to be trained on open photographs only: use "
                "shipped weights that are, or the workdir of a run with config.data.only_open=True"
            )
    for kind in config.augment.appearance_without:
        check_choice("kind of appearance", kind, list(KINDS))
    model = config.model.build()
    return DescriptorProgram(
        model=model,
        optimizer=make_optimizer(config.optimizer, make_learning_rate(config)),
        pairs=config.train.pairs,
        step=StepConfig(
            loss=config.loss,
            joint_batch_norm=config.train.joint_batch_norm,
            distill=config.distill,
        ),
        augment=config.augment,
        shares=config.data.shares or (1.0,),
        seeds=config.all_seeds,
        teacher=load_teacher(config.distill, model),
        group=config.train.group,
        start=load_start(config.init, config.model),
        parallel=config.train.parallel,
    )


def learned_from_open(name: str) -> bool:
    """Return whether weights are known to be trained on photographs with open licences only."""
    # A run takes precedence over shipped weights of the same name, as in `kjax.weights.source`.
    # A run with the field set was checked when it began, and so were its teacher and its start.
    if is_workdir(name):
        return flat_fields(stored_config(Path(name))).get("data.only_open") is True
    return shipped.find(name) is not None and are_open(shipped.card(name).photographs)


def with_ordered_teacher(
    program: DescriptorProgram, config: RunConfig, patches: np.ndarray
) -> DescriptorProgram:
    """Return the program; for nested descriptors, with its teacher's entries in order."""
    if program.teacher is None or not config.loss.nested:
        return program
    return dataclasses.replace(program, teacher=program.teacher.ordered(patches))


@functools.cache  # programs are equal only if they have the same optimiser object
def make_optimizer(
    config: OptimizerConfig, learning_rate: optax.Schedule
) -> optax.GradientTransformation:
    """Return SGD as torch does it, or Adam."""
    if config.name == "adam":
        return optax.adamw(learning_rate, weight_decay=config.weight_decay)
    return torch_sgd(
        learning_rate,
        momentum=config.momentum,
        dampening=config.dampening,
        weight_decay=config.weight_decay,
    )


def make_learning_rate(config: RunConfig) -> optax.Schedule:
    """Return the linear decay to zero over the whole run, after the warm-up."""
    steps = config.train.total_steps
    warmup = min(config.optimizer.warmup_steps, steps // 2)
    return linear_decay(config.optimizer.learning_rate, steps, warmup)


def read_train_set(config: RunConfig) -> PatchSet | ResidentPhotos:
    """Read the photographs, or all training sets as one; their points are different points."""
    data = config.data
    if data.only_open:
        ledger = shipped.photographs()
        for name in filter(None, (data.photos, data.places)):
            check_open(name, photographs_in(name), ledger)
        for name in data.train:
            check_open(name, read_photographs(name), ledger)
    if data.photos:
        options: Any = {"extent": data.extent, "progress": config.progress}
        return read_photos(data.photos, data.places, **options)
    sets = read_train_sets(config.data.train, progress=config.progress)
    if config.train.group > 1:
        sets = [by_photograph(one) for one in sets]
    if len(sets) == 1:
        return sets[0]
    offsets = np.cumsum([0, *(int(one.point_ids.max()) + 1 for one in sets[:-1])])
    return PatchSet(
        name="+".join(one.name for one in sets),
        patches=np.concatenate([one.patches for one in sets]),
        point_ids=np.concatenate(
            [one.point_ids + offset for one, offset in zip(sets, offsets, strict=True)]
        ),
        folder=sets[0].folder,
        parts=tuple(len(one.patches) for one in sets) if config.data.shares else (),
    )


def show_pairs(config: RunConfig, path: Path) -> None:
    """Draw the first 64 augmented pairs in eight columns, the patches of a pair side by side."""
    program = dataclasses.replace(make_program(config), pairs=SHOWN, devices=(jax.devices()[0],))
    train_set: Any = read_train_set(config)
    if isinstance(train_set, PatchSet):
        train_set = make_resident(train_set)
    pairs = np.asarray(first_pairs(program, jax.device_put(train_set)))
    flat = pairs.reshape(SHOWN, -1, *pairs.shape[-2:])  # with context, all patches of a pair
    low, high = (bound(flat, axis=(2, 3), keepdims=True) for bound in (np.min, np.max))
    tiles = np.pad(255 * (flat - low) / (high - low + 1e-6), [(0, 0), (0, 0), (1, 1), (1, 1)])
    count, side = tiles.shape[1:3]
    page = tiles.reshape(8, -1, count, side, side).transpose(0, 3, 1, 2, 4)
    picture = Image.fromarray(page.reshape(8 * side, -1).astype(np.uint8))
    write_whole(
        path,
        lambda partial: picture.resize((2 * picture.width, 2 * picture.height)).save(
            partial, "PNG"
        ),
    )


def save_weights(workdir: Path, program: DescriptorProgram, state: TrainState) -> None:
    """Save the final weights of every seed, in kjax's own format."""
    variables = jax.device_get({"params": state.params, "batch_stats": state.batch_stats})
    by_seed = [variables]
    if program.several_seeds:
        by_seed = [
            jax.tree.map(lambda leaf, i=i: leaf[i], variables) for i in range(len(program.seeds))
        ]
    info = dataclasses.replace(run_info(stored_config(workdir)), model=fields_of(program.model))
    for path, own in zip(weights_files(workdir, program.seeds), by_seed, strict=True):
        save_variables(path, own, info=info)
