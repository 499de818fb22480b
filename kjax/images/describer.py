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
from jaxtyping import Bool, Float, Float32, Num

from kjax.data.cutting.grey import grey_values
from kjax.data.cutting.keypoints import (
    DETECTOR,
    MAX_KEYPOINTS,
    Keypoints,
    as_keypoints,
    detect_in_grey,
    to_opencv,
)
from kjax.data.phototour import PATCH_SIDE
from kjax.errors import InputError
from kjax.images.exchange.provenance import Provenance
from kjax.images.extraction import KeypointArrays, extract_patches, pad_keypoints
from kjax.images.features import Features
from kjax.images.given import as_array, open_image
from kjax.images.runner import Runner
from kjax.images.weights_checksum import weights_sha256
from kjax.model.descriptor import Descriptor
from kjax.model.folding import fold
from kjax.model.resampling import resize_patches
from kjax.pretrained import DEFAULT
from kjax.train.load_source import WHOLE_EXTENT, load_source
from kjax.weights.identify import display_name

_resize = jax.jit(resize_patches, static_argnums=1)


def load(
    source: str = DEFAULT,
    *,
    seed: int | None = None,
    dtype: str = "float32",
    dimension: int | None = None,
    backend: str | None = None,
) -> "Describer":
    """A describer from weights that ship with kjax, a training run's workdir, or a weights file.

    Args:
        source: one of `kjax.pretrained.names()`, by default `kjax.pretrained.DEFAULT`; "out/first",
            "hardnet.pth", or "weights.npz:polar,s=1" where the weights fit several heads.
        seed: which of a run's several seeds.
        dtype: precision of the computation, "float32" or "bfloat16".
        dimension: numbers in a descriptor: the first of all, normalised, of weights that were
            trained for it (`config.loss.nested`).
        backend: what describes on CPUs, "jax" or "onnxruntime"; whichever is faster, by default.
            Descriptors are the same up to rounding.
    """
    found = load_source(str(source), seed=seed, dimension=dimension)
    return Describer(
        found.model,
        found.variables,
        dtype=dtype,
        extent=found.extent,
        name=str(source) if seed is None else f"{source}, seed {seed}",
        sha256=weights_sha256(found),
        backend=backend,
    )


