"""kjax as an extractor and a matcher of hloc, and of image-matching-webui, which is built on it.

    from kjax.integrations.hloc import register  # before hloc, which imports pycolmap
    from hloc import extract_features, match_features

    register()  # or register("imcui.hloc")
    extract_features.main(extract_features.confs["kjax"], photographs, outputs)

hloc looks up a model among its own modules, by name, and takes the one class in there. `register`
adds such modules. Positions have the centre of the first pixel at (0, 0), as hloc expects: it adds
0.5 itself when it fills a COLMAP database.
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
    """Register "kjax" as extractor and matcher of hloc, or of a package with the same modules."""
    base = importlib.import_module(f"{package}.utils.base_model").BaseModel
    for folder, program, model, conf in (
        ("extractors", "extract_features", HlocExtractor, EXTRACTION),
        ("matchers", "match_features", HlocMatcher, MATCHING),
    ):
        place = f"{package}.{folder}.{NAME}"
        module = ModuleType(place, model.__doc__)
        module.Kjax = type(base)("Kjax", (model, base), {"__module__": place})  # type: ignore[attr-defined]
        sys.modules[place] = module
        importlib.import_module(f"{package}.{program}").confs[NAME] = copy.deepcopy(conf)


class HlocExtractor:
    """SIFT keypoints described by kjax; a mixin for hloc's `BaseModel`."""

    default_conf: ClassVar = {"weights": shipped.DEFAULT, "max_keypoints": 4000}
    required_inputs = ("image",)
    conf: dict[str, Any]

    def _init(self, conf: dict[str, Any]) -> None:
        self.describer: kjax.Describer | None = None

    def _forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Describe one image [1,1 or 3,H,W] from 0 to 1."""
        if self.describer is None:
            # Not earlier: hloc forks the readers of its images, and JAX must not have started.
            self.describer = kjax.load(self.conf["weights"])
        image = data["image"]
        features = self.describer.describe_image(
            image[0].permute(1, 2, 0).cpu().numpy(), max_keypoints=self.conf["max_keypoints"]
        )
        arrays = feature_arrays(features)
        del arrays["image_size"]  # hloc knows the size before it resized
        # hloc halves float32, and float16 has only even coordinates beyond 2048 pixels.
        arrays["keypoints"] = arrays["keypoints"].astype(np.float64)
        return {name: _batch_of_one(array).to(image.device) for name, array in arrays.items()}


class HlocMatcher:
    """`kjax.match`; a mixin for hloc's `BaseModel`."""

    default_conf: ClassVar = {
        "method": "mutual_ratio",
        "ratio": 0.9,
        "matcher": None,  # for the method "learned": one that was trained for the descriptors
    }
    required_inputs = ("descriptors0", "descriptors1")
    conf: dict[str, Any]

    def _init(self, conf: dict[str, Any]) -> None:
        pass

    def _forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Match descriptors [1,D,N] and [1,D,M]."""
        method, ratio, matcher = (self.conf[name] for name in ("method", "ratio", "matcher"))
        sides: list[Any] = []
        for side, name in zip("01", self.required_inputs, strict=True):
            if method == "learned":
                known = [name for name in FEATURES if name + side in data]
                arrays = {name: data[name + side][0].cpu().numpy() for name in known}
                sides.append(features_of(arrays, f"image {side} of the pair"))
            else:
                sides.append(data[name][0].T.cpu().numpy())
        found = kjax.match(*sides, method=method, ratio=ratio, matcher=matcher)
        styled = hloc_style(found, len(sides[0]), len(sides[1]))
        device = data["descriptors0"].device
        return {name: _batch_of_one(array).to(device) for name, array in styled.items()}


def _batch_of_one(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))[None]
