"""Facts about models and the descriptors they compute."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The model that computed descriptors; a learned matcher works with no others.

    Attributes:
        name: shown to users.
        sha256: checksum of kjax weights, see `kjax.images.weights_checksum`; empty for other
            programs' descriptors.
        dimension: numbers per descriptor.
    """

    name: str
    sha256: str
    dimension: int
