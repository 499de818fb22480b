"""Sets of patches to learn from, by name."""

from collections.abc import Sequence

from kjax.data.phototour import PatchSet, read_phototour
from kjax.data.set_names import EMBEDDED, TFDS_PREFIX


def read_train_sets(names: Sequence[str], *, progress: bool = True) -> list[PatchSet]:
    """The named sets: folders in the PhotoTourism format, `EMBEDDED`, or TFDS's."""
    return [_read_train_set(name, progress) for name in names]


def _read_train_set(name: str, progress: bool) -> PatchSet:
    if name == EMBEDDED:
        from kjax.data.embedded import embedded_train

        return embedded_train(progress=progress)
    if name.startswith(TFDS_PREFIX):
        from kjax.data.tfds.reading import read_tfds

        return read_tfds(name.removeprefix(TFDS_PREFIX), progress=progress)
    return read_phototour(name, progress=progress)
