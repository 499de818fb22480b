"""A trained descriptor, ready to use on patches and images.

describer = kjax.load("hardnet")                       # or the workdir of a run
descriptors = describer.describe(patches)              # [N, 128], unit norm
features = describer.describe_image(image)             # SIFT keypoints, described
keypoints, descriptors = describer.detectAndCompute(image, None)  # the interface of cv2.SIFT
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from jaxtyping import Bool, Float32

from kjax.data.cutting import MAX_SIDE
from kjax.data.cutting.keypoints import (
    MAX_KEYPOINTS,
    STEADY,
    Keypoints,
    detect_in_grey,
    detector_label,
    find_in_grey,
    from_opencv,
)
from kjax.data.cutting.photographs import in_order
from kjax.data.phototour import PATCH_SIDE
from kjax.errors import InputError, check_name
from kjax.extras import jax, require
from kjax.images.conventions import as_array, keypoints_and_shapes
from kjax.images.extract import (
    LARGEST_SQUARE,
    extract_patches,
    open_grey,
    open_image,
    padded_count,
)
from kjax.images.features import Features
from kjax.images.runner import ONNXRUNTIME, Runner, fastest_dtype
from kjax.keypoints import find_detector
from kjax.model.architecture import Architecture
from kjax.model.describe import cores, on_cpu
from kjax.model.folding import fold, map_leaves
from kjax.model.patches import resize_patches
from kjax.version import __version__
from kjax.weights.info import Provenance, display_name
from kjax.weights.shipped import DEFAULT, DEFAULT_RATIO, no_surroundings
from kjax.weights.source import WHOLE_EXTENT, LoadedModel, load_source
from kjax.weights.torch_names import to_arrays

DTYPES = ("float32", "bfloat16", "int8")
MOST_AT_ONCE = 32768
"""Maximum keypoints of a photograph for one program, which cuts patches for as many."""
FEATURE_VERSION = 2
"""To be increased whenever the same photographs and settings give other features."""


def load(
    source: str = DEFAULT,
    *,
    seed: int | None = None,
    dtype: str = "float32",
    dimension: int | None = None,
    backend: str | None = None,
    detector: str = STEADY,
    max_keypoints: int = MAX_KEYPOINTS,
    max_side: int | None = MAX_SIDE,
    upright: bool = False,
    device: Any = None,
) -> "Describer":
    """Load a describer from shipped weights, a training run's workdir, or a weights file.

    Args:
        source: one of `kjax.list_weights()`, "out/first", "hardnet.pth", or
            "weights.npz:polar,s=1" if the weights fit several heads.
        seed: seed of a run with several seeds.
        dtype: "float32", "bfloat16", "int8" for CPUs, with nearly the same descriptors, or "auto":
            int8 on CPUs where it is faster, otherwise float32.
        dimension: descriptor size; the weights must be trained for it (`config.loss.nested`).
        backend: "jax", or "onnxruntime" for CPUs only (default: the faster).
        detector: one of OpenCV's, see `kjax.data.cutting.keypoints`, or a trained one's file.
        max_keypoints: maximum per image.
        max_side: `describe_image` reduces larger images to this side before it detects keypoints,
            which are in pixels of the original. None: never.
        upright: detect keypoints without orientation, for images that are not turned.
        device: a `jax.Device`, or "cpu", "gpu", "gpu:1" (default: JAX's default device).
    """
    found = load_source(str(source), seed=seed, dimension=dimension)
    return Describer(
        found.architecture,
        found.arrays,
        dtype=dtype,
        extent=found.extent,
        ratio=found.ratio,
        name=str(source) if seed is None else f"{source}, seed {seed}",
        sha256=weights_sha256(found),
        backend=backend,
        detector=detector,
        max_keypoints=max_keypoints,
        max_side=max_side,
        upright=upright,
        device=device,
    )


def weights_sha256(source: LoadedModel) -> str:
    """Return the SHA-256 of shipped weights' file, or of other weights' names and values."""
    if source.info.sha256:
        return source.info.sha256
    digest = hashlib.sha256()
    for name, array in sorted(to_arrays(source.arrays).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


class Describer:
    """A model with its weights, BatchNorm folded, compiled for few shapes.

    It has the methods of OpenCV's `Feature2D`. Those take arrays with colours in OpenCV's order
    and return `cv2.KeyPoint` objects as the caller or the detector made them.

    Attributes:
        extent: side of a keypoint's patch in the image over the keypoint's diameter.
        ratio: default ratio for the ratio test with these weights.
        model: head and variant, e.g. "combined_star s=2".
        name: where the weights came from, if they were loaded.
    """

    def __init__(
        self,
        model: Architecture,
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
        max_side: int | None = MAX_SIDE,
        upright: bool = False,
        device: Any = None,
    ) -> None:
        """Fold the weights `variables` of a model made by `kjax.build`; see the attributes."""
        dtype = fastest_dtype(backend, device) if dtype == "auto" else np.dtype(dtype).name
        check_name("dtype", dtype, DTYPES)
        self.detector = find_detector(detector)
        self.max_keypoints, self.max_side = max_keypoints, max_side
        self.extent, self.ratio, self.name, self.sha256 = extent, ratio, name, sha256
        self.upright = upright
        self.dtype, self.model = dtype, display_name(model)
        # NumPy's: JAX would compile a program for every few numbers.
        arrays = map_leaves(np.asarray, variables)
        folded = fold(model.clone(dtype=np.dtype(dtype)), arrays, on_host=True)
        self._runner = Runner(*folded, backend=backend, device=device)
        self.device = self._runner.device
        self.patch_size, self.dimension = model.patch_size, self._runner.dimension
        self._shape, self._context = model.patch_shape, np.array(model.context, np.float32)

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
        """Return the settings recorded with features; `stored`: see `kjax.quantize`."""
        return {
            "weights": self.name or "",
            "sha256": self.sha256 or "",
            "model": self.model,
            "patch_size": self.patch_size,
            "dtype": self.dtype,
            "extent": self.extent,
            "detector": detector_label(self.detector),
            "max_keypoints": self.max_keypoints if max_keypoints is None else max_keypoints,
            "max_side": self.max_side,
            "upright": self.upright,
            "photograph": "",
            "kjax": __version__,
            "stored": stored,
            "version": FEATURE_VERSION,
        }

    def describe(self, patches: Any) -> Float32[np.ndarray, "N dim"]:
        """Describe patches `[N,S,S]`, `[N,S,S,1]` or `[N,1,S,S]` of patch size S.

        A model with context takes `[N,C,S,S]`: each point's concentric patches, the widest last.
        They are uint8, or floating of any range, in whatever NumPy can read as an array.
        """
        found, size = np.asarray(as_array(patches, "patches")), self.patch_size
        if found.dtype.kind not in "iu" and "float" not in found.dtype.name:
            raise InputError(f"patches of type {found.dtype}: give uint8 or floating ones")
        sides = (size, size)
        if self._shape != sides and found.shape[1:] != self._shape:
            raise no_surroundings(self.name or self.model)
        if found.shape[1:] not in (self._shape, (*sides, 1), (1, *sides)):
            hint = f"resize them with kjax.model.patches.resize_patches(patches, {size})"
            if found.shape == sides:
                hint = "give patches[None] for a single one"
            raise InputError(
                f"patches of shape {list(found.shape)}: this model describes [N, {size}, {size}]: "
                f"{hint}"
            )
        return self._runner.describe(found.reshape(len(found), *self._shape))

    @overload
    def describe_image(self, image: list[Any], **options: Any) -> list[Features]: ...
    @overload
    def describe_image(self, image: Any, keypoints: Any = None, **options: Any) -> Features: ...
    def describe_image(  # type: ignore[misc]  # the overloads' options are these
        self,
        image: Any,
        keypoints: Any = None,
        *,
        mask: np.ndarray | None = None,
        max_keypoints: int | None = None,
        upright: bool | None = None,
        order: str = "rgb",
    ) -> Features | list[Features]:
        """Detect and describe the keypoints of an image, or of each image in a list.

        Args:
            image: `[H,W]` or `[H,W,C]`, uint8, uint16 or floating (see
                `kjax.data.cutting.photographs.grey_values`); a Pillow image; or a file's path. Or a
                list of these. Files are read as stored: EXIF orientations are ignored. Features
                refer to it as `image`, for `kjax.plot_matches`, which turns files upright.
            keypoints: OpenCV's keypoints; an array [N, 2 to 4] of x, y, diameter, angle; or
                kornia's LAFs [N,2,3], which are the patches themselves (default: the detector's).
                Keypoints whose patch lies outside the image are dropped.
            mask: non-zero where keypoints are detected; only without `keypoints`.
            max_keypoints: maximum number of keypoints (default: the describer's).
            upright: detect keypoints without orientation (default: the describer's).
            order: order of an array's colours, "rgb" or "bgr".
        """
        if upright and keypoints is not None:
            raise InputError("upright=True is for detection: give keypoints with the angle −1")

        def find(image: Any) -> tuple[Any, ...]:
            is_file = isinstance(image, str | os.PathLike)
            opened, own_order = (image, order) if is_file else open_image(image, order)
            if keypoints is None:
                grey, size = open_grey(opened, own_order, self.max_side)
                chosen = None if mask is None else np.asarray(mask)
                if chosen is not None and chosen.shape == size[::-1]:
                    # Nearest pixels, if the image was reduced.
                    pairs = zip(grey.shape, chosen.shape, strict=True)
                    chosen = chosen[np.ix_(*(np.arange(n) * m // n for n, m in pairs))]
                count = self.max_keypoints if max_keypoints is None else max_keypoints
                up = self.upright if upright is None else upright
                work = self.detected(grey, chosen, max_keypoints=count, upright=up)
            else:
                grey, size = open_grey(opened, own_order)
                found, shapes = keypoints_and_shapes(keypoints, self.extent)
                work = functools.partial(self.describe_grey, grey, found, shapes)
            if not is_file and own_order == "bgr" and opened.ndim == 3:
                opened = opened[..., 2::-1]
            return opened, size, work

        def describe(opened: Any, size: tuple[int, int], work: Callable[[], Features]) -> Features:
            return dataclasses.replace(work().resized(size), image=opened)

        if not isinstance(image, list | tuple):
            return describe(*find(image))
        work = in_order(find, image, threads=min(cores(), 4))
        return [describe(*future.result()) for _, future in work]

    def describe_grey(
        self,
        grey: np.ndarray,
        keypoints: Keypoints,
        shapes: Float32[np.ndarray, "N 2 2"] | None = None,
    ) -> Features:
        """Describe keypoints of `grey_values`' image; `shapes`: see `kjax.extract_patches`."""
        descriptors, kept = self.describe_at(grey, keypoints, shapes)
        return self._as_features(grey, keypoints.keep(kept), descriptors)

    def detected(
        self,
        grey: np.ndarray,
        mask: np.ndarray | None = None,
        *,
        max_keypoints: int | None,
        upright: bool,
    ) -> Callable[[], Features]:
        """Detect keypoints of `grey_values`' image; return a function that describes them.

        On accelerators, that function does both in one program, with a learned detector.
        """
        if not self._at_once(grey, max_keypoints):
            options: Any = {"max_keypoints": max_keypoints, "upright": upright}
            found = detect_in_grey(grey, mask=mask, detector=self.detector, **options)
            return functools.partial(self.describe_grey, grey, found)
        return functools.partial(self._find_and_describe, grey, mask, max_keypoints, upright)

    def _at_once(self, grey: np.ndarray, count: int | None) -> bool:
        few = max(grey.shape) <= LARGEST_SQUARE and count is not None and count <= MOST_AT_ONCE
        return callable(self.detector) and not on_cpu(self.device) and few

    def _find_and_describe(
        self, grey: np.ndarray, mask: np.ndarray | None, count: int | None, upright: bool
    ) -> Features:
        from kjax.images.on_device import Plan, find_and_describe  # brings JAX

        context, module = tuple(self._context.tolist()), self._runner.module()
        plan = Plan(module, self.patch_size, context, self.extent, upright)
        detector: Any = self.detector
        with self._runner.on_device():
            found = find_and_describe(plan, detector, self._runner.weights, grey, mask, count)
        return self._as_features(grey, *found)

    def _as_features(
        self, grey: np.ndarray, found: Keypoints, descriptors: Float32[np.ndarray, "K dim"]
    ) -> Features:
        return Features(
            xy=found.xy,
            descriptors=descriptors,
            image_size=(grey.shape[1], grey.shape[0]),
            scales=found.scales,
            angles=found.angles,
            scores=found.scores,
            weights_sha256=self.sha256,
            ratio=self.ratio,
        )

    def describe_at(
        self,
        grey: np.ndarray,
        keypoints: Keypoints,
        shapes: Float32[np.ndarray, "N 2 2"] | None = None,
    ) -> tuple[Float32[np.ndarray, "K dim"], Bool[np.ndarray, " N"]]:
        """Return the descriptors of keypoints with valid patches, and which those are."""
        count, widths = len(keypoints.xy), len(self._context)
        on_host = self._runner.backend == ONNXRUNTIME
        # Few shapes, for few programs of JAX.
        padded = keypoints if on_host else keypoints.padded(padded_count(count))
        if shapes is not None:
            shapes = np.pad(shapes, [(0, len(padded.xy) - count), (0, 0), (0, 0)])
            shapes = np.repeat(shapes, widths, axis=0)
        xy, scales, angles, _ = padded.concentric(self._context)
        with self._runner.on_device():
            # As sharp as the patches that models train on: cut with 64 pixels, then resized alike.
            options: Any = {"shape": shapes, "size": PATCH_SIDE, "extent": self.extent}
            options["backend"] = "numpy" if on_host else "jax"
            patches, valid = extract_patches(grey, xy, scales, angles, **options)
            if on_host:
                kept = valid[::widths]
                points = patches.reshape(count, *self._shape[:-2], PATCH_SIDE, PATCH_SIDE)[kept]
                return self._runner.describe(points), kept
            if self.patch_size != PATCH_SIDE:
                patches = _resize()(patches, self.patch_size)
            patches = patches.reshape(-1, *self._shape)
            kept = np.asarray(valid)[::widths][:count]
            if on_cpu():
                return self.describe(np.asarray(patches)[:count][kept]), kept
            return self._runner.describe_on_device(patches)[:count][kept], kept

    def detect(self, image: Any, mask: np.ndarray | None = None) -> list[Any]:
        """Detect keypoints, strongest first, where the mask is not zero."""
        return self._find(open_grey(image, "bgr")[0], mask)

    def compute(
        self, image: Any, keypoints: Sequence[Any]
    ) -> tuple[list[Any], Float32[np.ndarray, "K dim"]]:
        """Describe `cv2.KeyPoint` objects; those whose patch lies outside the image are dropped."""
        return self.detectAndCompute(image, None, True, keypoints=keypoints)

    def detectAndCompute(  # noqa: N802
        self,
        image: Any,
        mask: np.ndarray | None = None,
        useProvidedKeypoints: bool = False,
        *,
        keypoints: Sequence[Any] | None = None,
    ) -> tuple[list[Any], Float32[np.ndarray, "K dim"]]:
        """Detect keypoints, or take those in `keypoints`, and describe them."""
        if useProvidedKeypoints != (keypoints is not None):
            raise InputError(
                "useProvidedKeypoints=True and keypoints=… belong together: give both or neither"
            )
        grey, _ = open_grey(image, "bgr")
        if keypoints is None:
            keypoints = self._find(grey, mask)
        if not all(hasattr(point, "pt") for point in keypoints):
            raise InputError(
                "the keypoints are not cv2.KeyPoint objects: describe_image takes arrays and LAFs"
            )
        descriptors, kept = self.describe_at(grey, from_opencv(keypoints))
        pairs = zip(keypoints, kept, strict=True)
        return [point for point, valid in pairs if valid], descriptors

    def descriptorSize(self) -> int:  # noqa: N802
        """Return the descriptor size."""
        return self.dimension

    def descriptorType(self) -> int:  # noqa: N802
        """Return OpenCV's constant for float32."""
        return require("cv2", "OpenCV's types").CV_32F

    def defaultNorm(self) -> int:  # noqa: N802
        """Return OpenCV's constant for the L2 distance."""
        return require("cv2", "OpenCV's norms").NORM_L2

    def _find(self, grey: np.ndarray, mask: np.ndarray | None) -> list[Any]:
        options: Any = {"detector": self.detector, "upright": self.upright}
        return find_in_grey(grey, mask=mask, max_keypoints=self.max_keypoints, **options)


@functools.cache
def _resize() -> Any:
    return jax.jit(resize_patches, static_argnums=1)
