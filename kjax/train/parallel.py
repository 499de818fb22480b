"""Training over devices and processes: the only file that uses `pmap` or `shard_map`.

State and data are replicated, the batch is split, and every device computes the same update. Each
pair is a function of (seed, step, index in the batch), so the result does not depend on the number
of devices, except for the rounding of sums over them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Integer, Key, UInt8

from kjax.data.appearance import change_views, mix_channels
from kjax.data.cutting.photographs import REC_601
from kjax.data.photo_points import Places, ResidentPhotos, draw_views
from kjax.data.pipelines import ResidentSet, draw_rows, gather_pairs
from kjax.data.sampler import check_shares
from kjax.model.descriptor import Descriptor
from kjax.runs.config import AugmentConfig
from kjax.train.augment import augment_pair
from kjax.train.distil import Teacher
from kjax.train.step import MEANS, Change, StepConfig, TrainState, create_state, train_step, update

AXIS = "devices"
_AUGMENT = 2
"""Number folded into a step's key for augmentation; dropout uses the key itself."""
_LIGHT = 100
"""Number folded into a pair's key for changed appearance."""
STEPS_DRAWN_AHEAD = 50
"""Number of steps whose pairs are sampled at once."""
_KEPT_PROGRAMS = 8
"""Number of compiled programs kept for equal trainings in the same process."""

Metrics = dict[str, Float[Array, "..."]]
Carry = tuple[TrainState, Metrics, Change, Integer[Array, ""]]
"""State, totals of the metrics, last change and remaining steps of a loop on the device."""


@dataclasses.dataclass(frozen=True)
class DescriptorProgram:
    """Everything about the training of a descriptor that is compiled.

    Attributes:
        model: the descriptor; its `axis_name` is set here.
        pairs: batch size, over all devices.
        shares: share of the batch for each part of the dataset.
        seeds: one, or several that train side by side in one vmapped program.
        devices: the devices to run on (default: all devices of all processes).
        teacher: teacher for distillation, if any.
        group: number of pairs of a batch that are drawn as neighbours in the table of points.
        start: initial variables for every seed (default: random). They are not compiled in.
        parallel: "pmap" or, with the same results, "mesh": `jax.shard_map` over a 1-D mesh.
    """

    model: Descriptor
    optimizer: optax.GradientTransformation
    pairs: int
    step: StepConfig
    augment: AugmentConfig
    shares: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0,)
    devices: tuple[jax.Device, ...] | None = None
    teacher: Teacher | None = None
    group: int = 1
    start: Any = dataclasses.field(default=None, compare=False)
    parallel: str = "pmap"

    def __post_init__(self) -> None:
        check_shares(self.pairs, len(self.devices or jax.devices()))

    @property
    def several_seeds(self) -> bool:
        """Whether every leaf of the state has a leading axis for the seeds."""
        return len(self.seeds) > 1


