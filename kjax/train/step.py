"""One training step, as a pure function of (state, batch, key)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, Num

from kjax.data.photo_points import Places, overlapping
from kjax.model.aggregation import l2_normalize
from kjax.model.descriptor import Descriptor
from kjax.runs.config import DistillConfig, LossConfig
from kjax.train.distil import Views, distillation_loss
from kjax.train.losses import Triplets, nested_pair_loss

MEANS = ("loss", "positive_distance", "negative_distance", "active_triplets")
"""Names of the metrics that are averaged over the batch."""


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes. Leaves are arrays, or their shapes or shardings."""

    step: Any
    """Number of steps taken, int32."""
    params: Any
    batch_stats: Any
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class StepConfig:
    """Settings of a step.

    Attributes:
        joint_batch_norm: send anchors and positives through the network as one batch. Otherwise, as
            in the HardNet release, each view is normalised by its own statistics.
        distill: settings of the distillation, used if there is a teacher.
    """

    loss: LossConfig = LossConfig()  # noqa: RUF009  (it is frozen)
    joint_batch_norm: bool = False
    distill: DistillConfig = DistillConfig()  # noqa: RUF009  (it is frozen, too)


def create_state(optimizer: optax.GradientTransformation, variables: Any) -> TrainState:
    """Return the state before the first step, from `model.init`'s variables."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        opt_state=optimizer.init(variables["params"]),
    )


def loss_and_stats(
    params: Any,
    batch_stats: Any,
    pairs: Num[Array, "pairs 2 *widths N N"],
    key: Key[Array, ""],
    *,
    model: Descriptor,
    config: StepConfig,
    taught: Views | None = None,
    places: Places | None = None,
) -> tuple[Float[Array, ""], tuple[Triplets, Any]]:
    """Return the mean loss over the batch, its triplets and the new running statistics.

    With `model.axis_name`, descriptors of all devices are gathered before mining.
    """

    def describe(patches: Array, views: int) -> tuple[Array, Any]:
        descriptors, updates = model.apply(
            {"params": params, "batch_stats": batch_stats},
            patches,
            train=True,
            views=views,
            normalize=False,
            mutable=["batch_stats"],
            rngs={"dropout": key},
        )
        return descriptors, updates["batch_stats"]

    if config.joint_batch_norm:
        # Pair by pair, so that a patch's index in the batch does not depend on how it is split.
        both, new_stats = describe(pairs.reshape(-1, *pairs.shape[2:]), 1)
        raw = [both[0::2], both[1::2]]
    else:
        # One pass through the network, with separate statistics for each view.
        both, new_stats = describe(jnp.concatenate([pairs[:, 0], pairs[:, 1]]), 2)
        raw = jnp.split(both, 2)
    anchors, positives = _over_devices(model, raw)
    if places is not None and model.axis_name is not None:
        places = jax.lax.all_gather(places, model.axis_name, tiled=True)
    excluded = None if places is None else overlapping(places)
    triplets = nested_pair_loss(anchors, positives, config.loss, excluded=excluded)
    loss = triplets.loss.mean()
    if taught is not None:
        student = l2_normalize(anchors), l2_normalize(positives)
        teacher = _over_devices(model, taught)
        apart = distillation_loss(student, teacher, config.distill.match)
        loss = loss + config.distill.weight * apart.mean()
    return loss, (triplets, new_stats)


def _over_devices(model: Descriptor, views: Sequence[Array]) -> Views:
    """Return both views of the whole batch, gathered if it is split over devices."""
    if model.axis_name is not None:
        views = [jax.lax.all_gather(view, model.axis_name, tiled=True) for view in views]
    anchors, positives = views
    return anchors, positives


class Change(NamedTuple):
    """Gradients and updates of one step."""

    gradients: Any
    updates: Any

    def norms(self, params: Any) -> dict[str, Float[Array, ""]]:
        """Return the norms of gradients, updates and parameters."""
        return {
            "gradient_norm": optax.tree.norm(self.gradients),
            "update_norm": optax.tree.norm(self.updates),
            "parameter_norm": optax.tree.norm(params),
        }


def train_step(
    state: TrainState,
    pairs: Num[Array, "pairs 2 *widths N N"],
    key: Key[Array, ""],
    *,
    model: Descriptor,
    **options: Any,
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Take one step like `update`; return the new state, and metrics with norms."""
    new_state, metrics, change = update(state, pairs, key, model=model, **options)
    return new_state, metrics | change.norms(new_state.params)


def update(
    state: TrainState,
    pairs: Num[Array, "pairs 2 *widths N N"],
    key: Key[Array, ""],
    *,
    model: Descriptor,
    optimizer: optax.GradientTransformation,
    config: StepConfig,
    taught: Views | None = None,
    places: Places | None = None,
) -> tuple[TrainState, dict[str, Float[Array, ""]], Change]:
    """Take one step. All randomness comes from `fold_in(key, state.step)`.

    `pairs` are patches of distinct 3-D points (of this device), `key` is the run's, the same at
    every step and on every device, `taught` holds a teacher's descriptors of the pairs, and pairs
    whose `places` overlap are not negatives of each other. With an `axis_name`, the model must run
    under that mapped axis; the result is the same for any number of devices, up to rounding.

    Returns the new state, scalar metrics on the device, and the change (its norms take extra time).
    """
    step_key = jax.random.fold_in(key, state.step)
    compute = jax.value_and_grad(loss_and_stats, has_aux=True)
    (loss, (triplets, new_stats)), gradients = compute(
        state.params,
        state.batch_stats,
        pairs,
        step_key,
        model=model,
        config=config,
        taught=taught,
        places=places,
    )
    if model.axis_name is not None:
        # Every device computes the loss of the whole batch, so the gradient that flows back through
        # the gathered descriptors arrives once per device, at each device's share of the patches.
        gradients = jax.lax.pmean(gradients, model.axis_name)
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
        # For a margin of 1, whatever the loss: some losses are never exactly zero.
        "active_triplets": (1 + triplets.positive > triplets.negative).mean(dtype=loss.dtype),
    }
    return new_state, metrics, Change(gradients, updates)
