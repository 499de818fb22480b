"""Training of a matcher, from its config to its weights."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int32

from kjax.errors import InputError, counted
from kjax.matcher.assignment import NONE, assign, assignment_loss, mutual_matches
from kjax.matcher.attention import Attention, attend
from kjax.matcher.batches import Batch, DeviceViews, DrawConfig, draw_batch, to_device
from kjax.matcher.config import MatcherRunConfig
from kjax.matcher.network import Embedding, Layer, MatcherConfig, init_params
from kjax.matcher.view_set import ViewSet, read_view_sets
from kjax.matcher.weights import (
    WEIGHTS_FILE,
    MatcherWeights,
    find_matcher,
    read_matcher,
    save_matcher,
)
from kjax.train import one_device
from kjax.train.step import TrainState, create_state
from kjax.weights import shipped
from kjax.weights.ledger import check_open

Metrics = dict[str, Float[Array, ""]]
_VALIDATION = 2**31 - 1
"""Folded into the run's key for validation batches: no step has this number."""
_METRICS = ("loss", "last_loss", "confidence_loss", "precision", "recall", "gradient_norm")


@dataclasses.dataclass(frozen=True)
class MatcherProgram:
    """Everything about a training that is compiled into it; `pairs` is the batch size."""

    model: MatcherConfig
    draw: DrawConfig
    optimizer: optax.GradientTransformation
    pairs: int
    seed: int
    dtype: str = "float32"
    attention: Attention = "xla"
    by_lines: bool = False
    """Also learn from epipolar lines where 3-D points are unknown: see `find_truth`."""


def run(config: MatcherRunConfig, workdir: Path) -> dict[str, float]:
    """Train as the config says, or resume the run in the workdir.

    Writes, besides checkpoints and metrics, `results.json` and the final weights, `matcher.npz`.
    Returns the final validation metrics.
    """
    views = read_view_sets([Path(name) for name in config.data.train], config.data.shares)
    if config.data.only_open:
        check_open("data.train", views.photographs, shipped.photographs())
    dimension, room = views.described_with.dimension, views.scales.shape[-1]
    if dimension != config.model.dimension:
        raise InputError(
            f"the views' descriptors have {dimension} numbers: set --config.model.dimension="
            f"{dimension}"
        )
    if config.draw.keypoints > room:
        raise InputError(
            f"config.draw.keypoints is {config.draw.keypoints}, but the views have at most "
            f"{room}: lower it, or build views with more"
        )
    learning, held_out = split(views, config.data.validation_every)
    program = make_program(config, by_lines=views.has_unknown_places)

    def start() -> TrainState:
        if not config.init:
            return initial_state(program)
        initial = read_matcher(find_matcher(config.init))
        if initial.model != config.model:
            fields = dataclasses.asdict(initial.model).items()
            settings = " ".join(f"--config.model.{name}={value}" for name, value in fields)
            raise InputError(f"{config.init} has another model than config.model: set {settings}")
        return initial_state(program, jax.tree.map(jnp.asarray, initial.params))

    def save(state: TrainState) -> None:
        remarks = {
            "photographs": str(len(views.photographs)),
            "pairs": str(config.train.pairs * config.train.steps),
            "keypoints": str(config.draw.keypoints),
            "seed": str(config.seed),
            **({"started from": config.init} if config.init else {}),
        }
        weights = MatcherWeights(config.model, views.described_with, remarks, state.params)
        save_matcher(workdir / WEIGHTS_FILE, weights)

    return one_device.run(
        config,
        workdir,
        start=start,
        advance=make_run(program, to_device(learning)),
        evaluate=make_validation(program, to_device(held_out), config.train.eval_batches),
        save=save,
        notes={"attention": program.attention},
    )


def split(views: ViewSet, every: int) -> tuple[ViewSet, ViewSet]:
    """Split groups into those to learn from and every Nth, which is held out."""
    if len(views) < every:
        raise InputError(
            f"{counted(len(views), 'group')} of views are too few for "
            f"config.data.validation_every={every}: give more photographs, or lower it"
        )
    places = np.arange(len(views))
    held_out = places % every == every - 1
    return views.keep(places[~held_out]), views.keep(places[held_out])


@functools.cache  # equal configs share one program, which compiles once
def make_program(config: MatcherRunConfig, *, by_lines: bool = False) -> MatcherProgram:
    """Return what the run compiles; `by_lines`: see `find_truth`."""
    return MatcherProgram(
        model=config.model,
        draw=config.draw,
        optimizer=config.optimizer.optimizer(config.train.steps),
        pairs=config.train.pairs,
        seed=config.seed,
        dtype=config.train.dtype,
        attention=choose_attention(config.train.attention, config.train.dtype),
        by_lines=by_lines,
    )


def choose_attention(wanted: str, dtype: str) -> Attention:
    """Choose "xla" or "cudnn"; "auto" is cuDNN on GPUs where a small test of it works."""
    if wanted == "xla" or (wanted == "auto" and jax.default_backend() != "gpu"):
        return "xla"
    if wanted == "auto":
        ones = jnp.ones((2, 64, 4, 32), jnp.dtype(dtype))
        counts = jnp.array([64, 10], jnp.int32)

        def total(query: jax.Array) -> jax.Array:
            return attend(query, ones, ones, counts, "cudnn").astype(jnp.float32).sum()

        try:
            jax.block_until_ready(jax.jit(jax.grad(total))(ones))
        except Exception as error:  # JAX, XLA and cuDNN each raise their own
            print(f"attention by XLA: cuDNN failed ({str(error)[:200]})", file=sys.stderr)
            return "xla"
    return "cudnn"


