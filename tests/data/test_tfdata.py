"""tf.data: the same pairs as the resident path, however sharded and wherever restarted."""

import dataclasses
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from random_set import PAIRS, SEED, random_set

from kjax.data import resident, tfdata
from kjax.errors import InputError


@pytest.fixture(scope="module")
def patch_set():
    return random_set()


@pytest.fixture(scope="module")
def expected(patch_set):
    """The resident path's pairs of the first 50 steps."""
    data = resident.make_resident(patch_set)

    @jax.jit
    def one(data, step):
        rows = resident.draw_rows(data, SEED, step, pairs=PAIRS)
        return resident.gather_pairs(data, rows)

    return np.stack([one(data, step) for step in range(50)])


@pytest.fixture(scope="module")
def dataset(patch_set):
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

    def make(**options):
        batches = tfdata.pair_dataset(patch_set, seed=SEED, pairs=PAIRS, **options)
        return list(batches.as_numpy_iterator())

    return make


@pytest.mark.parametrize(("processes", "devices"), [(1, 1), (1, 2), (1, 4), (2, 1), (4, 1), (2, 2)])
def test_pairs_are_those_of_the_resident_path(dataset, expected, processes, devices):
    shares = [
        dataset(steps=40, devices=devices, process=process, processes=processes)
        for process in range(processes)
    ]
    for share in shares:
        assert share[0].shape == (devices, PAIRS // processes // devices, 2, 64, 64)
        assert share[0].dtype == np.uint8
    for step in range(40):
        batch = np.concatenate([share[step].reshape(-1, 2, 64, 64) for share in shares])
        np.testing.assert_array_equal(batch, expected[step])


@pytest.mark.parametrize("start", [1, 31, 32, 47])
def test_a_restart_goes_on_exactly(dataset, expected, start):
    got = dataset(start_step=start, steps=3, devices=2)

    assert len(got) == 3
    np.testing.assert_array_equal(
        np.stack(got).reshape(3, PAIRS, 2, 64, 64), expected[start : start + 3]
    )


@pytest.mark.parametrize("kind", ["mapped", "part of a map", "askew", "read-only", "every second"])
def test_patches_are_gathered_from_whatever_memory_they_are_in(patch_set, tmp_path, kind):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    np.save(tmp_path / "patches.npy", patch_set.patches)
    mapped = np.load(tmp_path / "patches.npy", mmap_mode="r")
    unwritable = patch_set.patches.copy()
    unwritable.flags.writeable = False
    patches = {
        "mapped": mapped,
        "part of a map": mapped[7:],
        "askew": np.memmap(tmp_path / "patches.npy", np.uint8, "r", 100, patch_set.patches.shape),
        "read-only": unwritable,
        "every second": patch_set.patches[::2],
    }[kind]
    got = tf.gather(tfdata._as_tensor(patches), np.arange(len(patches))[::-1])
    np.testing.assert_array_equal(got.numpy()[::-1], patches)


def test_a_mapped_set_is_not_copied(patch_set, tmp_path):
    """What changes in the file changes in TensorFlow's view of it."""
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    file = np.lib.format.open_memmap(
        tmp_path / "patches.npy", mode="w+", dtype=np.uint8, shape=patch_set.patches.shape
    )
    tensor = tfdata._as_tensor(np.load(tmp_path / "patches.npy", mmap_mode="r"))
    file[:] = patch_set.patches
    np.testing.assert_array_equal(tensor.numpy(), patch_set.patches)


def test_a_batch_that_cannot_be_filled_or_shared_is_refused(patch_set):
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    with pytest.raises(InputError, match="batch of 64 pairs needs as many different points"):
        tfdata.pair_dataset(patch_set, seed=0, pairs=64)
    with pytest.raises(InputError, match="cannot be shared evenly by 6 devices"):
        tfdata.pair_dataset(patch_set, seed=0, pairs=8, devices=2, processes=3)


def test_batches_are_on_the_devices_ahead_of_time():
    taken = []

    def batches():
        for number in range(5):
            taken.append(number)
            yield np.full((1, 2, 2, 64, 64), number, np.uint8)

    ready = tfdata.prefetch_to_device(batches(), devices=jax.local_devices()[:1], ahead=2)
    first = next(ready)
    assert isinstance(first, jax.Array)
    assert taken == [0, 1, 2]
    assert [int(first[0, 0, 0, 0, 0])] + [int(b[0, 0, 0, 0, 0]) for b in ready] == list(range(5))


def test_every_device_gets_its_row():
    devices = jax.local_devices()
    batch = np.arange(len(devices) * 3, dtype=np.uint8).reshape(-1, 3)
    (got,) = tfdata.prefetch_to_device([batch.reshape(-1, 3, 1, 1, 1).repeat(2, axis=2)])

    shards = sorted(got.addressable_shards, key=lambda shard: shard.device.id)
    assert [shard.device for shard in shards] == devices
    for row, shard in zip(batch, shards, strict=True):
        np.testing.assert_array_equal(np.asarray(shard.data)[0, :, 0, 0, 0], row)


NO_TENSORFLOW = """
import sys
import kjax.data.download, kjax.data.hpatches, kjax.data.phototour
import kjax.data.resident, kjax.data.sampler, kjax.data.sets, kjax.data.tfdata
import kjax.train.run
assert not [name for name in sys.modules if name.split(".")[0].startswith("tensorflow")]
"""


def test_no_module_but_the_builders_imports_tensorflow():
    done = subprocess.run([sys.executable, "-c", NO_TENSORFLOW], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def fake_tensorflow(monkeypatch, set_visible_devices):
    module = types.ModuleType("tensorflow")
    module.config = types.SimpleNamespace(set_visible_devices=set_visible_devices)
    monkeypatch.setitem(sys.modules, "tensorflow", module)


def test_tensorflow_is_kept_off_the_gpu(monkeypatch):
    calls = []
    fake_tensorflow(monkeypatch, lambda *arguments: calls.append(arguments))
    tfdata.host_tensorflow.__wrapped__()

    assert calls == [([], "GPU")]


def test_a_gpu_that_tensorflow_already_has_is_an_error(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    fake_tensorflow(monkeypatch, refuse)
    with pytest.raises(InputError, match="already taken the GPU"):
        tfdata.host_tensorflow.__wrapped__()


def test_missing_tensorflow_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(InputError, match="pip install tensorflow") as caught:
        tfdata.host_tensorflow.__wrapped__()
    assert "\n" not in str(caught.value)


def test_shares_are_those_of_the_resident_path(patch_set):
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    mixed, shares = dataclasses.replace(patch_set, parts=(60, 30)), (0.5, 0.5)
    data = resident.make_resident(mixed)
    draw = jax.jit(lambda step: resident.draw_rows(data, SEED, step, pairs=PAIRS, shares=shares))
    batches = tfdata.pair_dataset(mixed, seed=SEED, pairs=PAIRS, shares=shares, steps=3, devices=2)
    for step, batch in enumerate(batches.as_numpy_iterator()):
        rows = draw(step)
        expected = np.asarray(resident.gather_pairs(data, rows)).reshape(2, 4, 2, 64, 64)
        np.testing.assert_array_equal(batch, expected)
