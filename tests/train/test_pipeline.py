"""Which pipeline "auto" comes to, and that a run says so and keeps to it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from programs import make_program, start, synthetic_set

from kjax.errors import InputError
from kjax.runs.config import load_config, validate
from kjax.train.input import make_run
from kjax.train.pipeline import choose_pipeline
from kjax.train.run import read_train_set

PATCHES = synthetic_set()
SIZE = PATCHES.patches.nbytes


def choose(wanted="auto", *, room=SIZE, seeds=(0,), before=None):
    program = make_program(seeds=seeds)
    return choose_pipeline(
        wanted, program, PATCHES, before=before, room_for_set=lambda devices: room
    )


@pytest.fixture
def with_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(__spec__="is there"))


@pytest.mark.usefixtures("with_tensorflow")
def test_a_set_that_fits_is_resident_and_another_comes_through_tfdata():
    fits, does_not = choose(), choose(room=SIZE - 1)
    assert (fits.pipeline, does_not.pipeline) == ("resident", "tfdata")
    assert fits.why.startswith("the set takes 0.5 MiB, and 50% of the memory that is free for each")


def test_a_choice_of_the_config_stands():
    assert choose("resident", room=0).pipeline == "resident"
    assert choose("tfdata").pipeline == "tfdata"


def test_several_seeds_are_resident():
    assert choose(room=0, seeds=(0, 1)).pipeline == "resident"


@pytest.mark.usefixtures("with_tensorflow")
def test_a_run_goes_on_with_the_pipeline_it_began_with_if_it_can():
    assert choose(before="tfdata") == ("tfdata", "the run began with it")
    assert choose(before="resident").pipeline == "resident"
    assert choose(before="resident", room=0).pipeline == "tfdata"


def test_a_set_that_does_not_fit_needs_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(InputError, match="pip install tensorflow, or choose a smaller") as error:
        choose(room=0)
    assert "\n" not in str(error.value)


def test_folder_and_tfds_give_the_same_weights_through_both_pipelines(
    set_folder, tfds_folder, monkeypatch
):
    """To the bit, after six steps, from a prepared set and from one in the manual folder.

    On two devices: the order in which XLA adds up what more of them computed is its own.
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
        run = make_run(program, read_set(name), pipeline=kind, first_step=0)
        state = jax.device_get(run(start(program), 6)[0])
        expected = expected or state
        jax.tree.map(np.testing.assert_array_equal, state, expected)


def read_set(name):
    config = load_config(Path(__file__).parents[2] / "configs" / "smoke.py")
    config.data.train = (name,)
    return read_train_set(validate(config))
