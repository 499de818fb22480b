"""The matches of two photographs in a file: a NumPy archive, or hloc's HDF5, by its suffix.

| array of the archive              | what                                                      |
|-----------------------------------|-----------------------------------------------------------|
| `names` [2]                       | of the photographs                                        |
| `keypoints0` [N, 2], `keypoints1` | positions; the centre of the first pixel is (0, 0)        |
| `scales0`, `angles0`, …1          | diameters and degrees, as OpenCV's, if they are known     |
| `image_size0`, `image_size1`      | width, height                                             |
| `indices` [K, 2]                  | of matched keypoints                                      |
| `distances`, `ratios` [K]         | of their descriptors, see `kjax.images.matching.Matches`  |
| `scores` [K]                      | one minus the ratio                                       |
| `inliers` [K]                     | which of them one geometry explains                       |
| `geometry` [3, 3]                 | H or F; absent if there is none                           |
| `geometry_is`                     | "homography": 1 ~ H 0; "fundamental": 1ᵀ F 0 = 0          |

hloc's file gets a pair of photographs added, with all matches and their scores. It has no place for
keypoints, inliers and geometry: `kjax describe` writes keypoints for hloc.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kjax.files.arrays import write_npz
from kjax.images.exchange.hloc import MatchWriter
from kjax.images.features import Features
from kjax.images.geometry import Kind, Verified
from kjax.images.matching import Matches

NPZ = ".npz"


class MatchedPair(NamedTuple):
    """All that is known of two photographs' matches.

    Attributes:
        names: of the photographs, with slashes.
        first: features.
        second: features.
        matches: of both.
        verified: which of them one geometry explains.
        geometry: what kind it is.
    """

    names: tuple[str, str]
    first: Features
    second: Features
    matches: Matches
    verified: Verified
    geometry: Kind


def write_pair(path: str | os.PathLike[str], pair: MatchedPair) -> None:
    """Writes an archive .npz, or adds to a file of hloc's: see the top of this file."""
    if Path(path).suffix.lower() == NPZ:
        write_npz(Path(path), _arrays(pair))
        return
    with MatchWriter(path) as writer:
        writer.add(*pair.names, pair.matches, len(pair.first), len(pair.second))


def _arrays(pair: MatchedPair) -> dict[str, np.ndarray]:
    matches, verified = pair.matches, pair.verified
    arrays = {
        "names": np.array(pair.names),
        "indices": matches.indices,
        "distances": matches.distances,
        "ratios": matches.ratios,
        "scores": 1 - matches.ratios,
        "inliers": verified.inliers,
        "geometry": verified.model,
        "geometry_is": np.array(pair.geometry),
    }
    for number, features in enumerate((pair.first, pair.second)):
        arrays |= {
            f"keypoints{number}": features.xy,
            f"scales{number}": features.scales,
            f"angles{number}": features.angles,
            f"image_size{number}": np.array(features.image_size),
        }
    return {name: array for name, array in arrays.items() if array is not None}
