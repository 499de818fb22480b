import errno
import logging
import shutil
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint.type_handlers import NumpyHandler
from programs import contents, filling_disk, refusal
from scripts import output_of

from kjax.runs.checkpoint import Checkpoints
from kjax.train.optim import torch_sgd
from kjax.train.step import TrainState, create_state


def make_state(step: int = 0, *, width: int = 3, dtype=jnp.float32) -> TrainState:
    """A small state of the real kind, different at every step."""
    kernel = (jnp.arange(4 * width, dtype=jnp.float32) + step).reshape(4, width).astype(dtype)
    variables = {
        "params": {"trunk": {"kernel": kernel}, "bias": jnp.full((width,), step / 3)},
        "batch_stats": {"mean": jnp.full((width,), 0.1)},
    }
    return create_state(torch_sgd(0.1), variables).replace(step=jnp.asarray(step, jnp.int32))


def replicated(state: TrainState, devices: int) -> TrainState:
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("devices",))
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def assert_same(actual: TrainState, expected: TrainState) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def steps_in(folder: Path) -> list[str]:
    return sorted((path.name for path in folder.iterdir()), key=lambda name: (len(name), name))


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path / "checkpoints", keep=2, best_metric="fpr")
    yield opened
    opened.close()


def test_restores_what_was_saved_bit_for_bit_also_if_donated_and_on_other_devices(checkpoints):
    assert checkpoints.latest_step() is None
    assert checkpoints.restore_latest(make_state()) is None
    expected = make_state(7, dtype=jnp.bfloat16)
    state = replicated(expected, 4)
    overwrite = jax.jit(lambda s: jax.tree.map(jnp.zeros_like, s), donate_argnums=0)
    checkpoints.save(7, state)
    overwrite(state)
    shapes = jax.eval_shape(lambda: make_state(dtype=jnp.bfloat16))
    assert_same(checkpoints.restore_latest(shapes), expected)
    restored = checkpoints.restore_latest(replicated(make_state(dtype=jnp.bfloat16), 2))
    assert_same(restored, expected)
    assert all(len(leaf.sharding.device_set) == 2 for leaf in jax.tree.leaves(restored))


def test_keeps_the_last_and_the_best_and_a_later_run_knows_it(checkpoints):
    for step, fpr in enumerate([0.3, 0.1, float("nan"), 0.4, None, 0.2], start=1):
        metrics = None if fpr is None else {"fpr": fpr, "loss": 1.0}
        checkpoints.save(step, make_state(step), metrics=metrics)
    checkpoints.wait()
    assert steps_in(checkpoints.folder) == ["2", "5", "6"]
    assert_same(checkpoints.restore_latest(make_state()), make_state(6))
    again = Checkpoints(checkpoints.folder, keep=1, best_metric="fpr")
    again.save(7, make_state(7), metrics={"fpr": 0.3})
    again.close()
    assert steps_in(checkpoints.folder) == ["2", "7"]
    last_only = Checkpoints(checkpoints.folder, keep=1, best_metric=None)
    last_only.save(8, make_state(8), metrics={"fpr": 0.9})
    last_only.close()
    assert steps_in(checkpoints.folder) == ["8"]


def test_saving_a_step_again_does_nothing_and_an_earlier_one_is_refused(checkpoints):
    checkpoints.save(4, make_state(4))
    checkpoints.save(4, make_state(5))
    assert_same(checkpoints.restore_latest(make_state()), make_state(4))
    assert "checkpoint of step 4, after step 3" in refusal(checkpoints.save, 3, make_state(3))


