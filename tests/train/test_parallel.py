import dataclasses
import functools

import jax
import numpy as np
import pytest
from programs import NARROW, PAPERS_RATE, make_program, start, synthetic_set

import kjax
from kjax.data.pipelines import draw_rows, gather_pairs, make_resident
from kjax.errors import InputError
from kjax.runs.config import LossConfig
from kjax.train.parallel import make_batch_step, make_resident_run
from kjax.train.step import StepConfig

STEPS = 5


@pytest.fixture(scope="module")
def data():
    return make_resident(synthetic_set())


def train(program, data, steps=STEPS):
    state, metrics = make_resident_run(program)(start(program), data, steps)
    return (
        jax.device_get(state),
        {name: np.asarray(value) for name, value in metrics.items()},
        state,
    )


def assert_close(found, expected, limit):
    """Relative to the size of each array."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= limit * max(np.linalg.norm(b), 1e-12)


def compare_device_counts(data, limit, *, devices, **options):
    expected, expected_metrics, _ = train(make_program(devices=1, **options), data)
    assert expected.step == STEPS
    found, metrics, replicated = train(make_program(devices=devices, **options), data)
    assert_close((found.params, found.batch_stats), (expected.params, expected.batch_stats), limit)
    assert_close(metrics["loss"], expected_metrics["loss"], limit)
    for leaf in jax.tree.leaves(replicated):
        shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(shards) == devices
        for shard in shards[1:]:
            np.testing.assert_array_equal(shard, shards[0])


@pytest.mark.usefixtures("double_precision")
def test_the_number_of_devices_does_not_matter(data):
    step = StepConfig(loss=LossConfig(anchor_swap=True), joint_batch_norm=True)
    compare_device_counts(data, 1e-6, devices=4, **PAPERS_RATE | {"step": step})


OF_TWO_DEVICES = {
    "dropout": 0.3,
    "learning_rate": 1e-4,
    "step": StepConfig(loss=LossConfig(anchor_swap=True), joint_batch_norm=True),
}


@functools.cache
def looping_run(one_dispatch):
    model = kjax.build("sum", **NARROW)  # on CPUs, convolutions inside loops are slow
    program = make_program(model=model, learning_rate=1e-4)
    return program, make_resident_run(program, one_dispatch=one_dispatch)


@pytest.mark.parametrize("one_dispatch", [True, False])
def test_dispatches_of_any_length_add_up(data, one_dispatch):
    program, run = looping_run(one_dispatch)
    whole, whole_metrics = run(start(program), data, 5)
    state = start(program)
    losses = []
    for steps in (1, 3, 1):
        state, metrics = run(state, data, steps)
        losses.append(float(metrics["loss"]))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(whole))
    mean = np.average(losses, weights=(1, 3, 1))
    assert float(whole_metrics["loss"]) == pytest.approx(mean, rel=1e-5)


def test_looping_on_the_device_or_the_host_is_the_same(data):
    states = []
    for one_dispatch in (True, False):
        program, run = looping_run(one_dispatch)
        states.append(jax.device_get(run(start(program), data, 3)[0]))
    assert_close(states[0], states[1], 1e-5)


def test_both_pipelines_train_alike(data):
    program = make_program(devices=2, **OF_TWO_DEVICES)
    expected, _, _ = train(program, data, steps=2)
    step = make_batch_step(program)
    state = start(program)
    for number in range(2):
        batch = gather_pairs(data, draw_rows(data, 0, number, pairs=8)).reshape(2, 4, 2, 64, 64)
        state, _ = step(state, batch)
    assert_close(jax.device_get(state), expected, 1e-6)


@pytest.mark.usefixtures("double_precision")
def test_a_vmapped_seed_equals_the_seed_alone(data):
    seeds = (3, 5)
    together, metrics, _ = train(make_program(seeds=seeds, **PAPERS_RATE), data)
    assert metrics["loss"].shape == (2,)
    single = make_program(seeds=seeds[:1], **PAPERS_RATE)
    run = make_resident_run(single)
    for i, seed in enumerate(seeds):
        # Another seed than the program's can use what was compiled for it.
        begin = start(dataclasses.replace(single, seeds=(seed,)))
        alone = jax.device_get(run(begin, data, STEPS, seed=seed)[0])
        own = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        assert_close((own.params, own.batch_stats), (alone.params, alone.batch_stats), 1e-6)
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], together.params) for i in range(2))
    assert not np.allclose(first["head"]["kernel"], second["head"]["kernel"])


@pytest.mark.slow
def test_training_lowers_the_loss(data):
    program = make_program(
        steps=40,
        model=kjax.build("xy", s=1, patch_size=16),
        step=StepConfig(loss=LossConfig(anchor_swap=True)),
    )
    run = make_resident_run(program)
    state, first = run(start(program), data, 5)
    state, _ = run(state, data, 30)
    _, last = run(state, data, 5)
    assert last["loss"] < 0.8 * first["loss"]


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(InputError, match="9 pairs cannot be shared evenly by 4 devices"):
        make_program(devices=4, pairs=9)
