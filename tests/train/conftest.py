import pytest
from programmes import synthetic_set

from kjax.data.photos import sample_test_pairs
from kjax.data.phototour import write_phototour


@pytest.fixture(scope="session")
def set_folder(tmp_path_factory):
    """The synthetic set with test pairs, on disk."""
    patches = synthetic_set()
    pairs = sample_test_pairs(patches.point_ids, matching=100, non_matching=100, seed=0)
    folder = tmp_path_factory.mktemp("sets") / "synthetic"
    return write_phototour(folder, patches.patches, patches.point_ids, pairs=pairs)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KJAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield
