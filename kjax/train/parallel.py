"""Training over devices and processes: the one file that knows `pmap`.

State and data are replicated, the batch is shared, and every device computes the same update. Each
part of the batch is a function of (seed, step, place in the batch), so the result does not depend
on how many devices there are.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Integer, Key, UInt8

from kjax.architecture import Descriptor
from kjax.augment import AugmentConfig, augment_pair
from kjax.data.resident import ResidentSet, resident_pairs
from kjax.errors import InputError
from kjax.train.step import StepConfig, TrainState, create_state, train_step

AXIS = "devices"
# What a step's key is folded with for the augmentation; dropout takes the key as it is.
_AUGMENT = 2

Metrics = dict[str, Float[Array, "..."]]


@dataclasses.dataclass(frozen=True)
class Programme:
    """Everything about a training run that is compiled into it.

    Attributes:
        model: the descriptor; its `axis_name` is set here.
        optimizer: any optax transformation.
        pairs: in a batch, over all devices.
        step: mining and BatchNorm rules.
        augment: how patches vary.
        seeds: one, or several that train side by side in one vmapped programme.
        devices: the devices to run on; all of all processes by default.
    """

    model: Descriptor
    optimizer: optax.GradientTransformation
    pairs: int
    step: StepConfig
    augment: AugmentConfig
    seeds: tuple[int, ...] = (0,)
    devices: tuple[jax.Device, ...] | None = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise InputError("a run needs at least one seed")
        count = len(self.devices or jax.devices())
        if self.pairs % count:
            raise InputError(
                f"{self.pairs} pairs cannot be shared evenly by {count} devices: "
                f"choose a multiple of {count}"
            )

    @property
    def several_seeds(self) -> bool:
        """Whether every leaf of the state has a leading axis for the seeds."""
        return len(self.seeds) > 1


def initial_state(programme: Programme) -> TrainState:
    """The state before the first step; with several seeds, theirs stacked."""
    size = programme.model.patch_size
    patches = jnp.zeros((2, size, size))

    def start(seed: Array) -> TrainState:
        return create_state(programme.optimizer, programme.model.init(_run_key(seed), patches))

    seeds = _seeds(programme)
    # Not vmapped: an initial weight should not depend on which other seeds are there.
    states = [jax.jit(start)(seed) for seed in jnp.atleast_1d(seeds)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    # Placed as every later state will be, or the first step would compile twice.
    return jax.device_put(stacked if programme.several_seeds else states[0], replicated(programme))


def make_resident_run(
    programme: Programme, *, one_dispatch: bool | None = None
) -> Callable[[TrainState, ResidentSet, int], tuple[TrainState, Metrics]]:
    """Many steps in one dispatch, on a set that lives on the devices.

    Args:
        programme: what is trained.
        one_dispatch: whether the device loops over the steps, or the host. By default the device
            does, except on CPUs, where XLA runs convolutions inside loops several times slower.

    Returns:
        `run(state, data, steps)`: the state after `steps` more steps, and the metrics' means over
        them. Any number of steps runs the same compiled programme.
    """
    if one_dispatch is None:
        one_dispatch = jax.default_backend() != "cpu"
    on_device = _vmapped(
        lambda *args: _resident_steps(programme, *args, looped=one_dispatch),
        programme,
        (0, None, 0, None),
    )
    # `pmap` wants an argument that differs from device to device, and we have none.
    unused = np.zeros(len(local_devices(programme)))
    mapped = jax.pmap(
        lambda state, data, seeds, steps, _: on_device(state, data, seeds, steps),
        axis_name=AXIS,
        in_axes=(None, None, None, None, 0),
        out_axes=None,
        devices=programme.devices,
        donate_argnums=0,
    )

    def dispatch(state: TrainState, data: ResidentSet, steps: int) -> tuple[TrainState, Metrics]:
        return mapped(state, data, _seeds(programme), jnp.asarray(steps, jnp.int32), unused)

    if one_dispatch:
        return dispatch
    return lambda state, data, steps: repeat(lambda s: dispatch(s, data, 1), state, steps)


def repeat(
    step: Callable[[TrainState], tuple[TrainState, Metrics]], state: TrainState, steps: int
) -> tuple[TrainState, Metrics]:
    """Takes single steps and averages their metrics, without waiting for any of them."""
    state, totals = step(state)
    for _ in range(steps - 1):
        state, metrics = step(state)
        totals = jax.tree.map(jnp.add, totals, metrics)
    return state, jax.tree.map(lambda total: total / steps, totals)


def local_devices(programme: Programme) -> list[jax.Device]:
    """This process's devices among the programme's."""
    mine = jax.local_devices()
    return [device for device in programme.devices or jax.devices() if device in mine]


def replicated(programme: Programme) -> jax.sharding.Sharding:
    """Where state and data lie: whole on each of this process's devices."""
    mesh = jax.sharding.Mesh(np.asarray(local_devices(programme)), (AXIS,))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def make_batch_step(
    programme: Programme,
) -> Callable[[TrainState, Array], tuple[TrainState, Metrics]]:
    """One step on a batch [devices, per_device, 2, 64, 64] that a pipeline brings.

    Returns:
        `run(state, batch)`: the state after the step, and its metrics.
    """
    if programme.several_seeds:
        raise InputError("several seeds side by side need the resident pipeline")
    mapped = jax.pmap(
        lambda state, batch, seed: _step_on_patches(programme, state, batch, _run_key(seed)),
        axis_name=AXIS,
        in_axes=(None, 0, None),
        out_axes=None,
        devices=programme.devices,
        donate_argnums=0,
    )
    return lambda state, batch: mapped(state, batch, _seeds(programme))


