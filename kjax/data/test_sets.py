"""Sets of patches and pairs that verification is tested on, by name."""

from collections.abc import Sequence
from typing import NamedTuple

from kjax.data.phototour import (
    PatchSet,
    TestPairs,
    read_phototour,
    read_standard_pairs,
)
from kjax.data.set_names import EMBEDDED, TFDS_PREFIX
from kjax.errors import InputError


class TestSet(NamedTuple):
    """Patches and pairs of them."""

    patches: PatchSet
    pairs: TestPairs


def read_test_sets(names: Sequence[str], *, progress: bool = True) -> list[TestSet]:
    """The named sets, no two alike: folders in the PhotoTourism format, `EMBEDDED`, or TFDS's."""
    tests = [_read_test_set(name, progress) for name in names]
    found = [test.patches.name for test in tests]
    if len(set(found)) < len(found):
        raise InputError(f"two test sets have one name: {', '.join(found)}")
    return tests


def _read_test_set(name: str, progress: bool) -> TestSet:
    if name == EMBEDDED:
        from kjax.data.embedded import embedded_test

        return TestSet(*embedded_test(progress=progress))
    if name.startswith(TFDS_PREFIX):
        from kjax.data.tfds.reading import read_tfds_test

        return TestSet(*read_tfds_test(name.removeprefix(TFDS_PREFIX), progress=progress))
    patches = read_phototour(name, progress=progress)
    return TestSet(patches, read_standard_pairs(patches))
