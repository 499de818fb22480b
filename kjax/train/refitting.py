"""A linear map of descriptors, learned of some that are computed once: the last layer refitted.

The map is any, or a turn, which leaves the distances between whole descriptors as they are. What a
turn changes is what the first entries, normalised, are worth by themselves: `config.loss.nested`
trains a network for that from the start, beside its own task; here the network stays.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Float32, Float64
from tqdm import tqdm

from kjax.errors import InputError
from kjax.runs.config import LossConfig
from kjax.train.losses import nested_pair_loss

LEARNING_RATE = 3e-3
"""Adam's, at first."""
BATCH = 1024
"""Points of which each is told from all others, if there are so many."""
STEPS = 1000
"""Of learning."""

Views = Float32[np.ndarray, "views points dim"]
"""Descriptors of some views of each point; the first one is the reference of the others."""


def check_widths(widths: Sequence[int], dimension: int, *, least: int = 0) -> tuple[int, ...]:
    """The widths in order.

    Args:
        widths: numbers of first entries.
        dimension: of whole descriptors.
        least: how many widths there must be.

    Raises:
        InputError: one of them is no shorter descriptor, or there are too few.
    """
    for width in widths:
        if not 1 < width < dimension:
            raise InputError(f"the first {width} numbers: give 2 to {dimension - 1}")
    if len(set(widths)) < max(least, len(widths)):
        raise InputError(f"widths {tuple(widths)}: give different ones, and at least {least}")
    return tuple(sorted(widths))


def learn_map(
    views: Views,
    widths: Sequence[int],
    *,
    turn: bool = False,
    pull: float = 0.0,
    learning_rate: float = LEARNING_RATE,
    batch: int = BATCH,
    steps: int = STEPS,
    seed: int = 0,
    progress: bool = False,
) -> Float64[np.ndarray, "dim dim"]:
    """The linear map after which descriptors match best; its columns are the new entries.

    Args:
        views: of unit length.
        widths: how many first entries shall be descriptors.
        turn: only turn descriptors; otherwise all entries count as one width more.
        pull: how strongly the map is drawn to one that changes nothing, from which it then starts:
            the weight of the squared distance.
        learning_rate: Adam's, at first.
        batch: points in a step, if there are so many.
        steps: of learning.
        seed: of what is drawn.
        progress: show a bar.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    start = np.eye(views.shape[2]) if pull else agreeing_directions(views)
    free = jnp.asarray(start, jnp.float32)
    state = optimizer.init(free)
    loss = LossConfig(nested=tuple(widths))
    step = jax.jit(functools.partial(_step, loss=loss, turn=turn, pull=pull, optimizer=optimizer))
    rng = np.random.default_rng(seed)
    points = views.shape[1]
    for _ in tqdm(range(steps), "refitting", unit="step", disable=not progress):
        chosen = rng.choice(points, min(batch, points), replace=False)
        others = rng.integers(1, len(views), len(chosen))
        free, state = step(free, state, views[0, chosen], views[others, chosen])
    learned = np.asarray(free, np.float64)
    return np.linalg.qr(learned)[0] if turn else learned


def agreeing_directions(views: Views) -> Float64[np.ndarray, "dim dim"]:
    """Directions, as columns, by how much views of one point have in common along them."""
    first, others = views[0].astype(np.float64), views[1:].mean(axis=0, dtype=np.float64)
    shared = first.T @ others
    _, directions = np.linalg.eigh(shared + shared.T)
    return directions[:, ::-1]


def _step(
    free: Float[Array, "dim dim"],
    state: optax.OptState,
    anchors: Float[Array, "batch dim"],
    positives: Float[Array, "batch dim"],
    *,
    loss: LossConfig,
    turn: bool,
    pull: float,
    optimizer: optax.GradientTransformation,
) -> tuple[Array, optax.OptState]:
    def mean_loss(free: Array) -> Array:
        # Column by column: the first entries do not depend on those behind them.
        matrix = jnp.linalg.qr(free)[0] if turn else free
        # The loss of whole descriptors is the same whatever the turn.
        own = nested_pair_loss(anchors @ matrix, positives @ matrix, loss).loss.mean()
        return own + pull * jnp.sum(jnp.square(free - jnp.eye(len(free))))

    updates, state = optimizer.update(jax.grad(mean_loss)(free), state, free)
    return optax.apply_updates(free, updates), state
