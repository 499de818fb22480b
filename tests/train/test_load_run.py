"""Models from a workdir that is filled by the functions of a run, without training."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model
from programs import contents, make_config
from programs import refusal as refused

from kjax.runs.checkpoint import Checkpoints
from kjax.runs.workdir import claim_workdir
from kjax.train.run import make_program, save_weights
from kjax.train.step import create_state
from kjax.weights.source import load_run, load_source

MODEL = {"patch_size": 8, "channels": (4, 4, 4, 4, 8, 8), "dimension": 16}


def make_run(workdir, *settings):
    """The program of a run that has just started in a folder."""
    config = make_config("embedded", "data.train=('a/liberty','embedded')", "seed=7", *settings)
    with claim_workdir(workdir, config):
        return make_program(config)


def make_state(program, *, step):
    """A state that differs between steps and seeds."""
    _, variables = make_model("polar", **MODEL)
    by_seed = [
        jax.tree.map(lambda leaf, i=i: np.asarray(leaf) + np.float32(step + i), variables)
        for i in range(2)
    ]
    if program.several_seeds:
        variables = jax.tree.map(lambda *leaves: np.stack(leaves), *by_seed)
    else:
        variables = by_seed[0]
    return create_state(program.optimizer, variables).replace(step=jnp.asarray(step, jnp.int32))


def save_checkpoint(workdir, program, *, step, state=None):
    checkpoints = Checkpoints(workdir / "checkpoints", keep=2, best_metric=None)
    checkpoints.save(step, make_state(program, step=step) if state is None else state)
    checkpoints.close()


def bias(trained):
    return float(trained.variables["params"]["head"]["bias"][0])


def test_the_latest_checkpoint_and_then_the_final_weights(tmp_path, rng):
    workdir = tmp_path / "first"
    program = make_run(workdir)
    start = float(make_state(program, step=0).params["head"]["bias"][0])
    for step in (2, 10):
        save_checkpoint(workdir, program, step=step)
    (workdir / "checkpoints" / "12.orbax-checkpoint-tmp").mkdir()  # being written
    before = contents(workdir)
    (trained,) = load_run(workdir)
    assert contents(workdir) == before
    assert bias(trained) == pytest.approx(start + 10)
    assert (trained.path.name, trained.seed) == ("first", 7)
    assert trained.info.train_sets == ("liberty", "embedded")
    assert trained.config["model"]["head"] == trained.model.head == "polar"
    patches = rng.integers(0, 255, (2, 8, 8), np.uint8)
    assert jax.jit(trained.model.apply)(trained.variables, patches).shape == (2, 16)
    save_weights(workdir, program, make_state(program, step=20))
    assert bias(load_run(str(workdir))[0]) == pytest.approx(start + 20)
    alone = load_source(str(workdir / "weights.npz"))
    assert (alone.model.head, alone.extent) == ("polar", trained.extent) != ("polar", 12)


def test_several_seeds(tmp_path):
    program = make_run(tmp_path, "seeds=(3,5)")
    save_checkpoint(tmp_path, program, step=2)
    first, second = load_run(tmp_path)
    assert (first.seed, second.seed) == (3, 5)
    assert bias(second) - bias(first) == pytest.approx(1)
    save_weights(tmp_path, program, make_state(program, step=9))
    assert bias(load_run(tmp_path)[1]) == pytest.approx(bias(second) + 7)
    (tmp_path / "weights_3.npz").unlink()  # killed while it wrote them: all from one step
    assert bias(load_run(tmp_path)[1]) == pytest.approx(bias(second))


def refusal(workdir):
    return refused(load_run, workdir)


def test_folders_without_a_run_or_weights_are_refused(tmp_path):
    assert "is not the folder of a run" in refusal(tmp_path)
    assert "is not the folder of a run" in refusal(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"name": "another program"}')
    assert "is not a run of this version" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "is damaged" in refusal(tmp_path)
    workdir = tmp_path / "run"
    program = make_run(workdir)
    assert "has saved nothing yet" in refusal(workdir)
    save_checkpoint(workdir, program, step=2)
    largest = max(workdir.rglob("d/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:100])
    assert f"{workdir / 'checkpoints' / '2'} is damaged" in refusal(workdir)


def test_a_checkpoint_that_does_not_fit_or_is_not_finite_is_refused_by_name(tmp_path):
    program = make_run(tmp_path)
    state = make_state(program, step=2)
    params = {**state.params, "head": {"kernel": jnp.zeros((3, 16)), "bias": jnp.zeros(16)}}
    save_checkpoint(tmp_path, program, step=2, state=state.replace(params=params))
    assert "params.head.kernel is float32[3,16] there" in refusal(tmp_path)
    state.params["trunk"]["conv2"]["kernel"][0, 0, 0, 0] = np.nan
    save_checkpoint(tmp_path, program, step=3, state=state)
    assert "params/trunk/conv2/kernel is not finite" in refusal(tmp_path)


@pytest.mark.parametrize(("field", "value"), [("s", 100_000), ("patch_size", 1_000_000)])
def test_a_config_that_would_fill_the_memory_is_refused(tmp_path, field, value):
    save_checkpoint(tmp_path, make_run(tmp_path), step=2)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"][field] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "would fill the memory" in refusal(tmp_path)
