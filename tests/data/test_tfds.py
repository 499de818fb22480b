"""The TensorFlow Datasets builders, by TFDS's own test case and by what comes out."""

import importlib.util
import os
import sys
import unittest
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kjax.data import hpatches
from kjax.data.hpatches import SEQUENCES, SPLITS
from kjax.data.phototour import TestPairs, write_phototour
from kjax.data.sets import read_test_sets, read_tfds
from kjax.errors import InputError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_datasets") is None,
    reason="tensorflow-datasets is not installed",
)

POINT_IDS = np.array([5, 5, 5, 9, 9, 2, 2, 2, 2, 7])
PATCHES = np.random.default_rng(0).integers(0, 256, (10, 64, 64), dtype=np.uint8)
PAIRS = TestPairs(
    np.array([0, 3, 5, 9]), np.array([2, 5, 8, 1]), np.array([True, False, True, False])
)


def run_tfds_test_case(builder_class, *, splits, dummy_data, configs):
    """TFDS checks registration, metadata, tags, features, splits and reloading."""
    from tensorflow_datasets import testing

    attributes = {
        "DATASET_CLASS": builder_class,
        "SPLITS": splits,
        "EXAMPLE_DIR": str(dummy_data),
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
def test_phototour_passes_the_test_case_of_tfds(phototour_folder):
    from kjax.data.tfds.phototour.phototour_dataset_builder import Builder

    run_tfds_test_case(
        Builder,
        splits={"train": 4, "test": 4},
        dummy_data=phototour_folder,
        configs=["liberty", "notredame", "yosemite"],
    )


@pytest.mark.slow
def test_hpatches_passes_the_test_case_of_tfds(hpatches_folder):
    from kjax.data.tfds.hpatches.hpatches_dataset_builder import Builder

    splits = {"test": 2 * 40, "train": 2 * 76}
    run_tfds_test_case(Builder, splits=splits, dummy_data=hpatches_folder, configs=["a"])


def prepare(builder, manual_dir, tmp_path):
    import tensorflow_datasets as tfds

    options = tfds.download.DownloadConfig(manual_dir=manual_dir)
    builder.download_and_prepare(download_config=options, download_dir=tmp_path / "downloads")
    return {
        split: list(tfds.as_numpy(builder.as_dataset(split=split))) for split in builder.info.splits
    }


@pytest.mark.slow
def test_phototour_examples_are_points_and_pairs(phototour_folder, tmp_path):
    from kjax.data.tfds.phototour.phototour_dataset_builder import Builder

    examples = prepare(Builder(config="notredame", data_dir=tmp_path), phototour_folder, tmp_path)

    for example in examples["train"] + examples["test"]:
        np.testing.assert_array_equal(example["patches"][..., 0], PATCHES[example["patch_ids"]])
        np.testing.assert_array_equal(example["point_ids"], POINT_IDS[example["patch_ids"]])
    train = sorted(example["patch_ids"].tolist() for example in examples["train"])
    assert train == [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9]]
    test = sorted(example["patch_ids"].tolist() for example in examples["test"])
    assert test == [[0, 2], [3, 5], [5, 8], [9, 1]]


@pytest.mark.slow
def test_hpatches_examples_are_scene_points(hpatches_folder, tmp_path):
    from kjax.data.tfds.hpatches.hpatches_dataset_builder import Builder

    examples = prepare(Builder(config="illum", data_dir=tmp_path), hpatches_folder, tmp_path)

    assert list(examples) == ["test"]
    assert {e["sequence"].decode() for e in examples["test"]} == set(SPLITS["illum"])
    for example in examples["test"]:
        grey = 2 * SEQUENCES.index(example["sequence"].decode())
        values = example["patches"][:, 0, 0, 0].tolist()
        assert values in ([grey] * 16, [grey + image for image in range(16)])


@pytest.mark.slow
def test_without_a_local_folder_the_set_is_downloaded(phototour_folder, tmp_path, monkeypatch):
    from kjax.data.tfds.phototour import phototour_dataset_builder as module

    asked = []

    def download(name, root):
        asked.append((name, Path(root)))
        return phototour_folder / name

    monkeypatch.setattr(module, "download_set", download)
    builder = module.Builder(config="liberty", data_dir=tmp_path / "tfds")
    assert len(prepare(builder, tmp_path / "nothing", tmp_path)["train"]) == 4
    assert asked == [("liberty", tmp_path / "downloads")]


# Reading


@pytest.fixture(scope="module")
def prepared(phototour_folder, tmp_path_factory):
    """A folder of TFDS's in which Liberty is prepared."""
    from kjax.data.tfds.phototour.phototour_dataset_builder import Builder

    folder = tmp_path_factory.mktemp("tfds")
    prepare(Builder(config="liberty", data_dir=folder), phototour_folder, folder)
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


@pytest.mark.parametrize("kind", ["prepared", "manual"])
def test_a_set_is_the_same_as_from_its_folder(kind, phototour_folder, request, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(request.getfixturevalue(kind)))
    names = [str(phototour_folder / "liberty"), "tfds:phototour/liberty"]
    expected, got = (read_test_sets([name], progress=False)[0] for name in names)
    assert got.name == expected.name == "liberty"
    np.testing.assert_array_equal(got.patches, expected.patches)
    np.testing.assert_array_equal(got.point_ids, expected.point_ids)
    for column, expected_column in zip(got.pairs, expected.pairs, strict=True):
        np.testing.assert_array_equal(column, expected_column)
    assert isinstance(got.patches, np.memmap)


def test_a_prepared_set_is_decoded_once(prepared, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    expected = read_tfds("phototour/liberty", progress=False)
    decoded = os.stat(expected.patches.filename)
    again = read_tfds("phototour/liberty:1.1.0", progress=False)
    assert os.path.samestat(os.stat(again.patches.filename), decoded)
    np.testing.assert_array_equal(again.patches, expected.patches)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("phototour/liberty", "download_and_prepare()"),
        ("phototour/liberti", "did you mean 'tfds:phototour/liberty'?"),
        ("fototour", "unknown set 'tfds:fototour'"),
        ("", "unknown set 'tfds:'"),
        ("mnist", "is not a set of patches by 3-D point"),
    ],
)
def test_a_set_that_is_not_there_is_one_line(name, message, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(InputError) as error:
        read_test_sets([f"tfds:{name}"], progress=False)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "\\n" not in str(error.value)


def test_missing_tensorflow_datasets_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match="pip install tensorflow-datasets"):
        read_test_sets(["tfds:phototour/liberty"], progress=False)
