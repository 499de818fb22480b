"""Refit the last layer: learn a linear map of descriptors that are computed once.

The map is free, or a rotation, which keeps the distances between whole descriptors. A rotation
changes how well the leading entries match on their own, once normalised. `config.loss.nested`
trains a network for that from the start; here the network stays.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Float32, Float64
from tqdm import tqdm

from kjax.runs.config import LossConfig
from kjax.train.losses import nested_pair_loss

LEARNING_RATE = 3e-3
"""Initial learning rate of Adam."""
BATCH = 1024
"""Maximum number of points in a batch; each is compared with all others."""
STEPS = 1000

Views = Float32[np.ndarray, "views points dim"]
"""Descriptors of some views of each point; the first view is the reference."""


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
    """Learn the linear map after which descriptors match best; its columns are the new entries.

    `views` are unit vectors. `widths` are the numbers of leading entries that shall be descriptors
    themselves; unless the map may only rotate (`turn`), all entries count as one more width. `pull`
    is the weight of the squared distance to the identity. If positive, the map starts there.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    loss = LossConfig(nested=tuple(widths))

    @jax.jit
    def step(
        free: Float[Array, "dim dim"],
        state: optax.OptState,
        anchors: Float[Array, "batch dim"],
        positives: Float[Array, "batch dim"],
    ) -> tuple[Array, optax.OptState]:
        def mean_loss(free: Array) -> Array:
            # QR goes column by column: leading entries do not depend on later ones.
            matrix = jnp.linalg.qr(free)[0] if turn else free
            own = nested_pair_loss(anchors @ matrix, positives @ matrix, loss).loss.mean()
            return own + pull * jnp.sum(jnp.square(free - jnp.eye(len(free))))

        updates, state = optimizer.update(jax.grad(mean_loss)(free), state, free)
        return optax.apply_updates(free, updates), state

    start = np.eye(views.shape[2]) if pull else agreeing_directions(views)
    free = jnp.asarray(start, jnp.float32)
    state = optimizer.init(free)
    rng = np.random.default_rng(seed)
    points = views.shape[1]
    for _ in tqdm(range(steps), "refitting", unit="step", disable=not progress):
        chosen = rng.choice(points, min(batch, points), replace=False)
        others = rng.integers(1, len(views), len(chosen))
        free, state = step(free, state, views[0, chosen], views[others, chosen])
    learned = np.asarray(free, np.float64)
    return np.linalg.qr(learned)[0] if turn else learned


def agreeing_directions(views: Views) -> Float64[np.ndarray, "dim dim"]:
    """Return directions, as columns, sorted by how well views of the same point agree."""
    first, others = views[0].astype(np.float64), views[1:].mean(axis=0, dtype=np.float64)
    shared = first.T @ others
    _, directions = np.linalg.eigh(shared + shared.T)
    return directions[:, ::-1]
