"""Optimisation as the HardNet release does it: torch's SGD and a linear decay to zero."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool


class MomentumState(NamedTuple):
    """The momentum buffer, and whether it is still empty."""

    buffer: Any
    empty: Bool[Array, ""]


def scale_by_torch_momentum(momentum: float, dampening: float) -> optax.GradientTransformation:
    """Update by the buffer ← momentum·buffer + (1−dampening)·gradient.

    The first gradient enters undampened, which `optax.trace` cannot express: with dampening 0.9 it
    weighs ten times as much as any later one.
    """

    def init(params: Any) -> MomentumState:
        return MomentumState(jax.tree.map(jnp.zeros_like, params), jnp.asarray(True))

    def update(
        gradients: Any, state: MomentumState, params: Any = None
    ) -> tuple[Any, MomentumState]:
        del params
        share = jnp.where(state.empty, 1.0, 1.0 - dampening)
        buffer = jax.tree.map(lambda b, g: momentum * b + share * g, state.buffer, gradients)
        return buffer, MomentumState(buffer, jnp.asarray(False))

    return optax.GradientTransformation(init, update)


def torch_sgd(
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: float = 0.9,
    dampening: float = 0.9,
    weight_decay: float = 1e-4,
) -> optax.GradientTransformation:
    """Like torch.optim.SGD: coupled weight decay, then momentum with dampening, then the rate.

    The HardNet release's learning rate of 10 goes with dampening 0.9, so a steady gradient moves
    the weights by 10·(1−0.9)/(1−0.9) times itself; without dampening it would be ten times that.
    """
    return optax.chain(
        optax.add_decayed_weights(weight_decay),
        scale_by_torch_momentum(momentum, dampening),
        optax.scale_by_learning_rate(learning_rate),
    )


@functools.cache
def linear_decay(learning_rate: float, steps: int, warmup: int = 0) -> optax.Schedule:
    """Return the schedule from `learning_rate` to zero after `steps` steps; first it may rise."""
    decay = optax.linear_schedule(learning_rate, 0.0, steps - warmup)
    if not warmup:
        return decay
    rise = optax.linear_schedule(learning_rate / warmup, learning_rate, warmup - 1)
    return optax.join_schedules([rise, decay], [warmup])
