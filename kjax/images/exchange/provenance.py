"""What features were made with, as every file of `kjax describe` says it.

| output             | where it stands                                              |
|--------------------|--------------------------------------------------------------|
| hloc's HDF5        | attribute `kjax` of each photograph's group                  |
| NumPy archives     | entry `provenance`, a string                                 |
| COLMAP's text      | `kjax-describe.jsonl` in the folder, a line per photograph   |

It is JSON in all of them: the fields of `Provenance`.
"""

import dataclasses
import json
from typing import Any

from kjax.files.json_text import parse_json
from kjax.files.typed_values import Schema
from kjax.version import __version__

LABELS = {
    "sha256": "weights",
    "model": "model",
    "patch_size": "patch size",
    "dtype": "precision",
    "extent": "extent",
    "detector": "detector",
    "max_keypoints": "keypoints",
    "stored": "descriptors as",
}
"""What must agree for features to belong together, as people call it.

The name of weights need not, as their content tells more. Nor need the version of kjax: a version
whose features differ has another name for the detector or the model.
"""
_DIGITS = 12
"""Of a SHA-256 that is shown to people."""


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What the features of one photograph were made with.

    Attributes:
        weights: the word that they were asked for with.
        sha256: of the weights, as `kjax.images.weights_checksum` has it.
        model: head, and what else tells models apart.
        patch_size: side of the patches that the model saw.
        dtype: precision of the computation.
        extent: side of a patch in the photograph over the keypoint's diameter.
        detector: of the keypoints.
        max_keypoints: that were looked for.
        photograph: SHA-256 of its file.
        kjax: version.
        stored: what descriptors are: "float32", or a form of `kjax.quantize`.
    """

    weights: str
    sha256: str
    model: str
    patch_size: int
    dtype: str
    extent: float
    detector: str
    max_keypoints: int
    photograph: str = ""
    kjax: str = __version__
    stored: str = "float32"

    def of(self, photograph: str) -> "Provenance":
        """The same settings for the photograph whose file has this SHA-256."""
        return dataclasses.replace(self, photograph=photograph)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    def differences(self, wanted: "Provenance") -> str:
        """How these settings differ from others, for people; empty if they do not."""
        return "; ".join(
            f"{label} {self._shown(name)}, not {wanted._shown(name)}"
            for name, label in LABELS.items()
            if getattr(self, name) != getattr(wanted, name)
        )

    def _shown(self, name: str) -> str:
        if name == "sha256":
            return f"{self.weights} (SHA-256 {self.sha256[:_DIGITS]}…)"
        return str(getattr(self, name))


_SCHEMA = Schema(Provenance, "provenance")


def from_json(text: Any) -> Provenance | None:
    """What `Provenance.to_json` wrote; None of anything else."""
    try:
        return from_values(parse_json(text))
    except (ValueError, TypeError, KeyError):
        return None


def from_values(values: Any) -> Provenance:
    """The same of JSON that has been read; fields of later versions are passed over.

    Raises:
        ValueError, TypeError, KeyError: it is something else.
    """
    # Files from before descriptors could be anything else do not say what they are stored as.
    given = {name: values[name] for name in _SCHEMA.types if name != "stored"}
    return _SCHEMA.read(given | {name: values[name] for name in ("stored",) if name in values})