def _resident_steps(
    programme: Programme,
    state: TrainState,
    data: ResidentSet,
    seed: Integer[Array, ""],
    steps: Integer[Array, ""],
    *,
    looped: bool,
) -> tuple[TrainState, Metrics]:
    key = _run_key(seed)

    def step(state: TrainState) -> tuple[TrainState, Metrics]:
        patches = resident_pairs(
            data,
            seed,
            state.step,
            pairs=programme.pairs,
            shard=jax.lax.axis_index(AXIS),
            shards=jax.lax.axis_size(AXIS),
        )
        return _step_on_patches(programme, state, patches, key)

    if not looped:
        return step(state)

    def body(_: Any, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
        state, totals = carry
        state, metrics = step(state)
        return state, jax.tree.map(jnp.add, totals, metrics)

    _, shapes = jax.eval_shape(step, state)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    state, totals = jax.lax.fori_loop(0, steps, body, (state, zeros))
    return state, jax.tree.map(lambda total: total / steps, totals)


def _step_on_patches(
    programme: Programme,
    state: TrainState,
    patches: UInt8[Array, "local_pairs 2 64 64"],
    key: Key[Array, ""],
) -> tuple[TrainState, Metrics]:
    """Augments this device's share of the batch and takes a step."""
    augment_key = jax.random.fold_in(jax.random.fold_in(key, state.step), _AUGMENT)
    # One key per pair of the whole batch, of which each device takes its own.
    first = jax.lax.axis_index(AXIS) * patches.shape[0]
    keys = jax.lax.dynamic_slice_in_dim(
        jax.random.split(augment_key, programme.pairs), first, patches.shape[0]
    )
    augmented = jax.vmap(
        lambda own_key, pair: augment_pair(
            own_key, pair, size=programme.model.patch_size, config=programme.augment
        )
    )(keys, patches)
    return train_step(
        state,
        augmented,
        key,
        model=programme.model.clone(axis_name=AXIS),
        optimizer=programme.optimizer,
        config=programme.step,
    )


def _vmapped(
    function: Callable[..., Any], programme: Programme, in_axes: tuple[int | None, ...]
) -> Callable[..., Any]:
    return jax.vmap(function, in_axes=in_axes) if programme.several_seeds else function


def _seeds(programme: Programme) -> Integer[Array, "*seeds"]:
    seeds = jnp.asarray(programme.seeds, jnp.uint32)
    return seeds if programme.several_seeds else seeds[0]


def _run_key(seed: Integer[Array, ""]) -> Key[Array, ""]:
    return jax.random.key(seed)