def initial_state(program: DescriptorProgram) -> TrainState:
    """Return the state before the first step, stacked for several seeds."""
    # On the host: the weights do not depend on the accelerator, and nothing is compiled for it.
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX is configured without CPUs
        host = None
    with jax.default_device(host):
        # Not vmapped: an initial weight must not depend on the other seeds.
        states = [
            jax.device_get(_begin(program.model, program.optimizer, seed, program.start))
            for seed in np.asarray(program.seeds, np.uint32)
        ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    # Placed as every later state will be, or the first step would compile twice.
    return jax.device_put(stacked if program.several_seeds else states[0], replicated(program))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _begin(
    model: Descriptor, optimizer: optax.GradientTransformation, seed: Integer[Array, ""], start: Any
) -> TrainState:
    patches = jnp.zeros((2, *model.patch_shape), jnp.float32)
    variables = model.init(jax.random.key(seed), patches)
    if start is not None:  # in the model's own precision
        if model.has_context:  # weights of a one-patch model lack its matrix
            start = {**start, "params": {**variables["params"], **start["params"]}}
        variables = jax.tree.map(lambda own, given: given.astype(own.dtype), variables, start)
    return create_state(optimizer, variables)


def make_resident_run(
    program: DescriptorProgram, *, one_dispatch: bool | None = None
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Return a function that takes many steps in one dispatch, on a resident dataset.

    With `one_dispatch` the device loops over the steps, otherwise the host. By default the device
    does, except on CPUs, where XLA runs convolutions inside loops several times slower.

    Returns:
        `run(state, data, steps)`: the state after `steps` more steps, and the metrics' means over
        them (in one dispatch, norms are those of the last step). One compiled program serves any
        number of steps and, unless there are several, any `seed`.
    """
    if one_dispatch is None:
        one_dispatch = jax.default_backend() != "cpu"
    many = _mapped(program, _resident_steps, (0, None, 0, None))
    single = _mapped(program, _resident_step, (0, None, 0))
    own_seeds = _seeds(program)

    def run(
        state: TrainState,
        data: ResidentSet | ResidentPhotos,
        steps: int,
        *,
        seed: int | None = None,
    ) -> tuple[TrainState, Metrics]:
        seeds = own_seeds if seed is None else jnp.uint32(seed)
        if one_dispatch:
            return many(state, data, seeds, np.int32(steps))
        return repeat(lambda s: single(s, data, seeds), state, steps)

    return run


def repeat(
    step: Callable[[TrainState], tuple[TrainState, Metrics]], state: TrainState, steps: int
) -> tuple[TrainState, Metrics]:
    """Take single steps and average their metrics, without waiting for any of them."""
    state, totals = step(state)
    for _ in range(steps - 1):
        state, metrics = step(state)
        totals = jax.tree.map(jnp.add, totals, metrics)
    return state, jax.tree.map(lambda total: total / steps, totals)


def local_devices(program: DescriptorProgram) -> list[jax.Device]:
    """Return the program's devices that belong to this process."""
    mine = jax.local_devices()
    return [device for device in program.devices or jax.devices() if device in mine]


def replicated(program: DescriptorProgram) -> jax.sharding.Sharding:
    """Return the sharding of state and data: replicated on this process's devices."""
    mesh = jax.sharding.Mesh(np.asarray(local_devices(program)), (AXIS,))
    return jax.sharding.NamedSharding(mesh, PartitionSpec())


@functools.lru_cache(_KEPT_PROGRAMS)
def make_batch_step(
    program: DescriptorProgram,
) -> Callable[[TrainState, Array], tuple[TrainState, Metrics]]:
    """Return `run(state, batch)`, one step on a batch of shape [devices, per_device, 2, 64, 64]."""
    mapped = _over_devices(
        program,
        lambda state, batch, seed: _on_pairs(
            program, train_step, state, _augmented(program, batch, seed, state.step), None, seed
        ),
        (None, 0, None),
    )
    return lambda state, batch: mapped(state, batch, _seeds(program))


def _resident_steps(
    program: DescriptorProgram,
    state: TrainState,
    data: ResidentSet | ResidentPhotos,
    seed: Integer[Array, ""],
    steps: Integer[Array, ""],
) -> tuple[TrainState, Metrics]:
    """Take steps and average their metrics; norms are those of the last step, to save time."""

    def take_step(i: Array, carry: Carry, rows: Array) -> Carry:
        state, totals, _, left = carry
        pairs, places = _cut(program, data, rows[i], seed, state.step)
        state, metrics, change = _on_pairs(program, update, state, pairs, places, seed)
        totals = {name: total + metrics[name] for name, total in totals.items()}
        return state, totals, change, left - 1

    def take_steps(carry: Carry) -> Carry:
        # Sampling pairs is many tiny kernels: sampling many steps at once takes the time of one.
        state, _, _, left = carry
        ahead = state.step + jnp.arange(STEPS_DRAWN_AHEAD)
        rows = jax.vmap(lambda step: _draw(program, data, seed, step))(ahead)
        taken = jnp.minimum(left, STEPS_DRAWN_AHEAD)
        return jax.lax.fori_loop(0, taken, functools.partial(take_step, rows=rows), carry)

    # Written out instead of by `eval_shape`: tracing a step takes a second.
    totals = dict.fromkeys(MEANS, jnp.zeros(()))
    nothing = Change(*(jax.tree.map(jnp.zeros_like, state.params) for _ in Change._fields))
    start = (state, totals, nothing, steps)
    state, totals, change, _ = jax.lax.while_loop(lambda carry: carry[-1] > 0, take_steps, start)
    means = jax.tree.map(lambda total: total / steps, totals)
    return state, means | change.norms(state.params)


def _resident_step(
    program: DescriptorProgram,
    state: TrainState,
    data: ResidentSet | ResidentPhotos,
    seed: Integer[Array, ""],
) -> tuple[TrainState, Metrics]:
    rows = _draw(program, data, seed, state.step)
    return _on_pairs(program, train_step, state, *_cut(program, data, rows, seed, state.step), seed)


def first_pairs(
    program: DescriptorProgram, data: ResidentSet | ResidentPhotos
) -> Float[Array, "pairs 2 *widths N N"]:
    """Return the augmented pairs of the first step, to look at."""

    def cut(data: ResidentSet | ResidentPhotos, seed: Array) -> Array:
        step = jnp.zeros((), jnp.int32)
        return _cut(program, data, _draw(program, data, seed, step), seed, step)[0]

    alone = jax.vmap(cut, in_axes=(None, None), axis_size=1, axis_name=AXIS)
    return jax.jit(alone)(data, jnp.uint32(program.seeds[0]))[0]


def _draw(
    program: DescriptorProgram,
    data: ResidentSet | ResidentPhotos,
    seed: Integer[Array, ""],
    step: Integer[Array, ""],
) -> Integer[Array, "local_pairs ..."]:
    """Return this device's share of a step's pairs: rows of patches, or indices in the batch."""
    shard, shards = jax.lax.axis_index(AXIS), jax.lax.axis_size(AXIS)
    if isinstance(data, ResidentPhotos):
        count = program.pairs // shards
        return shard * count + jnp.arange(count)
    return draw_rows(
        data,
        seed,
        step,
        pairs=program.pairs,
        group=program.group,
        shares=program.shares,
        shard=shard,
        shards=shards,
    )


def _cut(
    program: DescriptorProgram,
    data: ResidentSet | ResidentPhotos,
    rows: Integer[Array, "local_pairs ..."],
    seed: Integer[Array, ""],
    step: Integer[Array, ""],
) -> tuple[Float[Array, "local_pairs 2 *widths N N"], Places | None]:
    """Return the augmented pairs of `_draw`, and for photographs their places."""
    if not isinstance(data, ResidentPhotos):
        return _augmented(program, gather_pairs(data, rows), seed, step), None
    key = _augmentation_key(seed, step)
    model, group, config = program.model, program.group, program.augment
    views, places = draw_views(
        data, key, rows, size=model.patch_size, widths=model.context, group=group, config=config
    )
    if config.appearance:
        fold = jax.vmap(lambda index: jax.random.fold_in(jax.random.fold_in(key, index), _LIGHT))
        pairs = jax.vmap(lambda own, pair: change_views(own, pair, config))(fold(rows), views)
    else:
        pairs = mix_channels(jnp.moveaxis(views, 3, 0), REC_601)
    return pairs if model.has_context else pairs[:, :, 0], places


def _augmentation_key(seed: Integer[Array, ""], step: Integer[Array, ""]) -> Key[Array, ""]:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), _AUGMENT)


