"""PhotoTourism (Brown & Winder) for TensorFlow Datasets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets.public_api as tfds

from kjax.data import phototour
from kjax.data.tfds import find_or_download

TITLES = {
    "liberty": "Statue of Liberty, New York",
    "notredame": "Notre Dame, Paris",
    "yosemite": "Half Dome, Yosemite",
}


class Builder(tfds.core.GeneratorBasedBuilder):
    """Patches grouped by the 3-D point that they see, and labelled pairs to test on."""

    VERSION = tfds.core.Version("1.1.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {
        "1.0.0": "Initial release.",
        "1.1.0": "Examples keep the order of the set's points and pairs.",
    }
    BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
        tfds.core.BuilderConfig(name=name, description=title) for name, title in TITLES.items()
    ]
    MANUAL_DOWNLOAD_INSTRUCTIONS = """\
    Nothing to do: the set is downloaded. If you already have it, put its folder (patches0000.bmp,
    info.txt, m50_100000_100000_0.txt, ...) into the manual folder as liberty, notredame or
    yosemite.
    """

    def _info(self) -> tfds.core.DatasetInfo:
        side = phototour.PATCH_SIDE
        patch = tfds.features.Image(shape=(side, side, 1), encoding_format="png")
        features = {"patches": patch, "patch_ids": np.int64, "point_ids": np.int64}
        sequences = {name: tfds.features.Sequence(kind) for name, kind in features.items()}
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(sequences),
            homepage="https://phototour.cs.washington.edu/patches/default.htm",
            disable_shuffling=True,
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        name = self.builder_config.name
        folder = find_or_download(dl_manager, name, "info.txt")
        cache = Path(dl_manager.download_dir) / "kjax"
        patch_set = phototour.read_with_pairs(folder, cache_dir=cache)
        order = np.argsort(patch_set.point_ids, kind="stable")
        _, starts = np.unique(patch_set.point_ids[order], return_index=True)
        pairs = np.stack([patch_set.pairs.first, patch_set.pairs.second], axis=1)
        return {
            "train": self._generate_examples(patch_set, np.split(order, starts[1:])),
            "test": self._generate_examples(patch_set, pairs),
        }

    def _generate_examples(
        self, patch_set: phototour.PatchSet, groups: Any
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for key, numbers in enumerate(groups):
            patches = [patch[:, :, None] for patch in patch_set.patches[numbers]]
            ids = {"patch_ids": numbers, "point_ids": patch_set.point_ids[numbers]}
            yield key, {"patches": patches, **ids}
