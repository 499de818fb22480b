"""A learned detector of keypoints.

network      scores of pixels, for each scale, and directions
selection    maxima over position and scale, refined to sub-pixels
detect       the keypoints of a photograph
views        pairs of views to learn from, drawn on the device
config       the config of a training; `configs/detector.py` has its values
training     the training; `kjax train-detector` is its command
weights      the file of a trained detector
"""

from typing import TYPE_CHECKING, Union

from kjax.data.cutting.keypoints import DETECTORS
from kjax.errors import unknown_name
from kjax.weights import shipped

if TYPE_CHECKING:
    from kjax.keypoints.detect import LearnedDetector

AnyDetector = Union[str, "LearnedDetector"]


def find_detector(source: AnyDetector) -> AnyDetector:
    """Return the name of one of OpenCV's detectors as it is, or load a trained one."""
    if not isinstance(source, str) or source in DETECTORS:
        return source
    from pathlib import Path

    if not Path(source).exists() and source not in (known := shipped.list_detectors()):
        others = [*DETECTORS, *known, "a file of kjax train-detector"]
        raise unknown_name("detector", source, others)
    from kjax.keypoints.detect import LearnedDetector  # brings JAX

    return LearnedDetector.load(source)
