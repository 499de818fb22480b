"""The TensorFlow Datasets builders, by TFDS's own test case and by what comes out."""

import importlib.util
import os
import sys
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from refusals import assert_refused

from kjax.data import hpatches
from kjax.data.hpatches import SEQUENCES, SPLITS
from kjax.data.phototour import TestPairs, write_phototour
from kjax.data.sets import read_test_sets, read_tfds

missing = importlib.util.find_spec("tensorflow_datasets") is None
pytestmark = pytest.mark.skipif(missing, reason="tensorflow-datasets is not installed")

POINT_IDS = np.array([5, 5, 5, 9, 9, 2, 2, 2, 2, 7])
PATCHES = np.random.default_rng(0).integers(0, 256, (10, 64, 64), dtype=np.uint8)
MATCHING = np.array([True, False, True, False])
PAIRS = TestPairs(np.array([0, 3, 5, 9]), np.array([2, 5, 8, 1]), MATCHING)


def builder_module(name):
    return importlib.import_module(f"kjax.data.tfds.{name}.{name}_dataset_builder")


@pytest.fixture(scope="module")
def phototour_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phototour")
    for name in ("liberty", "notredame", "yosemite"):
        write_phototour(folder / name, PATCHES, POINT_IDS, pairs=PAIRS)
    return folder


@pytest.fixture(scope="module")
def hpatches_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hpatches")
    for number, name in enumerate(SEQUENCES):
        (folder / name).mkdir()
        for image in range(16):
            column = np.full((2 * 65, 65), 2 * number, np.uint8)
            column[65:] += image
            Image.fromarray(column).save(folder / name / f"{hpatches.IMAGES[image]}.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "splits", "configs"),
    [
        ("phototour", {"train": 4, "test": 4}, ["liberty", "notredame", "yosemite"]),
        ("hpatches", {"test": 2 * 40, "train": 2 * 76}, ["a"]),
    ],
)
def test_builders_pass_the_test_case_of_tfds(request, name, splits, configs):
    """TFDS checks registration, metadata, tags, features, splits and reloading."""
    from tensorflow_datasets import testing

    attributes = {
        "DATASET_CLASS": builder_module(name).Builder,
        "SPLITS": splits,
        "EXAMPLE_DIR": str(request.getfixturevalue(f"{name}_folder")),
        "BUILDER_CONFIG_NAMES_TO_TEST": configs,
        # The builders read local files through kjax's readers, not through tf.io.gfile.
        "MOCK_OUT_FORBIDDEN_OS_FUNCTIONS": False,
    }
    case = type("BuilderCase", (testing.DatasetBuilderTestCase,), attributes)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    problems = [trace for _, trace in result.errors + result.failures]
    assert not problems, "\n".join(problems)
    assert result.testsRun >= 5


def prepare(name, config, manual_dir, folder):
    import tensorflow_datasets as tfds

    builder = builder_module(name).Builder(config=config, data_dir=folder)
    options = tfds.download.DownloadConfig(manual_dir=manual_dir)
    builder.download_and_prepare(download_config=options, download_dir=folder / "downloads")
    splits = builder.info.splits
    return {name: list(tfds.as_numpy(builder.as_dataset(split=name))) for name in splits}


@pytest.mark.slow
def test_phototour_examples_are_points_and_pairs(phototour_folder, tmp_path):
    examples = prepare("phototour", "notredame", phototour_folder, tmp_path)
    for example in examples["train"] + examples["test"]:
        np.testing.assert_array_equal(example["patches"][..., 0], PATCHES[example["patch_ids"]])
        np.testing.assert_array_equal(example["point_ids"], POINT_IDS[example["patch_ids"]])
    train = sorted(example["patch_ids"].tolist() for example in examples["train"])
    assert train == [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9]]
    test = sorted(example["patch_ids"].tolist() for example in examples["test"])
    assert test == [[0, 2], [3, 5], [5, 8], [9, 1]]


@pytest.mark.slow
def test_hpatches_examples_are_scene_points(hpatches_folder, tmp_path):
    examples = prepare("hpatches", "illum", hpatches_folder, tmp_path)
    assert list(examples) == ["test"]
    assert {e["sequence"].decode() for e in examples["test"]} == set(SPLITS["illum"])
    for example in examples["test"]:
        grey = 2 * SEQUENCES.index(example["sequence"].decode())
        values = example["patches"][:, 0, 0, 0].tolist()
        assert values in ([grey] * 16, [grey + image for image in range(16)])


@pytest.mark.slow
def test_without_a_local_folder_the_set_is_downloaded(phototour_folder, tmp_path, monkeypatch):
    download = mock.Mock(return_value=phototour_folder / "liberty")
    monkeypatch.setattr("kjax.data.tfds.download_set", download)
    assert len(prepare("phototour", "liberty", tmp_path / "nothing", tmp_path)["train"]) == 4
    ((name, root),) = [call.args for call in download.call_args_list]
    assert (name, Path(root)) == ("liberty", tmp_path / "downloads")


@pytest.fixture(scope="module")
def prepared(phototour_folder, tmp_path_factory):
    """A folder of TFDS's in which Liberty is prepared."""
    folder = tmp_path_factory.mktemp("tfds")
    prepare("phototour", "liberty", phototour_folder, folder)
    return folder


@pytest.fixture
def manual(phototour_folder, tmp_path):
    """One in which it only lies where TFDS would look for it."""
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "manual").symlink_to(phototour_folder)
    return tmp_path


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KJAX_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prepared", "manual"])
def test_a_set_is_the_same_as_from_its_folder(kind, phototour_folder, request, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(request.getfixturevalue(kind)))
    names = [str(phototour_folder / "liberty"), "tfds:phototour/liberty"]
    expected, got = (read_test_sets([name], progress=False)[0] for name in names)
    assert got.name == expected.name == "liberty"
    np.testing.assert_array_equal(got.patches, expected.patches)
    np.testing.assert_array_equal(got.point_ids, expected.point_ids)
    np.testing.assert_array_equal(got.pairs, expected.pairs)
    assert isinstance(got.patches, np.memmap)
    if kind == "prepared":  # and decoded once
        decoded = os.stat(got.patches.filename)
        again = read_tfds("phototour/liberty:1.1.0", progress=False)
        assert os.path.samestat(os.stat(again.patches.filename), decoded)
        np.testing.assert_array_equal(again.patches, got.patches)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("phototour/liberty", "download_and_prepare()"),
        ("phototour/liberty", "needs tensorflow_datasets: pip install 'kjax[tfds]'"),
        ("phototour/liberti", "did you mean 'tfds:phototour/liberty'?"),
        ("fototour", "unknown set 'tfds:fototour'"),
        ("", "unknown set 'tfds:'"),
        ("mnist", "is not a set of patches by 3-D point"),
    ],
)
def test_a_set_that_is_not_there_is_one_line(name, message, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    if "pip install" in message:
        monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    told = assert_refused("", read_test_sets, [f"tfds:{name}"], progress=False)
    assert message in told
    assert r"\n" not in told