def test_another_model_is_refused_by_name_and_left_alone(checkpoints):
    checkpoints.save(1, make_state(1))
    checkpoints.wait()
    before = contents(checkpoints.folder)
    message = refusal(checkpoints.restore_latest, make_state(width=5))
    assert "params.trunk.kernel is float32[4,3] there and float32[4,5] here" in message
    assert "and 2 more" in message
    assert "choose another workdir" in message
    assert "bfloat16" in refusal(checkpoints.restore_latest, make_state(dtype=jnp.bfloat16))
    adam = make_state().replace(opt_state={"mu": jnp.zeros(2)})
    assert "opt_state.mu is absent there" in refusal(checkpoints.restore_latest, adam)
    assert contents(checkpoints.folder) == before


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "checkpoints"):
        message = refusal(Checkpoints, folder, keep=1, best_metric=None)
        assert f"cannot use the checkpoint folder {folder}" in message


CHANGED = "does not match its checksum"


@pytest.mark.parametrize(
    ("pattern", "change", "reason"),
    [
        ("*", lambda data: b"", CHANGED),
        ("d/*", lambda data: data[: len(data) // 2], CHANGED),
        ("d/*", lambda data: bytes([data[0] ^ 1]) + data[1:], CHANGED),
        ("d/*", lambda data: data[:-1] + bytes([data[-1] ^ 1]), CHANGED),
        ("default/_METADATA", lambda data: b"{", f"default/_METADATA {CHANGED}"),
        ("SHA256SUMS", lambda data: data + b"\n", "SHA256SUMS does not match"),
        ("*", None, ""),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_one_line(pattern, change, reason, tmp_path, capfd):
    writer = Checkpoints(tmp_path, keep=2, best_metric=None)
    writer.save(1, make_state(1))
    writer.save(2, make_state(2))
    writer.close()
    step = tmp_path / "2"
    if change is None:
        shutil.rmtree(step)
        step.mkdir()
        (step / "notes.txt").write_text("not a checkpoint")
    for path in filter(Path.is_file, list(step.rglob(pattern)) if change else ()):
        path.write_bytes(change(path.read_bytes()))
    before = contents(tmp_path)
    reader = Checkpoints(tmp_path, keep=2, best_metric=None)
    message = refusal(reader.restore_latest, make_state())
    assert f"{step} is damaged (" in message
    assert reason in message
    assert "to resume from an earlier one" in message
    assert contents(tmp_path) == before
    shutil.rmtree(step)
    after = Checkpoints(tmp_path, keep=2, best_metric=None)
    assert_same(after.restore_latest(make_state()), make_state(1))
    reader.close()
    after.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"fpr": "low"}', b"\xff", b"[" * 100_000])
def test_damaged_metrics_of_a_checkpoint_are_named(checkpoints, content):
    for step in (1, 2):
        checkpoints.save(step, make_state(step), metrics={"fpr": 0.25 * step})
    checkpoints.wait()
    metrics = checkpoints.folder / "1" / "metrics"
    (metrics / "metrics").write_bytes(content)
    message = refusal(Checkpoints, checkpoints.folder, keep=1, best_metric="fpr")
    assert f"{metrics / 'metrics'} is damaged" in message
    assert f"remove the folder {metrics}" in message
    shutil.rmtree(metrics)
    after = Checkpoints(checkpoints.folder, keep=1, best_metric="fpr")
    assert_same(after.restore_latest(make_state()), make_state(2))
    after.close()


# Failed and interrupted saves


def test_a_full_disk_is_one_line_after_which_nothing_is_written(checkpoints, capfd, monkeypatch):
    """Orbax reports the first failure, here of its metadata, while it writes the arrays."""
    checkpoints.save(1, make_state(1))
    checkpoints.wait()
    write, before = NumpyHandler._background_serialize, set(threading.enumerate())

    async def slow_write(*args, **options):
        time.sleep(0.3)
        await write(*args, **options)

    with filling_disk() as fill, monkeypatch.context() as patch:
        patch.setattr(NumpyHandler, "_background_serialize", slow_write)
        fill(100)
        checkpoints.save(2, make_state(2))
        assert "free some space" in refusal(checkpoints.wait)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("asyncio"):  # idle, and about to end
            thread.join(10)
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()
    # A thread of orbax may still write into the folder that is removed.
    left, remove = checkpoints.folder / "2.orbax-checkpoint-tmp", shutil.rmtree
    left.mkdir(exist_ok=True)

    def busy(folder):
        monkeypatch.setattr(shutil, "rmtree", remove)
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(shutil, "rmtree", busy)
    again = Checkpoints(checkpoints.folder, keep=2, best_metric=None)
    assert_same(again.restore_latest(make_state()), make_state(1))
    again.save(2, make_state(2))
    again.close()
    assert steps_in(checkpoints.folder) == ["1", "2"]
    assert capfd.readouterr() == ("", "")


def test_asyncio_does_not_repeat_the_error_of_a_failed_save(checkpoints, caplog):
    for message in (f"{checkpoints.folder}/2.orbax-checkpoint-tmp/default", "something else"):
        logging.getLogger("asyncio").error("never retrieved: %s", message)
    assert caplog.messages == ["never retrieved: something else"]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(checkpoints, disk_calls):
    checkpoints.save(1, make_state(1), metrics={"fpr": 0.5})
    checkpoints.wait()
    named = disk_calls.index(("rename", checkpoints.folder / "1"))
    synced = {
        path.relative_to(checkpoints.folder).parts[1:]
        for call, path in disk_calls[:named]
        if call == "fsync" and path != checkpoints.folder
    }
    state = checkpoints.folder / "1" / "default"
    files = {("default", *path.relative_to(state).parts) for path in state.rglob("*")}
    assert len(files) > 5
    assert files - {("default", "commit_success.txt")} <= synced
    assert {(), ("default",), ("metrics", "metrics"), ("SHA256SUMS",)} <= synced
    assert ("fsync", checkpoints.folder) in disk_calls[named:]


WITHOUT_KJAX = """
import sys
from pathlib import Path
import numpy as np
import orbax.checkpoint as ocp
try:
    import orbax.checkpoint.v1 as v1
except ImportError:
    import orbax.checkpoint.experimental.v1 as v1

folder, out = map(Path, sys.argv[1:])
trees = [
    ocp.CheckpointManager(folder).restore(7),
    ocp.CheckpointManager(folder).restore(7, args=ocp.args.StandardRestore()),
    ocp.StandardCheckpointer().restore(folder / "7" / "default"),
    v1.load_pytree(folder / "7"),
]
for name in ("kjax", "optax", "flax"):
    assert name not in sys.modules, name
assert ocp.CheckpointManager(folder).metrics(7) == {"fpr": 0.5}

def flat(tree, name=""):
    if not isinstance(tree, dict):
        return {name: np.asarray(tree).astype(np.float64)}
    return {k: v for key in tree for k, v in flat(tree[key], f"{name}.{key}").items()}

for number, tree in enumerate(trees):
    np.savez(out / f"{number}.npz", **flat(tree))
"""


@pytest.mark.slow
def test_plain_orbax_reads_a_checkpoint(tmp_path):
    """On one device, from a run on four."""
    folder = tmp_path / "checkpoints"
    state = replicated(make_state(7, dtype=jnp.bfloat16), 4)
    writer = Checkpoints(folder, keep=2, best_metric="fpr")
    writer.save(7, state, metrics={"fpr": 0.5})
    writer.close()
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    output_of(WITHOUT_KJAX, folder, tmp_path, cwd=tmp_path, **environment)
    kernel = np.asarray(state.params["trunk"]["kernel"], np.float64)
    for number in range(4):
        with np.load(tmp_path / f"{number}.npz") as found:
            arrays = dict(found)
        optimizer = (".opt_state.1.buffer.trunk.kernel", ".opt_state.1.buffer.bias")
        names = {".step", ".params.trunk.kernel", ".params.bias", ".batch_stats.mean"}
        assert arrays.keys() == names | {*optimizer, ".opt_state.1.empty"}
        np.testing.assert_array_equal(arrays[".params.trunk.kernel"], kernel)
        np.testing.assert_array_equal(arrays[".params.bias"], np.asarray(state.params["bias"]))
        assert (arrays[".step"], arrays[".opt_state.1.empty"]) == (7, 1)
