import pytest
import skimage.data
from PIL import Image
from programs import synthetic_set

from kjax.data.phototour import sample_test_pairs, write_phototour


@pytest.fixture(scope="session")
def set_folder(tmp_path_factory):
    """The synthetic set with test pairs, on disk."""
    patches = synthetic_set()
    pairs = sample_test_pairs(patches.point_ids, matching=100, non_matching=100, seed=0)
    folder = tmp_path_factory.mktemp("sets") / "synthetic"
    return write_phototour(folder, patches.patches, patches.point_ids, pairs=pairs)


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory):
    """Two photographs in colour and one in grey."""
    folder = tmp_path_factory.mktemp("photos")
    for name in ("astronaut", "coffee", "camera"):
        pixels = getattr(skimage.data, name)()[:256, 100:356]
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


@pytest.fixture(scope="session")
def tfds_folder(set_folder, tmp_path_factory):
    """A folder of TFDS's: the synthetic set is prepared as Liberty, and for Notredame in manual."""
    pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")
    from kjax.data.tfds.phototour.phototour_dataset_builder import Builder

    folder = tmp_path_factory.mktemp("tfds")
    manual = folder / "downloads" / "manual"
    manual.mkdir(parents=True)
    for name in ("liberty", "notredame"):
        (manual / name).symlink_to(set_folder)
    Builder(config="liberty", data_dir=folder).download_and_prepare()
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KJAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield
