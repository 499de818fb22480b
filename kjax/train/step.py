"""One training step, as a pure function of (state, batch, key)."""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, Num

from kjax.architecture import Descriptor
from kjax.losses import Triplets, hardest_in_batch_triplets


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes."""

    step: Int[Array, ""]
    params: Any
    batch_stats: Any
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class StepConfig:
    """What a step does, besides the model and the optimiser.

    Attributes:
        margin: of the triplet loss.
        anchor_swap: HardNet's mining rule rather than the paper's.
        joint_batch_norm: send anchors and positives through the network as one batch; otherwise,
            as in the HardNet release, as two, each normalised by its own statistics.
    """

    margin: float = 1.0
    anchor_swap: bool = False
    joint_batch_norm: bool = False


def create_state(optimizer: optax.GradientTransformation, variables: Any) -> TrainState:
    """The state before the first step, from `model.init`'s variables."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        opt_state=optimizer.init(variables["params"]),
    )


def describe_pairs(
    model: Descriptor,
    variables: Any,
    pairs: Num[Array, "pairs 2 N N"],
    key: Key[Array, ""],
    *,
    joint_batch_norm: bool,
) -> tuple[Float[Array, "pairs dim"], Float[Array, "pairs dim"], Any]:
    """Descriptors of anchors and positives in training mode, and the new running statistics."""

    def describe(patches: Array, stats: Any, view: int) -> tuple[Array, Any]:
        descriptors, updates = model.apply(
            {"params": variables["params"], "batch_stats": stats},
            patches,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(key, view)},
        )
        return descriptors, updates["batch_stats"]

    stats = variables["batch_stats"]
    anchors, positives = pairs[:, 0], pairs[:, 1]
    if joint_batch_norm:
        both, stats = describe(jnp.concatenate([anchors, positives]), stats, 0)
        described_anchors, described_positives = jnp.split(both, 2)
    else:
        described_anchors, stats = describe(anchors, stats, 0)
        described_positives, stats = describe(positives, stats, 1)
    return described_anchors, described_positives, stats


def loss_and_stats(
    params: Any,
    batch_stats: Any,
    pairs: Num[Array, "pairs 2 N N"],
    key: Key[Array, ""],
    *,
    model: Descriptor,
    config: StepConfig,
) -> tuple[Float[Array, ""], tuple[Triplets, Any]]:
    """Mean loss over the batch, with its triplets and the new running statistics."""
    anchors, positives, new_stats = describe_pairs(
        model,
        {"params": params, "batch_stats": batch_stats},
        pairs,
        key,
        joint_batch_norm=config.joint_batch_norm,
    )
    triplets = hardest_in_batch_triplets(
        anchors, positives, margin=config.margin, anchor_swap=config.anchor_swap
    )
    return triplets.loss.mean(), (triplets, new_stats)


def train_step(
    state: TrainState,
    pairs: Num[Array, "pairs 2 N N"],
    key: Key[Array, ""],
    *,
    model: Descriptor,
    optimizer: optax.GradientTransformation,
    config: StepConfig,
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """One update. Everything random comes from `fold_in(key, state.step)`.

    Args:
        state: the state before the step.
        pairs: anchor and positive patches of distinct 3-D points.
        key: the run's key, the same at every step.
        model: the descriptor to train.
        optimizer: made by `kjax.optim.torch_sgd` or any optax transformation.
        config: what else the step does.

    Returns:
        The state after the step, and scalar metrics that stay on the device.
    """
    step_key = jax.random.fold_in(key, state.step)
    compute = jax.value_and_grad(loss_and_stats, has_aux=True)
    (loss, (triplets, new_stats)), gradients = compute(
        state.params, state.batch_stats, pairs, step_key, model=model, config=config
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    new_state = TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        batch_stats=new_stats,
        opt_state=opt_state,
    )
    metrics = {
        "loss": loss,
        "positive_distance": triplets.positive.mean(),
        "negative_distance": triplets.negative.mean(),
        "active_triplets": (triplets.loss > 0).mean(),
        "gradient_norm": optax.tree.norm(gradients),
        "update_norm": optax.tree.norm(updates),
        "parameter_norm": optax.tree.norm(state.params),
    }
    return new_state, metrics
