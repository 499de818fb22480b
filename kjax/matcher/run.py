"""A whole training of a matcher, from its config to its weights."""

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kjax.errors import InputError, counted
from kjax.files.atomic import write_json
from kjax.matcher.attention import Attention, attend
from kjax.matcher.batches import to_device
from kjax.matcher.config import AdamWConfig, MatcherRunConfig
from kjax.matcher.step import Program, initial_state, make_run, make_validation
from kjax.matcher.view_set import ViewSet, read_view_sets
from kjax.matcher.weights import (
    FORMAT,
    WEIGHTS_FILE,
    About,
    MatcherWeights,
    find_matcher,
    read_matcher,
    save_matcher,
)
from kjax.runs.checkpoint import Checkpoints
from kjax.runs.workdir import CHECKPOINTS_FOLDER, RESULTS_FILE, claim_workdir, workdir_errors
from kjax.train.loop import step_of, train
from kjax.train.metrics_log import MetricsLog
from kjax.train.step import TrainState
from kjax.weights import shipped
from kjax.weights.ledger import check_open

FINAL_SHARE = 0.01
"""Of the learning rate, at the end."""


def run(config: MatcherRunConfig, workdir: Path) -> dict[str, float]:
    """Trains as the config says, or goes on with the run in the workdir.

    Writes, besides checkpoints and metrics, `results.json` and the final weights, `matcher.npz`.

    Returns:
        The final validation.
    """
    views = _read_views(config)
    learning, held_out = split(views, config.data.validation_every)
    program = make_program(config, by_lines=views.has_unknown_places)
    with claim_workdir(workdir, config, notes={"attention": program.attention}):
        state, scores = _train(config, program, learning, held_out, workdir)
        with workdir_errors(workdir):
            write_json(workdir / RESULTS_FILE, scores)
            about = About(FORMAT, config.model, views.described_with, _remarks(config, views))
            save_matcher(workdir / WEIGHTS_FILE, MatcherWeights(about, state.params))
    return scores


def _read_views(config: MatcherRunConfig) -> ViewSet:
    views = read_view_sets([Path(name) for name in config.data.train], config.data.shares)
    if config.data.only_open:
        check_open("data.train", views.photographs, shipped.photographs())
    dimension = views.described_with.dimension
    if dimension != config.model.dimension:
        raise InputError(
            f"the views' descriptors have {dimension} numbers: set --config.model.dimension="
            f"{dimension}"
        )
    room = views.scales.shape[-1]
    if config.draw.keypoints > room:
        raise InputError(
            f"config.draw.keypoints is {config.draw.keypoints}, but the views have at most {room}: "
            "lower it, or build views with more"
        )
    return views


def split(views: ViewSet, every: int) -> tuple[ViewSet, ViewSet]:
    """Groups to learn from, and those held out: each so-manieth."""
    if len(views) < every:
        raise InputError(
            f"{counted(len(views), 'group')} of views are too few for "
            f"config.data.validation_every={every}: "
            "give more photographs, or lower it"
        )
    places = np.arange(len(views))
    held_out = places % every == every - 1
    return views.keep(places[~held_out]), views.keep(places[held_out])


@functools.cache  # one for equal configs: it is compiled once
def make_program(config: MatcherRunConfig, *, by_lines: bool = False) -> Program:
    """What the run compiles; `by_lines`: see `find_truth`."""
    return Program(
        model=config.model,
        draw=config.draw,
        optimizer=make_optimizer(config.optimizer, make_learning_rate(config)),
        pairs=config.train.pairs,
        seed=config.seed,
        dtype=config.train.dtype,
        attention=choose_attention(config.train.attention, config.train.dtype),
        by_lines=by_lines,
    )


def choose_attention(word: str, dtype: str) -> Attention:
    """What computes attention: cuDNN where it is asked for, or where "auto" finds that it works."""
    if word == "xla" or (word == "auto" and jax.default_backend() != "gpu"):
        return "xla"
    if word == "auto":
        try:
            _try_cudnn(dtype)
        except Exception as error:  # JAX, XLA and cuDNN each have their own
            print(f"attention by XLA: cuDNN refuses ({str(error)[:200]})", file=sys.stderr)
            return "xla"
    return "cudnn"


def _try_cudnn(dtype: str) -> None:
    """Raises whatever cuDNN has against attention, with its gradient, of one small shape."""
    ones = jnp.ones((2, 64, 4, 32), jnp.dtype(dtype))
    counts = jnp.array([64, 10], jnp.int32)

    def total(query: jax.Array) -> jax.Array:
        return attend(query, ones, ones, counts, "cudnn").astype(jnp.float32).sum()

    jax.block_until_ready(jax.jit(jax.grad(total))(ones))


def make_learning_rate(config: MatcherRunConfig) -> optax.Schedule:
    """A linear warm-up, then a cosine."""
    settings, steps = config.optimizer, config.train.steps
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=settings.learning_rate,
        warmup_steps=min(settings.warmup_steps, steps - 1),
        decay_steps=steps,
        end_value=FINAL_SHARE * settings.learning_rate,
    )


def make_optimizer(
    config: AdamWConfig, learning_rate: optax.Schedule
) -> optax.GradientTransformation:
    """AdamW on clipped gradients."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(learning_rate, weight_decay=config.weight_decay),
    )


def _train(
    config: MatcherRunConfig, program: Program, learning: ViewSet, held_out: ViewSet, workdir: Path
) -> tuple[TrainState, dict[str, float]]:
    """Trains from the last checkpoint, or from the start."""
    checkpoints = Checkpoints(
        workdir / CHECKPOINTS_FOLDER, keep=config.train.keep_checkpoints, best_metric="error"
    )
    # Placed as a restored state is, or going on would compile anew.
    start = jax.device_put(initial_state(program, _start(config)), jax.devices()[0])
    state = checkpoints.restore_latest(start)
    state = start if state is None else state
    log = MetricsLog(workdir, config.tensorboard, resume_step=step_of(state))
    try:
        return train(
            make_run(program, to_device(learning)),
            pairs=program.pairs,
            schedule=config.train.schedule(),
            learning_rate=make_learning_rate(config),
            state=state,
            checkpoints=checkpoints,
            log=log,
            evaluate=make_validation(program, to_device(held_out), config.train.eval_batches),
            progress=config.progress,
        )
    finally:
        log.close()
        checkpoints.close()


def _start(config: MatcherRunConfig) -> Any:
    """The parameters that `config.init` names; None if it names nothing."""
    if not config.init:
        return None
    weights = read_matcher(find_matcher(config.init))
    if weights.about.model != config.model:
        fields = dataclasses.asdict(weights.about.model).items()
        settings = " ".join(f"--config.model.{name}={value}" for name, value in fields)
        raise InputError(f"{config.init} is of another model than config.model: set {settings}")
    return jax.tree.map(jnp.asarray, weights.params)


def _remarks(config: MatcherRunConfig, views: ViewSet) -> dict[str, str]:
    """What the weights file tells people."""
    return {
        "photographs": str(len(views.photographs)),
        "pairs": str(config.train.pairs * config.train.steps),
        "keypoints": str(config.draw.keypoints),
        "seed": str(config.seed),
        **({"started from": config.init} if config.init else {}),
    }
