"""FeatureBooster (Wang et al., CVPR 2023): SIFT descriptors, boosted by a photo's other keypoints.

The authors' own code and weights run, from a checkout of their repository: its `featurebooster.py`
is executed, its `config.yaml` and `models/*.pth` are read as plain data.
"""

import functools
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from keypoint_descriptors import load_keypoint_descriptors

from kjax.baselines.descriptor import Unavailable
from kjax.data.cutting.keypoints import Keypoints, upright_without
from kjax.extras import require

NAMES = {"boost-f": "SIFT+Boost-F", "boost-b": "SIFT+Boost-B"}
"""Names in the authors' configuration: real values, and 256 bits."""
ADDRESS = "https://github.com/SJTU-ViSYS/FeatureBooster"


def booster(
    name: str, checkout: Path | None
) -> Callable[[np.ndarray, Keypoints], Float32[np.ndarray, "N dim"]]:
    """Return a function of a grey photo and its SIFT keypoints; bits are zeros and ones."""
    torch, network = require("torch", name), _network(name, checkout)
    sift = load_keypoint_descriptors(["sift"])["sift"].describe

    def describe(photo: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        rows = sift(photo, keypoints)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        inputs = map(torch.from_numpy, (rows, geometry(keypoints, photo.shape)))
        with torch.inference_mode():
            found = network(*inputs).numpy()
        return found if name == "boost-f" else (found >= 0).astype(np.float32)

    return describe


def geometry(keypoints: Keypoints, shape: tuple[int, ...]) -> Float32[np.ndarray, "N 4"]:
    """Return x, y, σ and the angle in radians, as the authors' `extract_features.py` does."""
    height, width = shape
    xy = (keypoints.xy - np.array([width / 2, height / 2])) / (0.7 * max(shape))
    radians = np.deg2rad(upright_without(keypoints.angles) % np.float32(360))
    return np.column_stack([xy, keypoints.scales / 2, radians]).astype(np.float32)


@functools.cache
def _network(name: str, checkout: Path | None) -> Any:
    if checkout is None:
        raise Unavailable(f"no checkout: give --featurebooster FOLDER, from {ADDRESS}")
    try:
        import yaml

        config = yaml.safe_load((checkout / "config.yaml").read_text(encoding="utf-8"))
        weights = checkout / "models" / f"{NAMES[name]}.pth"
        state = require("torch", name).load(weights, map_location="cpu", weights_only=True)
        code: dict[str, Any] = runpy.run_path(str(checkout / "featurebooster.py"))
    except (ImportError, OSError) as error:
        raise Unavailable(f"{checkout} is not a checkout of {ADDRESS}: {error}") from None
    network = code["FeatureBooster"](config[NAMES[name]])
    network.load_state_dict(state)
    return network.eval()