def _augmented(
    program: DescriptorProgram,
    patches: UInt8[Array, "local_pairs 2 64 64"],
    seed: Integer[Array, ""],
    step: Integer[Array, ""],
) -> Float[Array, "local_pairs 2 N N"]:
    """Augment this device's share of the patches."""
    # One key per pair of the whole batch; each device takes its own.
    first = jax.lax.axis_index(AXIS) * patches.shape[0]
    keys = jax.lax.dynamic_slice_in_dim(
        jax.random.split(_augmentation_key(seed, step), program.pairs), first, patches.shape[0]
    )
    return jax.vmap(
        lambda own_key, pair: augment_pair(
            own_key, pair, size=program.model.patch_size, config=program.augment
        )
    )(keys, patches)


def _on_pairs(
    program: DescriptorProgram,
    take_step: Callable[..., Any],
    state: TrainState,
    pairs: Float[Array, "local_pairs 2 *widths N N"],
    places: Places | None,
    seed: Integer[Array, ""],
) -> Any:
    """Return what `train_step` or `update` returns for this device's share of the batch."""
    return take_step(
        state,
        pairs,
        jax.random.key(seed),
        model=program.model.clone(axis_name=AXIS),
        optimizer=program.optimizer,
        config=program.step,
        taught=program.teacher.describe(pairs) if program.teacher else None,
        places=places,
    )


@functools.lru_cache(_KEPT_PROGRAMS)
def _mapped(
    program: DescriptorProgram, function: Callable[..., Any], seed_axes: tuple[int | None, ...]
) -> Callable[..., Any]:
    """Map `function(program, …)` over all devices, with replicated arguments, and over all seeds.

    `seed_axes` are the arguments' axes for the seeds, as in `jax.vmap`.
    """
    own = functools.partial(function, program)
    if program.several_seeds:
        own = jax.vmap(own, in_axes=seed_axes)
    return _over_devices(program, own, tuple(None for _ in seed_axes))


def _over_devices(
    program: DescriptorProgram, function: Callable[..., Any], in_axes: tuple[int | None, ...]
) -> Callable[..., Any]:
    """Map a function over all devices, with the same result on each; the first argument is donated.

    Arguments have a row per local device where `in_axes` is 0, and are replicated where it is None.
    Arguments and results lie on this process's devices only, as with `pmap`.
    """
    if program.parallel == "pmap":
        # `pmap` needs an argument that differs between devices, and we may have none.
        unused = np.zeros(len(local_devices(program)))
        mapped = jax.pmap(
            lambda _, *args: function(*args),
            axis_name=AXIS,
            in_axes=(0, *in_axes),
            out_axes=None,
            devices=program.devices,
            donate_argnums=1,
        )
        return functools.partial(mapped, unused)

    def on_shards(*args: Any) -> Any:
        rows = zip(args, in_axes, strict=True)
        return function(*(arg if axis is None else arg[0] for arg, axis in rows))

    mesh = jax.sharding.Mesh(np.asarray(program.devices or jax.devices()), (AXIS,))
    everywhere = PartitionSpec()
    specs = tuple(everywhere if axis is None else PartitionSpec(AXIS) for axis in in_axes)
    # Unchecked, as in `pmap`: otherwise gradients by replicated arguments would be summed twice.
    mapped = jax.jit(
        jax.shard_map(on_shards, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=False),
        donate_argnums=0,
    )

    def run(*args: Any) -> Any:
        results = mapped(*multihost_utils.host_local_array_to_global_array(args, mesh, specs))
        return multihost_utils.global_array_to_host_local_array(results, mesh, everywhere)

    return run


def _seeds(program: DescriptorProgram) -> Integer[Array, "*seeds"]:
    seeds = jnp.asarray(program.seeds, jnp.uint32)
    return seeds if program.several_seeds else seeds[0]
