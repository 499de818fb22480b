"""A trained descriptor, ready to use on patches and photographs.

describer = kjax.load("hardnet")                       # or the workdir of a run
descriptors = describer.describe(patches)              # [N, 128], unit norm
features = describer.describe_image(photograph)        # SIFT keypoints, described
keypoints, descriptors = describer.detectAndCompute(photograph, None)  # as OpenCV has it, with
#   detect, compute, … of `kjax.images.feature2d`
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Num

from kjax.data.cutting.detectors import STEADY, check_detector, detector_label
from kjax.data.cutting.keypoints import MAX_KEYPOINTS, Keypoints, detect_in_grey
from kjax.data.cutting.photographs import grey_values
from kjax.data.phototour import PATCH_SIDE
from kjax.errors import InputError
from kjax.images.extraction import (
    ExtractedPatches,
    KeypointArrays,
    extract_patches,
    pad_keypoints,
)
from kjax.images.feature2d import Feature2D
from kjax.images.features import Features
from kjax.images.frames import as_frames
from kjax.images.given import as_array, open_image
from kjax.images.runner import Runner
from kjax.images.weights_checksum import weights_sha256
from kjax.model.descriptor import Descriptor
from kjax.model.folding import fold
from kjax.model.patches import resize_patches
from kjax.version import __version__
from kjax.weights.info import Provenance, display_name
from kjax.weights.shipped import DEFAULT, DEFAULT_RATIO
from kjax.weights.source import WHOLE_EXTENT, load_source

_resize = jax.jit(resize_patches, static_argnums=1)


def load(
    source: str = DEFAULT,
    *,
    seed: int | None = None,
    dtype: str = "float32",
    dimension: int | None = None,
    backend: str | None = None,
    detector: str = STEADY,
    max_keypoints: int = MAX_KEYPOINTS,
) -> "Describer":
    """A describer from weights that ship with kjax, a training run's workdir, or a weights file.

    Args:
        source: one of `kjax.list_weights()`; "out/first", "hardnet.pth", or
            "weights.npz:polar,s=1" where the weights fit several heads.
        seed: which of a run's several seeds.
        dtype: precision of the computation, "float32" or "bfloat16".
        dimension: numbers in a descriptor: the first of all, normalised, of weights that were
            trained for it (`config.loss.nested`).
        backend: what describes on CPUs, "jax" or "onnxruntime"; whichever is faster, by default.
            Descriptors are the same up to rounding.
        detector: of keypoints in photographs, all OpenCV's: SIFT-steady, SIFT (its strongest),
            SIFT-largest, ORB, BRISK, AKAZE or KAZE, see `kjax.data.cutting.detectors`.
        max_keypoints: to look for in a photograph, where it is not said.
    """
    found = load_source(str(source), seed=seed, dimension=dimension)
    return Describer(
        found.model,
        found.variables,
        dtype=dtype,
        extent=found.extent,
        ratio=found.ratio,
        name=str(source) if seed is None else f"{source}, seed {seed}",
        sha256=weights_sha256(found),
        backend=backend,
        detector=detector,
        max_keypoints=max_keypoints,
    )


class Describer(Feature2D):
    """A model with its weights, BatchNorm folded, compiled for few shapes.

    Attributes:
        dimension: of a descriptor.
        patch_size: side of the patches that the model sees.
        extent: of a keypoint's patch in the photograph: its side over the keypoint's diameter.
        ratio: of a match, the largest that suits the weights.
        dtype: precision of the computation.
        model: as a word: "hardnet", "combined_star s=2".
        name: where the weights came from, if they were loaded.
        sha256: of the weights, if they were loaded: see `kjax.images.weights_checksum`.
        detector: of keypoints in photographs, by its name in `kjax.data.cutting.detectors`.
        max_keypoints: to look for in a photograph, where it is not said.
    """

    def __init__(
        self,
        model: Descriptor,
        variables: Any,
        *,
        dtype: str = "float32",
        extent: float = WHOLE_EXTENT,
        ratio: float = DEFAULT_RATIO,
        name: str | None = None,
        sha256: str | None = None,
        backend: str | None = None,
        detector: str = STEADY,
        max_keypoints: int = MAX_KEYPOINTS,
    ) -> None:
        """Folds the weights.

        Args:
            model: as `kjax.build` makes it.
            variables: its weights.
            dtype: precision of the computation.
            extent: that suits the weights.
            ratio: likewise.
            name: where the weights came from, for people.
            sha256: of the weights, for records.
            backend: what describes, see `kjax.images.runner`.
            detector: of keypoints, see `kjax.data.cutting.detectors`.
            max_keypoints: to look for.
        """
        check_detector(detector)
        self.detector, self.max_keypoints = detector, max_keypoints
        self.extent, self.ratio, self.name, self.sha256 = extent, ratio, name, sha256
        self.dtype, self.model = str(jnp.dtype(dtype)), display_name(model)
        # NumPy's: see `fold`.
        folded = fold(model.clone(dtype=jnp.dtype(dtype)), jax.tree.map(np.asarray, variables))
        self._runner = Runner(*folded, backend=backend)
        self.patch_size, self.dimension = model.patch_size, self._runner.dimension

    def __repr__(self) -> str:
        name = "" if self.name is None else f"{self.name!r}, "
        return (
            f"Describer({name}model={self.model!r}, patch_size={self.patch_size}, "
            f"dimension={self.dimension}, extent={self.extent:g}, dtype={self.dtype!r})"
        )

    @property
    def provenance(self) -> Provenance:
        """The weights, as recorded with sets of views and learned matchers."""
        return Provenance(self.name or "", self.sha256 or "", self.dimension)

    def feature_settings(
        self, max_keypoints: int | None = None, *, stored: str = "float32"
    ) -> dict[str, Any]:
        """Return the settings of `describe_image`, as recorded with features.

        Args:
            max_keypoints: overrides the describer's own maximum.
            stored: type of the descriptors in the files, "float32" or a form of `kjax.quantize`.
        """
        return {
            "weights": self.name or "",
            "sha256": self.sha256 or "",
            "model": self.model,
            "patch_size": self.patch_size,
            "dtype": self.dtype,
            "extent": self.extent,
            "detector": detector_label(self.detector),
            "max_keypoints": self.max_keypoints if max_keypoints is None else max_keypoints,
            "photograph": "",
            "kjax": __version__,
            "stored": stored,
        }

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
        max_keypoints: int | None = None,
        order: str = "rgb",
    ) -> Features:
        """Keypoints of a photograph with their descriptors.

        Args:
            image: `[H,W]` or `[H,W,C]`, uint8, uint16 or floating, whose range is told as
                `kjax.data.cutting.photographs.grey_values` says; a picture of Pillow's; or the path
                of a file, which is turned upright as its camera noted.
            keypoints: OpenCV's; an array [N, 2 to 4] of x, y, diameter, angle; or kornia's LAFs
                [N,2,3], along which patches are cut as they are; the detector's best if not
                given. Those whose patch shows nothing of the image are left out.
            mask: where to look for keypoints; only without `keypoints`.
            max_keypoints: how many to look for; as many as the describer says, by default.
            order: of an array's colours, "rgb" or "bgr".
        """
        opened, order = open_image(image, order)
        grey = grey_values(np.asarray(opened), order=order)
        if keypoints is None:
            count = self.max_keypoints if max_keypoints is None else max_keypoints
            found = detect_in_grey(grey, mask=mask, max_keypoints=count, detector=self.detector)
            shapes = None
        else:
            found, shapes = as_frames(keypoints, self.extent)
        return self.describe_grey(grey, found, shapes)

    def describe_grey(
        self,
        grey: np.ndarray,
        keypoints: Keypoints,
        shapes: Float32[np.ndarray, "N 2 2"] | None = None,
    ) -> Features:
        """The same of keypoints that were found in this very grey, which is made once for both.

        Args:
            grey: photograph, as `kjax.data.cutting.photographs.grey_values` gives it.
            keypoints: points of it.
            shapes: of affine patches, see `kjax.extract_patches`.
        """
        descriptors, kept = self.describe_at(grey, keypoints, shapes)
        found = keypoints.keep(kept)
        return Features(
            xy=found.xy,
            descriptors=descriptors,
            image_size=(grey.shape[1], grey.shape[0]),
            scales=found.scales,
            angles=found.angles,
            scores=found.scores,
            weights_sha256=self.sha256,
        )

    def describe_at(
        self,
        grey: np.ndarray,
        keypoints: Keypoints,
        shapes: Float32[np.ndarray, "N 2 2"] | None = None,
    ) -> tuple[Float32[np.ndarray, "K dim"], Bool[np.ndarray, " N"]]:
        """Descriptors of the keypoints whose patch shows something, and which these are.

        The arguments are those of `describe_grey`.
        """
        count = len(keypoints.xy)
        patches, valid = self._cut(grey, keypoints, shapes)
        kept = np.asarray(valid)[:count]
        if jax.default_backend() == "cpu":
            return self.describe(np.asarray(patches)[:count][kept]), kept
        return self._runner.describe_on_device(patches)[:count][kept], kept

    def _cut(
        self, grey: np.ndarray, keypoints: Keypoints, shapes: np.ndarray | None
    ) -> ExtractedPatches:
        """Patches of the size that the model sees, and behind them some that pad their number."""
        xy, scales, angles, _ = keypoints
        arrays = pad_keypoints(KeypointArrays(xy, scales, angles, np.ones(len(xy), bool), shapes))
        # As sharp as the patches that models train on: cut with 64 pixels, then resized like them.
        patches, valid = extract_patches(
            grey,
            *arrays[:3],
            shape=arrays.shape,
            mask=arrays.mask,
            size=PATCH_SIDE,
            extent=self.extent,
        )
        if self.patch_size != PATCH_SIDE:
            patches = _resize(patches, self.patch_size)
        return ExtractedPatches(patches, valid)


def _resizing_hint(shape: tuple[int, ...], size: int) -> str:
    """How to get patches of the right size from what was given, if they are patches at all."""
    if shape == (size, size):
        return ": give patches[None] for a single one"
    if len(shape) == 3 and shape[1] == shape[2]:
        return f": resize them with kjax.model.patches.resize_patches(patches, {size})"
    return ""
