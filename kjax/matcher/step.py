"""One training step: the loss of every layer, and many steps in one call."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int32, Key

from kjax.matcher.assignment import Partners, assign, assignment_loss, mutual_partners
from kjax.matcher.attention import Attention
from kjax.matcher.batches import Batch, DeviceViews, DrawConfig, draw_batch
from kjax.matcher.network import (
    Embedding,
    Layer,
    MatcherConfig,
    Points,
    Said,
    init_params,
)
from kjax.matcher.truth import NONE, Truth
from kjax.train.step import TrainState

Metrics = dict[str, Float[Array, ""]]
_VALIDATION = 2**31 - 1
"""Folded into the run's key for what is drawn to validate: no step has this number."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything about a training that is compiled into it.

    Attributes:
        model: the network.
        draw: how pairs are drawn.
        optimizer: any optax transformation.
        pairs: in a batch.
        seed: of all chance.
        dtype: of the computation.
        attention: what computes it.
        by_lines: learn from lines, too, where places are not known: see `find_truth`.
    """

    model: MatcherConfig
    draw: DrawConfig
    optimizer: optax.GradientTransformation
    pairs: int
    seed: int
    dtype: str = "float32"
    attention: Attention = "xla"
    by_lines: bool = False


def initial_state(program: Program, params: Any = None) -> TrainState:
    """The state before the first step, by chance or with given parameters."""
    if params is None:
        params = init_params(program.model, jax.random.key(program.seed))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats={},
        opt_state=program.optimizer.init(params),
    )


def make_run(
    program: Program, views: DeviceViews
) -> Callable[[TrainState, int], tuple[TrainState, Metrics]]:
    """`run(state, steps)`: the state so many steps on, and the metrics' means over them."""
    return lambda state, steps: _take_steps(program, state, views, jnp.int32(steps))


def make_validation(
    program: Program, views: DeviceViews, batches: int
) -> Callable[[TrainState], dict[str, float]]:
    """Shares of right matches on batches that are always the same.

    Returns:
        A function of a state. `precision` is of what is matched and can be judged, `recall` of what
        could be; `error` is one minus their harmonic mean.
    """

    def validate(state: TrainState) -> dict[str, float]:
        counts = sum(_count(program, state.params, views, jnp.int32(i)) for i in range(batches))
        right, judged, possible = (float(one) for one in counts)
        precision, recall = right / max(judged, 1), right / max(possible, 1)
        mean = 2 * precision * recall / max(precision + recall, 1e-9)
        return {"precision": precision, "recall": recall, "error": 1 - mean}

    return validate


@functools.partial(jax.jit, static_argnums=0)
def _count(
    program: Program, params: Any, views: DeviceViews, number: Int32[Array, ""]
) -> Float[Array, "3"]:
    key = jax.random.fold_in(jax.random.key(program.seed), _VALIDATION)
    drawn = draw_batch(
        jax.random.fold_in(key, number), views, pairs=program.pairs, config=program.draw
    )
    _, said = forward(program, params, drawn.points)
    last = jax.tree.map(lambda leaf: leaf[-1], said)
    return _judge(mutual_partners(assign(last, drawn.points.counts)), drawn.truth)


def _judge(found: Partners, truth: Truth) -> Float[Array, "3"]:
    """Numbers of right matches, of matches that can be judged, and of true matches."""
    matched, known = found.first != NONE, truth.partners != NONE
    right = matched & known & (found.first == truth.partners)
    judged = matched & (known | truth.alone[:, 0])
    return jnp.stack([right.sum(), judged.sum(), known.sum()]).astype(jnp.float32)


def forward(program: Program, params: Any, points: Points) -> tuple[Float[Array, "..."], Said]:
    """The last tokens, and what all layers say along a first axis."""
    dtype = jnp.dtype(program.dtype)
    embedding, layer = _modules(program, dtype)
    tokens, rotation = embedding.apply({"params": params["embedding"]}, points)
    return jax.lax.scan(
        lambda tokens, own: layer.apply({"params": own}, tokens, rotation, points.counts),
        tokens,
        params["layers"],
    )


def _modules(program: Program, dtype: Any) -> tuple[Embedding, Layer]:
    return (
        Embedding(program.model, dtype=dtype),
        Layer(program.model, dtype=dtype, attention=program.attention),
    )


def batch_loss(program: Program, params: Any, batch: Batch) -> tuple[Float[Array, ""], Metrics]:
    """Mean over layers of the loss, and that of confidences, which teaches nothing else."""
    embedding, layer = _modules(program, jnp.dtype(program.dtype))
    points, truth = batch
    tokens, rotation = embedding.apply({"params": params["embedding"]}, points)

    def pass_layer(tokens: Array, own: Any) -> tuple[Array, tuple[Array, ...]]:
        tokens, said = layer.apply({"params": own}, tokens, rotation, points.counts)
        made = assign(said, points.counts)
        found = mutual_partners(jax.lax.stop_gradient(made))
        partners = jnp.stack([found.first, found.second], axis=1)
        loss = assignment_loss(made, truth).mean()
        return tokens, (loss, partners, said.confidence, _judge(found, truth))

    _, (losses, partners, confidence, judged) = jax.lax.scan(pass_layer, tokens, params["layers"])
    sure = confidence_loss(confidence, partners, points.counts)
    right, matched, possible = judged[-1]
    metrics = {
        "loss": losses.mean(),
        "last_loss": losses[-1],
        "confidence_loss": sure,
        "precision": right / jnp.maximum(matched, 1),
        "recall": right / jnp.maximum(possible, 1),
    }
    return losses.mean() + sure, metrics


def confidence_loss(
    logits: Float[Array, "layers B 2 N"],
    partners: Int32[Array, "layers B 2 N"],
    counts: Int32[Array, "B 2"],
) -> Float[Array, ""]:
    """Cross-entropy of whether a layer says of a keypoint what the last one will say."""
    there = (jnp.arange(logits.shape[-1])[None, None] < counts[:, :, None])[None]
    same = (partners == partners[-1:]).astype(jnp.float32)
    losses = optax.sigmoid_binary_cross_entropy(logits, same)
    return jnp.where(there, losses, 0).sum() / (there.sum() * len(logits))


def _update(
    program: Program, state: TrainState, views: DeviceViews, key: Key[Array, ""]
) -> tuple[TrainState, Metrics]:
    """One step. Everything random comes from `fold_in(key, state.step)`."""
    batch = draw_batch(
        jax.random.fold_in(key, state.step),
        views,
        pairs=program.pairs,
        config=program.draw,
        by_lines=program.by_lines,
    )
    compute = jax.grad(functools.partial(batch_loss, program), has_aux=True)
    gradients, metrics = compute(state.params, batch)
    updates, opt_state = program.optimizer.update(gradients, state.opt_state, state.params)
    new_state = state.replace(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        opt_state=opt_state,
    )
    return new_state, {**metrics, "gradient_norm": optax.tree.norm(gradients)}


_METRICS = ("loss", "last_loss", "confidence_loss", "precision", "recall", "gradient_norm")


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _take_steps(
    program: Program, state: TrainState, views: DeviceViews, steps: Int32[Array, ""]
) -> tuple[TrainState, Metrics]:
    key = jax.random.key(program.seed)

    def take_step(_: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
        state, metrics = _update(program, carry[0], views, key)
        return state, {name: total + metrics[name] for name, total in carry[1].items()}

    start = (state, dict.fromkeys(_METRICS, jnp.zeros(())))
    state, totals = jax.lax.fori_loop(0, steps, take_step, start)
    return state, jax.tree.map(lambda total: total / steps, totals)
