"""A whole training run, from its config to its results."""

from pathlib import Path

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from kjax.config import EMBEDDED, OptimizerConfig, RunConfig, validate
from kjax.data.phototour import PatchSet, find_match_file, read_match_file, read_phototour
from kjax.errors import InputError
from kjax.interop import save_variables
from kjax.optim import linear_decay, torch_sgd
from kjax.train.checkpoint import Checkpoints
from kjax.train.feeding import TestSet, make_evaluation, make_run
from kjax.train.loop import Schedule, step_of, train
from kjax.train.metrics_log import MetricsLog
from kjax.train.parallel import Programme, initial_state
from kjax.train.step import StepConfig, TrainState
from kjax.train.workdir import prepare_workdir
from kjax.whole_files import write_json


def run(config: ConfigDict, workdir: Path) -> dict[str, float]:
    """Trains as the config says, or goes on with the run in the workdir.

    Writes, besides checkpoints and metrics, `results.json` and the final weights `weights.npz`
    (`weights_<seed>.npz` with several seeds).

    Returns:
        The final evaluation.
    """
    checked = validate(config)
    programme = make_programme(checked)
    train_set = read_train_set(checked)
    test_sets = read_test_sets(checked)
    prepare_workdir(workdir, config.to_dict())
    checkpoints = Checkpoints(
        workdir / "checkpoints",
        keep=checked.train.keep_checkpoints,
        best_metric="fpr95" if test_sets else None,
    )
    start = initial_state(programme)
    state = checkpoints.restore_latest(start)
    state = start if state is None else state
    log = MetricsLog(workdir, checked.tensorboard, resume_step=step_of(state))
    try:
        state, scores = train(
            programme,
            make_run(
                programme,
                train_set,
                pipeline=checked.data.pipeline,
                first_step=step_of(state),
            ),
            schedule=make_schedule(checked),
            checkpoints=checkpoints,
            log=log,
            evaluate=make_evaluation(
                programme.model, test_sets, several_seeds=programme.several_seeds
            ),
            learning_rate=make_learning_rate(checked),
            state=state,
            progress=checked.progress,
        )
    finally:
        log.close()
        checkpoints.close()
    if jax.process_index() == 0:
        write_json(workdir / "results.json", scores)
        save_weights(workdir, programme, state)
    return scores


def make_programme(config: RunConfig) -> Programme:
    """What the run compiles."""
    return Programme(
        model=config.model.build(),
        optimizer=make_optimizer(config.optimizer, make_learning_rate(config)),
        pairs=config.train.pairs,
        step=StepConfig(loss=config.loss, joint_batch_norm=config.train.joint_batch_norm),
        augment=config.augment,
        seeds=config.all_seeds,
    )


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
    sets = [_read_train_set(name, config) for name in config.data.train]
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
    )


def _read_train_set(name: str, config: RunConfig) -> PatchSet:
    if name == EMBEDDED:
        from kjax.data.embedded import embedded_train

        return embedded_train(progress=config.progress)
    return read_phototour(name, progress=config.progress)


def read_test_sets(config: RunConfig) -> list[TestSet]:
    """The sets that progress is watched on."""
    tests = []
    for name in config.data.test:
        if name == EMBEDDED:
            from kjax.data.embedded import embedded_test

            tests.append(TestSet(*embedded_test(progress=config.progress)))
            continue
        patches = read_phototour(name, progress=config.progress)
        pairs = read_match_file(find_match_file(patches.folder), patch_count=len(patches.patches))
        tests.append(TestSet(patches, pairs))
    names = [test.patches.name for test in tests]
    if len(set(names)) < len(names):
        raise InputError(f"config.data.test has two sets of one name: {', '.join(names)}")
    return tests


def save_weights(workdir: Path, programme: Programme, state: TrainState) -> None:
    """The final weights of every seed, in kjax's own format."""
    variables = jax.device_get({"params": state.params, "batch_stats": state.batch_stats})
    if not programme.several_seeds:
        save_variables(workdir / "weights.npz", variables)
        return
    for i, seed in enumerate(programme.seeds):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], variables)
        save_variables(workdir / f"weights_{seed}.npz", own)
