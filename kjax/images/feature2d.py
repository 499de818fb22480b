"""What OpenCV's `Feature2D` can be asked, under its names: a describer stands in for `cv2.SIFT`.

Keypoints come back as the very objects that went in, or as OpenCV's detector made them: octave,
response and class_id are theirs. Colours of arrays are in OpenCV's order.
"""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from kjax.data.cutting.keypoints import Keypoints, find_in_grey, from_opencv
from kjax.data.cutting.photographs import grey_values
from kjax.errors import InputError
from kjax.extras import require
from kjax.images.given import open_image


class Feature2D(abc.ABC):
    """A descriptor of keypoints with a detector.

    Attributes:
        dimension: of a descriptor.
        detector: one of `kjax.data.cutting.detectors.DETECTORS`.
        max_keypoints: that are looked for, the strongest first.
    """

    dimension: int
    detector: str
    max_keypoints: int

    @abc.abstractmethod
    def describe_at(
        self, grey: np.ndarray, keypoints: Keypoints
    ) -> tuple[Float32[np.ndarray, "K dim"], Bool[np.ndarray, " N"]]:
        """Descriptors of the keypoints whose patch shows something, and which these are."""

    def detect(self, image: Any, mask: np.ndarray | None = None) -> list[Any]:
        """Keypoints of a photograph, the strongest first.

        Args:
            image: as for `kjax.Describer.describe_image`.
            mask: where to look for them.
        """
        return self._find(_grey(image), mask)

    def compute(
        self, image: Any, keypoints: Sequence[Any]
    ) -> tuple[list[Any], Float32[np.ndarray, "K dim"]]:
        """Descriptors of given `cv2.KeyPoint` objects, without those that show nothing.

        Their size is a diameter, 2σ, as SIFT has it: see `kjax.data.cutting.detectors` for others.
        """
        return self._describe(_grey(image), keypoints)

    def detectAndCompute(  # noqa: N802
        self,
        image: Any,
        mask: np.ndarray | None = None,
        useProvidedKeypoints: bool = False,
        *,
        keypoints: Sequence[Any] | None = None,
    ) -> tuple[list[Any], Float32[np.ndarray, "K dim"]]:
        """Keypoints with their descriptors; those of `keypoints`, if they are to be used."""
        if useProvidedKeypoints != (keypoints is not None):
            raise InputError(
                "useProvidedKeypoints=True and keypoints=… belong together: give both or neither"
            )
        grey = _grey(image)
        return self._describe(grey, self._find(grey, mask) if keypoints is None else keypoints)

    def descriptorSize(self) -> int:  # noqa: N802
        """Numbers in a descriptor."""
        return self.dimension

    def descriptorType(self) -> int:  # noqa: N802
        """OpenCV's number for float32."""
        return require("cv2", "OpenCV's types").CV_32F

    def defaultNorm(self) -> int:  # noqa: N802
        """OpenCV's number for the distance that compares descriptors: L2."""
        return require("cv2", "OpenCV's norms").NORM_L2

    def _find(self, grey: np.ndarray, mask: np.ndarray | None) -> list[Any]:
        return find_in_grey(
            grey, mask=mask, max_keypoints=self.max_keypoints, detector=self.detector
        )

    def _describe(
        self, grey: np.ndarray, keypoints: Sequence[Any]
    ) -> tuple[list[Any], Float32[np.ndarray, "K dim"]]:
        if not all(hasattr(point, "pt") for point in keypoints):
            raise InputError(
                "these keypoints are no cv2.KeyPoint objects: describe_image takes arrays and LAFs"
            )
        descriptors, kept = self.describe_at(grey, from_opencv(keypoints))
        pairs = zip(keypoints, kept, strict=True)
        return [point for point, shows in pairs if shows], descriptors


def _grey(image: Any) -> np.ndarray:
    opened, order = open_image(image, "bgr")
    return grey_values(np.asarray(opened), order=order)
