import dataclasses

import jax
import numpy as np
import pytest
from models import make_model
from programs import NARROW, PAPERS_RATE, make_program, start, synthetic_set
from refusals import assert_refused

import kjax
from kjax.data.pipelines import draw_rows, gather_pairs, make_resident
from kjax.model.folding import fold
from kjax.runs.config import DistillConfig, LossConfig
from kjax.train.distil import Teacher
from kjax.train.parallel import make_batch_step, make_resident_run
from kjax.train.step import StepConfig

STEPS = 5


@pytest.fixture(scope="module")
def data():
    return make_resident(synthetic_set())


def train(program, data, steps=STEPS):
    state, metrics = make_resident_run(program)(start(program), data, steps)
    return jax.device_get(state), {k: np.asarray(value) for k, value in metrics.items()}, state


def assert_close(found, expected, limit):
    """Relative to the size of each array."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= limit * max(np.linalg.norm(b), 1e-12)


def taught_options():
    """Options of a program with a teacher, which amplifies every difference."""
    model, variables = make_model("hardnet", dtype="float64", dimension=16, **NARROW)
    loss, distill = LossConfig(anchor_swap=True), DistillConfig(weight=100.0)
    step = StepConfig(loss=loss, joint_batch_norm=True, distill=distill)
    return PAPERS_RATE | {"step": step, "teacher": Teacher(*fold(model, variables))}


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_neither_the_number_of_devices_nor_of_seeds_matters_and_a_teacher_reaches_the_loss(data):
    seeds, options = (3, 5), taught_options()
    single = make_program(seeds=seeds[:1], **options)
    run, alone = make_resident_run(single), []
    for seed in seeds:
        # Another seed than the program's can use what was compiled for it.
        begin = start(dataclasses.replace(single, seeds=(seed,)))
        state, expected = run(begin, data, STEPS, seed=seed)
        alone.append(jax.device_get(state))
        assert expected["loss"] > 10  # the margin alone is at most 3
        assert state.step == STEPS
    together, metrics, _ = train(make_program(seeds=seeds, **options), data)
    assert_close(metrics["loss"][1], expected["loss"], 1e-6)
    own = [jax.tree.map(lambda leaf, i=i: leaf[i], together) for i in range(2)]
    found, metrics, replicated = train(make_program(devices=4, seeds=seeds[1:], **options), data)
    assert_close(metrics["loss"], expected["loss"], 1e-6)
    for mine, other in zip((*own, found), (*alone, alone[1]), strict=True):
        assert_close((mine.params, mine.batch_stats), (other.params, other.batch_stats), 1e-6)
    kernels = [one.params["head"]["kernel"] for one in own]
    assert not np.allclose(*kernels)
    for leaf in jax.tree.leaves(replicated):
        first, *others = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        assert len(others) == 3
        for shard in others:
            np.testing.assert_array_equal(shard, first)


@pytest.mark.slow
def test_dispatches_of_any_length_add_up_on_the_device_and_on_the_host(data):
    program, ends = make_program(model=kjax.build("sum", **NARROW), learning_rate=1e-4), []
    for one_dispatch in (True, False):
        run = make_resident_run(program, one_dispatch=one_dispatch)
        whole, whole_metrics = run(start(program), data, 5)
        state, losses = start(program), []
        for steps in (1, 3, 1):
            state, metrics = run(state, data, steps)
            losses.append(float(metrics["loss"]))
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(whole))
        mean = np.average(losses, weights=(1, 3, 1))
        assert float(whole_metrics["loss"]) == pytest.approx(mean, rel=1e-5)
        ends.append(jax.device_get(whole))
    assert_close(*ends, 1e-5)


@pytest.mark.slow
def test_both_pipelines_train_alike(data):
    program = make_program(devices=2, dropout=0.3)
    expected, _, _ = train(program, data, steps=2)
    step = make_batch_step(program)
    state = start(program)
    for number in range(2):
        batch = gather_pairs(data, draw_rows(data, 0, number, pairs=8)).reshape(2, 4, 2, 64, 64)
        state, _ = step(state, batch)
    assert_close(jax.device_get(state), expected, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "seeds"), [(1, (3,)), (2, (3, 5)), (4, (3,))])
def test_a_mesh_trains_bit_for_bit_like_pmap(data, devices, seeds):
    ends = []
    for parallel in ("pmap", "mesh"):
        program = make_program(devices=devices, dropout=0.3, seeds=seeds, parallel=parallel)
        ends.append([make_resident_run(program, one_dispatch=True)(start(program), data, 3)])
        if len(seeds) == 1:
            batch = gather_pairs(data, draw_rows(data, 0, 0, pairs=8))
            rows = batch.reshape(devices, -1, 2, 64, 64)
            ends[-1].append(make_batch_step(program)(start(program), rows))
    for mine, other in zip(*map(jax.tree.leaves, ends), strict=True):
        assert mine.sharding == other.sharding
        np.testing.assert_array_equal(mine, other)


@pytest.mark.slow
def test_training_lowers_the_loss(data):
    step = StepConfig(loss=LossConfig(anchor_swap=True))
    program = make_program(steps=40, model=kjax.build("xy", s=1, patch_size=16), step=step)
    run = make_resident_run(program)
    state, first = run(start(program), data, 5)
    state, _ = run(state, data, 30)
    _, last = run(state, data, 5)
    assert last["loss"] < 0.8 * first["loss"]


def test_a_batch_that_cannot_be_shared_is_refused():
    assert_refused("9 pairs cannot be shared evenly by 4 devices", make_program, devices=4, pairs=9)
