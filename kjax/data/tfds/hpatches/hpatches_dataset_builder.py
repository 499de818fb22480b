"""HPatches for TensorFlow Datasets."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets.public_api as tfds

from kjax.data import hpatches
from kjax.data.hpatches import SEQUENCES, SPLITS
from kjax.data.tfds import find_or_download


class Builder(tfds.core.GeneratorBasedBuilder):
    """Scene points of HPatches, sixteen patches each; one config per split of the benchmark."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "Initial release."}
    BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
        tfds.core.BuilderConfig(name=name, description=f"Tests {len(tested)} sequences.")
        for name, tested in SPLITS.items()
    ]
    DEFAULT_BUILDER_CONFIG_NAME = "full"
    MANUAL_DOWNLOAD_INSTRUCTIONS = """\
    Nothing to do: the set is downloaded. If you already have it, put its 116 sequence folders
    (i_ajuntament/ref.png, ...) into the manual folder, or into its subfolder hpatches.
    """

    def _info(self) -> tfds.core.DatasetInfo:
        side = hpatches.PATCH_SIDE
        patch = tfds.features.Image(shape=(side, side, 1), encoding_format="png")
        patches = tfds.features.Sequence(patch, length=len(hpatches.IMAGES))
        features = {"sequence": tfds.features.Text(), "patches": patches}
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(features),
            homepage="https://github.com/hpatches/hpatches-dataset",
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[str, dict[str, Any]]]]:
        folder = find_or_download(dl_manager, "hpatches", "*/ref.png")
        paths = {path.name: path for path in hpatches.list_sequences(folder, split="full")}
        tested = SPLITS[self.builder_config.name]
        splits = {"test": self._generate_examples(paths[name] for name in tested)}
        if self.builder_config.name in ("a", "b", "c"):
            others = [paths[name] for name in SEQUENCES if name not in tested]
            splits["train"] = self._generate_examples(others)
        return splits

    def _generate_examples(self, paths: Iterable[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
        for path in paths:
            sequence = hpatches.read_sequence(path)
            for number, patches in enumerate(sequence.patches.swapaxes(0, 1)):
                example = {"sequence": sequence.name, "patches": [*patches[..., None]]}
                yield f"{sequence.name}/{number}", example