class Describer:
    """A model with its weights, BatchNorm folded, compiled for few shapes.

    Attributes:
        dimension: of a descriptor.
        patch_size: side of the patches that the model sees.
        extent: of a keypoint's patch in the photograph: its side over the keypoint's diameter.
        dtype: precision of the computation.
        model: as a word: "hardnet", "combined_star s=2".
        name: where the weights came from, if they were loaded.
        sha256: of the weights, if they were loaded: see `kjax.images.weights_checksum`.
    """

    def __init__(
        self,
        model: Descriptor,
        variables: Any,
        *,
        dtype: str = "float32",
        extent: float = WHOLE_EXTENT,
        name: str | None = None,
        sha256: str | None = None,
        backend: str | None = None,
    ) -> None:
        """Folds the weights.

        Args:
            model: as `kjax.build` makes it.
            variables: its weights.
            dtype: precision of the computation.
            extent: that suits the weights.
            name: where the weights came from, for people.
            sha256: of the weights, for records.
            backend: what describes, see `kjax.images.runner`.
        """
        self.extent, self.name, self.sha256 = extent, name, sha256
        self.dtype, self.model = str(jnp.dtype(dtype)), display_name(model)
        folded = fold(model.clone(dtype=jnp.dtype(dtype)), variables)
        self._runner = Runner(*folded, backend=backend)
        self.patch_size, self.dimension = model.patch_size, self._runner.dimension

    def __repr__(self) -> str:
        name = "" if self.name is None else f"{self.name!r}, "
        return (
            f"Describer({name}model={self.model!r}, patch_size={self.patch_size}, "
            f"dimension={self.dimension}, extent={self.extent:g}, dtype={self.dtype!r})"
        )

    def provenance(
        self, max_keypoints: int = MAX_KEYPOINTS, *, stored: str = "float32"
    ) -> Provenance:
        """What `describe_image` makes features with, for the files that they go to.

        Args:
            max_keypoints: that it is told to look for.
            stored: what descriptors become in the files.
        """
        return Provenance(
            weights=self.name or "",
            sha256=self.sha256 or "",
            model=self.model,
            patch_size=self.patch_size,
            dtype=self.dtype,
            extent=self.extent,
            detector=DETECTOR,
            max_keypoints=max_keypoints,
            stored=stored,
        )

    def describe(self, patches: Any) -> Float32[np.ndarray, "N dim"]:
        """Descriptors of patches.

        Args:
            patches: `[N,S,S]`, `[N,S,S,1]` or `[N,1,S,S]`, S the patch size; of NumPy, of JAX, or
                of whatever NumPy can read. uint8 or floating of any range.

        Raises:
            InputError: patches of another shape, or with NaN or infinite pixels.
        """
        return self._runner.describe(self._as_patches(patches))

    def _as_patches(self, patches: Any) -> Num[np.ndarray, "N size size"]:
        found, size = np.asarray(as_array(patches, "patches")), self.patch_size
        if not any(jnp.issubdtype(found.dtype, kind) for kind in (jnp.integer, jnp.floating)):
            raise InputError(f"patches of type {found.dtype}: give uint8 or floating ones")
        sides = (size, size)
        if found.shape[1:] in (sides, (*sides, 1), (1, *sides)):
            return found.reshape(len(found), *sides)
        raise InputError(
            f"patches of shape {list(found.shape)}: this model describes [N, {size}, {size}]"
            f"{_resizing_hint(found.shape, size)}"
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
            image: `[H,W]` or `[H,W,C]`, uint8, uint16 or floating, whose range is told as
                `kjax.data.cutting.grey.grey_values` says; a picture of Pillow's; or the path of a
                file, which is turned upright as its camera noted.
            keypoints: OpenCV's, or an array [N, 2 to 4] of x, y, diameter, angle; SIFT's strongest
                if not given. Those whose patch shows nothing of the image are left out.
            mask: where to look for keypoints; only without `keypoints`.
            max_keypoints: how many to look for.
            order: of an array's colours, "rgb" or "bgr".
        """
        opened, order = open_image(image, order)
        # Once, for detection and extraction both: they must see the same grey.
        grey = grey_values(np.asarray(opened), order=order)
        if keypoints is None:
            found = detect_in_grey(grey, mask=mask, max_keypoints=max_keypoints)
        else:
            found = as_keypoints(keypoints)
        patches, kept = self._cut(grey, found)
        found = found.keep(kept)
        return Features(
            xy=found.xy,
            descriptors=self.describe(patches[kept]),
            image_size=(grey.shape[1], grey.shape[0]),
            scales=found.scales,
            angles=found.angles,
            scores=found.scores,
        )

    def _cut(
        self, grey: np.ndarray, keypoints: Keypoints
    ) -> tuple[Float[np.ndarray, "N size size"], Bool[np.ndarray, " N"]]:
        """Patches of the size that the model sees, and which of them show something."""
        xy, scales, angles, _ = keypoints
        arrays = pad_keypoints(KeypointArrays(xy, scales, angles, np.ones(len(xy), bool)))
        # As sharp as the patches that models train on: cut with 64 pixels, then resized like them.
        patches, valid = extract_patches(
            grey, *arrays[:3], mask=arrays.mask, size=PATCH_SIDE, mr_size=self.extent
        )
        if self.patch_size != PATCH_SIDE:
            patches = _resize(patches, self.patch_size)
        return np.asarray(patches)[: len(xy)], np.asarray(valid)[: len(xy)]

    def detectAndCompute(  # noqa: N802  (OpenCV's name, so that it can stand in for SIFT)
        self, image: Any, mask: np.ndarray | None = None
    ) -> tuple[list[Any], Float32[np.ndarray, "N dim"]]:
        """As OpenCV's detectors have it; an array's colours are in OpenCV's order."""
        found = self.describe_image(image, mask=mask, order="bgr")
        columns = (found.xy, found.scales, found.angles, found.scores)
        return to_opencv(Keypoints(*columns)), found.descriptors  # type: ignore[arg-type]


def _resizing_hint(shape: tuple[int, ...], size: int) -> str:
    """How to get patches of the right size from what was given, if they are patches at all."""
    if shape == (size, size):
        return ": give patches[None] for a single one"
    if len(shape) == 3 and shape[1] == shape[2]:
        return f": resize them with kjax.model.resampling.resize_patches(patches, {size})"
    return ""