def initial_state(program: MatcherProgram, params: Any = None) -> TrainState:
    """Return the state before the first step, with random or given parameters."""
    if params is None:
        params = init_params(program.model, jax.random.key(program.seed))
    return create_state(program.optimizer, {"params": params, "batch_stats": {}})


def make_run(
    program: MatcherProgram, views: DeviceViews
) -> Callable[[TrainState, int], tuple[TrainState, Metrics]]:
    """Return `run(state, steps)`, which gives the new state and the metrics' means."""
    return lambda state, steps: _take_steps(program, state, views, jnp.int32(steps))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _take_steps(
    program: MatcherProgram, state: TrainState, views: DeviceViews, steps: Int32[Array, ""]
) -> tuple[TrainState, Metrics]:
    """Take many steps in one call. Everything random comes from `fold_in(key, state.step)`."""
    key = jax.random.key(program.seed)
    compute = jax.grad(functools.partial(batch_loss, program), has_aux=True)

    def take_step(_: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
        state, totals = carry
        batch = draw_batch(
            jax.random.fold_in(key, state.step),
            views,
            pairs=program.pairs,
            config=program.draw,
            by_lines=program.by_lines,
        )
        gradients, metrics = compute(state.params, batch)
        updates, opt_state = program.optimizer.update(gradients, state.opt_state, state.params)
        state = state.replace(
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
        )
        metrics = {**metrics, "gradient_norm": optax.tree.norm(gradients)}
        return state, {name: total + metrics[name] for name, total in totals.items()}

    start = (state, dict.fromkeys(_METRICS, jnp.zeros(())))
    state, totals = jax.lax.fori_loop(0, steps, take_step, start)
    return state, jax.tree.map(lambda total: total / steps, totals)


def batch_loss(
    program: MatcherProgram, params: Any, batch: Batch
) -> tuple[Float[Array, ""], Metrics]:
    """Return the mean loss over layers plus that of the confidences, and metrics."""
    losses, partners, confidence, judged = _run_layers(program, params, batch)
    sure = confidence_loss(confidence, partners, batch.points.counts)
    right, matched, possible = judged[-1]
    metrics = {
        "loss": losses.mean(),
        "last_loss": losses[-1],
        "confidence_loss": sure,
        "precision": right / jnp.maximum(matched, 1),
        "recall": right / jnp.maximum(possible, 1),
    }
    return losses.mean() + sure, metrics


def _run_layers(program: MatcherProgram, params: Any, batch: Batch) -> tuple[Array, ...]:
    """Return the losses, matches, confidences and counts of matches of all layers.

    The counts are those of correct matches, of matches that can be judged, and of true matches.
    """
    dtype, (points, truth) = jnp.dtype(program.dtype), batch
    embedding = Embedding(program.model, dtype=dtype)
    layer = Layer(program.model, dtype=dtype, attention=program.attention)
    tokens, rotation = embedding.apply({"params": params["embedding"]}, points)

    def pass_layer(tokens: Array, own: Any) -> tuple[Array, tuple[Array, ...]]:
        tokens, output = layer.apply({"params": own}, tokens, rotation, points.counts)
        made = assign(output, points.counts)
        found = mutual_matches(jax.lax.stop_gradient(made))
        partners = jnp.stack([found.first, found.second], axis=1)
        loss = assignment_loss(made, truth).mean()
        matched, known = found.first != NONE, truth.partners != NONE
        right = matched & known & (found.first == truth.partners)
        judged = matched & (known | truth.alone[:, 0])
        counts = jnp.stack([right.sum(), judged.sum(), known.sum()]).astype(jnp.float32)
        return tokens, (loss, partners, output.confidence, counts)

    return jax.lax.scan(pass_layer, tokens, params["layers"])[1]


def confidence_loss(
    logits: Float[Array, "layers B 2 N"],
    partners: Int32[Array, "layers B 2 N"],
    counts: Int32[Array, "B 2"],
) -> Float[Array, ""]:
    """Compute the cross-entropy of whether a layer agrees with the last one on a keypoint."""
    there = (jnp.arange(logits.shape[-1])[None, None] < counts[:, :, None])[None]
    same = (partners == partners[-1:]).astype(jnp.float32)
    losses = optax.sigmoid_binary_cross_entropy(logits, same)
    return jnp.where(there, losses, 0).sum() / (there.sum() * len(logits))


def make_validation(
    program: MatcherProgram, views: DeviceViews, batches: int
) -> Callable[[TrainState], dict[str, float]]:
    """Return a function that validates a state, always on the same batches.

    `precision` is the fraction of judgeable matches that are correct, `recall` that of true matches
    which are found; `error` is one minus their harmonic mean.
    """

    def validate(state: TrainState) -> dict[str, float]:
        counts = sum(
            count_matches(program, state.params, views, jnp.int32(i)) for i in range(batches)
        )
        right, judged, possible = (float(one) for one in counts)
        precision, recall = right / max(judged, 1), right / max(possible, 1)
        mean = 2 * precision * recall / max(precision + recall, 1e-9)
        return {"precision": precision, "recall": recall, "error": 1 - mean}

    return validate


@functools.partial(jax.jit, static_argnums=0)
def count_matches(
    program: MatcherProgram, params: Any, views: DeviceViews, number: Int32[Array, ""]
) -> Float[Array, "3"]:
    """Count the last layer's matches of a validation batch, as `_run_layers` does."""
    key = jax.random.fold_in(jax.random.key(program.seed), _VALIDATION)
    batch = draw_batch(
        jax.random.fold_in(key, number), views, pairs=program.pairs, config=program.draw
    )
    return _run_layers(program, params, batch)[-1][-1]
