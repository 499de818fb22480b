"""A trained descriptor, ready to use on patches and photographs.

describer = kjax.load("hardnet")                       # or the workdir of a run
descriptors = describer.describe(patches)              # [N, 128], unit norm
features = describer.describe_image(photograph)        # SIFT keypoints, described
keypoints, descriptors = describer.detectAndCompute(photograph, None)  # as OpenCV has it
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32

from kjax.architecture import Descriptor
from kjax.augment import resize_patches
from kjax.data.phototour import PATCH_SIDE
from kjax.errors import InputError
from kjax.eval.describe import describe, preferred_batch
from kjax.folding import fold
from kjax.images.detection import MAX_KEYPOINTS, Keypoints, as_keypoints, detect, to_opencv
from kjax.images.extraction import KeypointArrays, extract_patches, pad_keypoints
from kjax.images.features import Features
from kjax.interop.source import WHOLE_EXTENT, load_source
from kjax.pretrained import DEFAULT

_resize = jax.jit(resize_patches, static_argnums=1)


def load(source: str = DEFAULT, *, seed: int | None = None, dtype: str = "float32") -> "Describer":
    """A describer from weights that ship with kjax, a training run's workdir, or a weights file.

    Args:
        source: one of `kjax.pretrained.names()`, by default `kjax.pretrained.DEFAULT`; "out/first",
            "hardnet.pth", or "weights.npz:polar,s=1" where the weights fit several heads.
        seed: which of a run's several seeds.
        dtype: precision of the computation, "float32" or "bfloat16".
    """
    found = load_source(str(source), seed=seed)
    return Describer(found.model, found.variables, dtype=dtype, extent=found.extent)


class Describer:
    """A model with its weights, BatchNorm folded, compiled for few shapes.

    Attributes:
        dimension: of a descriptor.
        patch_size: side of the patches that the model sees.
        extent: of a keypoint's patch in the photograph: its side over the keypoint's diameter.
    """

    def __init__(
        self,
        model: Descriptor,
        variables: Any,
        *,
        dtype: str = "float32",
        extent: float = WHOLE_EXTENT,
    ) -> None:
        """Folds the weights.

        Args:
            model: as `kjax.build` makes it.
            variables: its weights.
            dtype: precision of the computation.
            extent: that suits the weights.
        """
        self.extent = extent
        folded, self._weights = fold(model.clone(dtype=jnp.dtype(dtype)), variables)
        self._apply = jax.jit(folded.apply)
        self.patch_size = model.patch_size
        blank = np.zeros((1, self.patch_size, self.patch_size), np.float32)
        self.dimension = int(jax.eval_shape(folded.apply, self._weights, blank).shape[1])

    def describe(self, patches: Any) -> Float32[np.ndarray, "N dim"]:
        """Descriptors of patches [N, S, S], S the patch size, uint8 or floating of any range."""
        patches = np.asarray(patches)
        if patches.ndim != 3 or patches.shape[1:] != (self.patch_size, self.patch_size):
            raise InputError(
                f"patches of shape {list(patches.shape)}: this model describes "
                f"[N, {self.patch_size}, {self.patch_size}]"
            )
        # A power of two: photographs with any number of keypoints run one of few programmes.
        batch = min(preferred_batch(), 1 << max(len(patches) - 1, 0).bit_length())
        return describe(
            lambda block: self._apply(self._weights, block),
            patches,
            size=self.patch_size,
            batch=batch,
            progress=False,
        )

    def describe_image(
        self,
        image: Any,
        keypoints: Any = None,
        *,
        mask: np.ndarray | None = None,
        max_keypoints: int = MAX_KEYPOINTS,
        order: str = "rgb",
    ) -> Features:
        """Keypoints of a photograph with their descriptors.

        Args:
            image: `[H,W]` or `[H,W,C]`, uint8, uint16 or floating.
            keypoints: OpenCV's, or an array [N, 2 to 4] of x, y, diameter, angle; SIFT's strongest
                if not given. Those whose patch shows nothing of the image are left out.
            mask: where to look for keypoints; only without `keypoints`.
            max_keypoints: how many to look for.
            order: of colours, "rgb" or "bgr".
        """
        image = np.asarray(image)
        if keypoints is None:
            found = detect(image, mask=mask, max_keypoints=max_keypoints)
        else:
            found = as_keypoints(keypoints)
        patches, kept = self._cut(image, found, order)
        found = found.keep(kept)
        return Features(
            xy=found.xy,
            descriptors=self.describe(patches[kept]),
            image_size=(image.shape[1], image.shape[0]),
            scales=found.scales,
            angles=found.angles,
            scores=found.scores,
        )

    def _cut(
        self, image: np.ndarray, keypoints: Keypoints, order: str
    ) -> tuple[Float[np.ndarray, "N size size"], Bool[np.ndarray, " N"]]:
        """Patches of the size that the model sees, and which of them show something."""
        xy, scales, angles, _ = keypoints
        arrays = pad_keypoints(KeypointArrays(xy, scales, angles, np.ones(len(xy), bool)))
        # As sharp as the patches that models train on: cut with 64 pixels, then resized like them.
        patches, valid = extract_patches(
            image, *arrays[:3], mask=arrays.mask, size=PATCH_SIDE, mr_size=self.extent, order=order
        )
        if self.patch_size != PATCH_SIDE:
            patches = _resize(patches, self.patch_size)
        return np.asarray(patches)[: len(xy)], np.asarray(valid)[: len(xy)]

    def detectAndCompute(  # noqa: N802  (OpenCV's name, so that it can stand in for SIFT)
        self, image: Any, mask: np.ndarray | None = None
    ) -> tuple[list[Any], Float32[np.ndarray, "N dim"]]:
        """As OpenCV's detectors have it; colours in OpenCV's order."""
        found = self.describe_image(image, mask=mask, order="bgr")
        columns = (found.xy, found.scales, found.angles, found.scores)
        return to_opencv(Keypoints(*columns)), found.descriptors  # type: ignore[arg-type]
