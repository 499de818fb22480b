"""kjax as an extractor and a matcher of hloc, and of image-matching-webui, which is built on it.

    from kjax.integrations.hloc import register  # before hloc, which imports pycolmap
    from hloc import extract_features, match_features

    register()  # or register("imcui.hloc")
    extract_features.main(extract_features.confs["kjax"], photographs, outputs)

hloc looks for a model among its own modules, by name, and for the one class in there: `register`
puts such modules beside them. Positions have the centre of the first pixel at (0, 0), where hloc
expects it: it adds 0.5 itself when it fills a COLMAP database.
"""

import copy
import importlib
import sys
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import kjax
from kjax.images.exchange.hloc import FEATURES, feature_arrays, features_of
from kjax.images.features import Features
from kjax.images.match import hloc_style
from kjax.weights import shipped

NAME = "kjax"
EXTRACTION = {
    "output": "feats-kjax",
    "model": {"name": NAME},
    "preprocessing": {"grayscale": True, "resize_max": 1600},
}
MATCHING = {"output": "matches-kjax", "model": {"name": NAME}}


def register(package: str = "hloc") -> None:
    """Makes "kjax" a name of an extractor, of a matcher, and of a configuration for each.

    Args:
        package: hloc, or a package with the same modules.
    """
    base = importlib.import_module(f"{package}.utils.base_model").BaseModel
    for folder, program, model, conf in (
        ("extractors", "extract_features", Extractor, EXTRACTION),
        ("matchers", "match_features", Matcher, MATCHING),
    ):
        place = f"{package}.{folder}.{NAME}"
        module = ModuleType(place, model.__doc__)
        module.Kjax = type(base)("Kjax", (model, base), {"__module__": place})  # type: ignore[attr-defined]
        sys.modules[place] = module
        importlib.import_module(f"{package}.{program}").confs[NAME] = copy.deepcopy(conf)


class Extractor:
    """SIFT's keypoints, described by kjax; a mixin for hloc's `BaseModel`."""

    default_conf: ClassVar = {"weights": shipped.DEFAULT, "max_keypoints": 4000}
    required_inputs = ("image",)
    conf: dict[str, Any]

    def _init(self, conf: dict[str, Any]) -> None:
        self.describer: kjax.Describer | None = None

    def _forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Features of one photograph [1,1 or 3,H,W] from 0 to 1."""
        if self.describer is None:
            # Not before: hloc forks the readers of its photographs, and JAX must not have started.
            self.describer = kjax.load(self.conf["weights"])
        image = data["image"]
        features = self.describer.describe_image(
            image[0].permute(1, 2, 0).cpu().numpy(), max_keypoints=self.conf["max_keypoints"]
        )
        arrays = feature_arrays(features)
        del arrays["image_size"]  # hloc knows the one before it resized
        # hloc halves float32, and float16 has but even coordinates beyond 2048 pixels.
        arrays["keypoints"] = arrays["keypoints"].astype(np.float64)
        return {name: _batch_of_one(array).to(image.device) for name, array in arrays.items()}


class Matcher:
    """`kjax.match`; a mixin for hloc's `BaseModel`.

    With the method "learned", `matcher` names one that was trained for the features' descriptors.
    """

    default_conf: ClassVar = {"method": "mutual_ratio", "ratio": 0.9, "matcher": None}
    required_inputs = ("descriptors0", "descriptors1")
    conf: dict[str, Any]

    def _init(self, conf: dict[str, Any]) -> None:
        pass

    def _forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Matches of descriptors [1,D,N] and [1,D,M]."""
        method, ratio, matcher = (self.conf[name] for name in ("method", "ratio", "matcher"))
        first, second = (
            _features(data, side) if method == "learned" else data[name][0].T.cpu().numpy()
            for side, name in zip("01", self.required_inputs, strict=True)
        )
        found = kjax.match(first, second, method=method, ratio=ratio, matcher=matcher)
        styled = hloc_style(found, len(first), len(second))
        device = data["descriptors0"].device
        return {name: _batch_of_one(array).to(device) for name, array in styled.items()}


def _features(data: dict[str, Tensor], side: str) -> Features:
    """All that hloc's file tells of one of the photographs, which hloc gives to matchers."""
    known = [name for name in FEATURES if name + side in data]
    arrays = {name: data[name + side][0].cpu().numpy() for name in known}
    return features_of(arrays, f"photograph {side} of the pair")


def _batch_of_one(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))[None]
