"""The choice between the two pipelines, and that both give the same weights."""

import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from programs import make_config, make_program, refusal, start, synthetic_set

from kjax.train import input as feeding
from kjax.train.run import read_train_set

PATCHES = synthetic_set()
SIZE = PATCHES.patches.nbytes


@pytest.mark.parametrize(
    ("wanted", "room", "options", "before", "expected", "why"),
    [
        ("auto", SIZE, {}, None, "resident", "the dataset takes 0.5 MiB, and 50% of the free"),
        ("auto", SIZE - 1, {}, None, "tfdata", "the dataset takes 0.5 MiB"),
        ("auto", 0, {"seeds": (0, 1)}, None, "resident", "several seeds"),
        ("auto", SIZE, {}, "tfdata", "tfdata", "the run began with it"),
        ("auto", SIZE, {}, "resident", "resident", "the dataset takes"),
        ("auto", 0, {}, "resident", "tfdata", "the dataset takes"),
        ("resident", 0, {}, None, "resident", "set in the config"),
        ("tfdata", SIZE, {}, None, "tfdata", "set in the config"),
    ],
)
def test_choice_of_pipeline(wanted, room, options, before, expected, why, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(__spec__="installed"))
    monkeypatch.setattr(feeding, "room_for_set", lambda devices: room)
    found = feeding.choose_pipeline(wanted, make_program(**options), PATCHES, before=before)
    assert found[0] == expected
    assert found[1].startswith(why)


def test_a_set_that_does_not_fit_needs_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setattr(feeding, "room_for_set", lambda devices: 0)
    told = refusal(feeding.choose_pipeline, "auto", make_program(), PATCHES)
    assert "pip install 'kjax[tfds]', or choose a smaller" in told


@pytest.mark.slow
def test_folder_and_tfds_give_the_same_weights(set_folder, tfds_folder, monkeypatch):
    """To the bit, after six steps, from a prepared set and from one in the manual folder.

    On two devices: with more, XLA does not define the order in which it adds their results.
    """
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_folder))
    program = make_program(devices=2, dropout=0.3)
    expected = None
    for name, kind in (
        (str(set_folder), "resident"),
        ("tfds:phototour/liberty", "resident"),
        ("tfds:phototour/liberty", "tfdata"),
        ("tfds:phototour/notredame", "tfdata"),
    ):
        patches = read_train_set(make_config(name))
        run = feeding.make_run(program, patches, pipeline=kind, first_step=0)
        state = jax.device_get(run(start(program), 6)[0])
        expected = expected or state
        jax.tree.map(np.testing.assert_array_equal, state, expected)
