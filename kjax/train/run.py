"""A whole training run, from its config to its results."""

import dataclasses
import functools
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from kjax.data.phototour import PatchSet
from kjax.data.sets import by_photograph, read_test_sets, read_train_sets
from kjax.files.atomic import write_json
from kjax.runs.checkpoint import Checkpoints, saved_steps
from kjax.runs.config import OptimizerConfig, RunConfig, validate
from kjax.runs.processes import failing_together
from kjax.runs.workdir import (
    CHECKPOINTS_FOLDER,
    RESULTS_FILE,
    claim_workdir,
    mendable_errors,
    stored_pipeline,
    weights_files,
)
from kjax.train.input import make_evaluation, make_run
from kjax.train.loop import Schedule, step_of, train
from kjax.train.metrics_log import MetricsLog
from kjax.train.open_data import check_open_sets, check_open_weights
from kjax.train.optim import linear_decay, torch_sgd
from kjax.train.parallel import Program, initial_state
from kjax.train.pipeline import AUTO, choose_pipeline
from kjax.train.start import load_start
from kjax.train.step import StepConfig, TrainState
from kjax.train.teacher import load_teacher
from kjax.weights.files import save_variables


def run(config: ConfigDict, workdir: Path) -> dict[str, float]:
    """Trains as the config says, or goes on with the run in the workdir.

    Writes, besides checkpoints and metrics, `results.json` and the final weights `weights.npz`
    (`weights_<seed>.npz` with several seeds).

    Returns:
        The final evaluation.
    """
    checked = validate(config)
    with failing_together():
        # Once there is a checkpoint, the run goes on with that, even if its start is gone.
        going_on = bool(saved_steps(workdir / CHECKPOINTS_FOLDER))
        program = make_program(dataclasses.replace(checked, init="") if going_on else checked)
        train_set, test_sets = (
            read_train_set(checked),
            read_test_sets(checked.data.test, progress=checked.progress),
        )
        before = stored_pipeline(workdir)
    program = with_ordered_teacher(program, checked, train_set.patches)
    choice = choose_pipeline(checked.data.pipeline, program, train_set, before=before)
    resolved = config.to_dict()
    resolved["data"]["pipeline"] = choice.pipeline
    with claim_workdir(workdir, resolved, notes={"pipeline": ": ".join(choice)}):
        if checked.progress and checked.data.pipeline == AUTO and jax.process_index() == 0:
            print(f"{choice.pipeline} pipeline: {choice.why}", file=sys.stderr)
        data = dataclasses.replace(checked.data, pipeline=choice.pipeline)
        checked = dataclasses.replace(checked, data=data)
        state, scores = _train(checked, program, train_set, test_sets, workdir)
        with failing_together(), mendable_errors(workdir):
            if jax.process_index() == 0:
                write_json(workdir / RESULTS_FILE, scores)
                save_weights(workdir, program, state)
    return scores


def _train(
    config: RunConfig,
    program: Program,
    train_set: PatchSet,
    test_sets: list[PatchSet],
    workdir: Path,
) -> tuple[TrainState, dict[str, float]]:
    """Trains from the last checkpoint, or from the start."""
    checkpoints = Checkpoints(
        workdir / CHECKPOINTS_FOLDER,
        keep=config.train.keep_checkpoints,
        best_metric="fpr95" if test_sets else None,
    )
    start = initial_state(program)
    state = checkpoints.restore_latest(start)
    state = start if state is None else state
    first_step = step_of(state)
    with failing_together():
        log = MetricsLog(workdir, config.tensorboard, resume_step=first_step)
    try:
        return train(
            program,
            make_run(program, train_set, pipeline=config.data.pipeline, first_step=first_step),
            schedule=make_schedule(config),
            checkpoints=checkpoints,
            log=log,
            evaluate=make_evaluation(program.model, test_sets, several_seeds=program.several_seeds),
            learning_rate=make_learning_rate(config),
            state=state,
            progress=config.progress,
        )
    finally:
        log.close()
        checkpoints.close()


def make_program(config: RunConfig) -> Program:
    """What the run compiles."""
    for role, word in {"teacher": config.distill.teacher, "start": config.init}.items():
        if config.data.only_open and word:
            check_open_weights(role, word)
    model = config.model.build()
    return Program(
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
    )


def with_ordered_teacher(program: Program, config: RunConfig, patches: np.ndarray) -> Program:
    """The program; for nested descriptors, its teacher's first entries tell most of the patches."""
    if program.teacher is None or not config.loss.nested:
        return program
    return dataclasses.replace(program, teacher=program.teacher.ordered(patches))


@functools.cache  # programs with an equal optimiser are equal only if it is the same
def make_optimizer(
    config: OptimizerConfig, learning_rate: optax.Schedule
) -> optax.GradientTransformation:
    """SGD as torch does it, or Adam."""
    if config.name == "adam":
        return optax.adamw(learning_rate, weight_decay=config.weight_decay)
    return torch_sgd(
        learning_rate,
        momentum=config.momentum,
        dampening=config.dampening,
        weight_decay=config.weight_decay,
    )


def make_learning_rate(config: RunConfig) -> optax.Schedule:
    """Linear decay to zero over the whole run."""
    return linear_decay(config.optimizer.learning_rate, config.train.total_steps)


def make_schedule(config: RunConfig) -> Schedule:
    """When things happen."""
    return Schedule(
        total=config.train.total_steps,
        per_dispatch=config.train.steps_per_dispatch,
        log_every=config.train.log_every,
        eval_every=config.train.eval_every,
        checkpoint_every=config.train.checkpoint_every,
    )


def read_train_set(config: RunConfig) -> PatchSet:
    """All training sets as one; points of different sets are different points."""
    if config.data.only_open:
        check_open_sets(config.data.train)
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


def save_weights(workdir: Path, program: Program, state: TrainState) -> None:
    """The final weights of every seed, in kjax's own format."""
    variables = jax.device_get({"params": state.params, "batch_stats": state.batch_stats})
    by_seed = [variables]
    if program.several_seeds:
        by_seed = [
            jax.tree.map(lambda leaf, i=i: leaf[i], variables) for i in range(len(program.seeds))
        ]
    for path, own in zip(weights_files(workdir, program.seeds), by_seed, strict=True):
        save_variables(path, own)
