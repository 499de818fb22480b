"""What tells weights apart, wherever they lie and whatever they are called."""

import hashlib

import numpy as np

from kjax.weights.source import LoadedModel
from kjax.weights.torch_names import to_arrays


def weights_sha256(source: LoadedModel) -> str:
    """The SHA-256 of shipped weights' file, or of other weights' names and numbers.

    It depends neither on the format of a file nor on where it lies.
    """
    if source.info.sha256:
        return source.info.sha256
    digest = hashlib.sha256()
    for name, array in sorted(to_arrays(source.variables).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
