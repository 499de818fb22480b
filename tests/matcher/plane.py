"""Views of imagined planes full of keypoints, whose descriptors tell them apart."""

import numpy as np

from kjax.data.phototour import SetPhotograph
from kjax.matcher.view_set import ViewSet
from kjax.weights.info import Provenance

DIMENSION = 16
SIDE = 400


def random_homography(rng: np.random.Generator) -> np.ndarray:
    """A turn, a zoom and some perspective about the middle of the plane."""
    angle, zoom = rng.uniform(-np.pi, np.pi), np.exp(rng.uniform(-0.3, 0.3))
    turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.full(2, SIDE / 2)
    homography = np.eye(3)
    homography[:2, :2], homography[:2, 2] = turn, middle - turn @ middle
    homography[2, :2] = rng.uniform(-2e-4, 2e-4, 2)
    return homography


def moved(homography: np.ndarray, xy: np.ndarray) -> np.ndarray:
    mapped = np.column_stack([xy, np.ones(len(xy))]) @ homography.T
    return mapped[:, :2] / mapped[:, 2:]


def plane_views(photographs: int = 5, views: int = 3, keypoints: int = 40) -> ViewSet:
    """Each view has lost some keypoints, has some of its own, and sees the others askew."""
    rng = np.random.default_rng(0)
    shape = (photographs, views, keypoints)
    arrays = {
        "xy": np.zeros((*shape, 2), "f4"),
        "scales": rng.uniform(2, 9, shape).astype("f4"),
        "angles": np.zeros(shape, "f4"),
        "descriptors": np.zeros((*shape, DIMENSION), "f2"),
        "counts": np.full(shape[:2], keypoints - 4, "i4"),
        "sizes": np.full((*shape[:2], 2), SIDE, "i4"),
        "places": np.zeros((*shape, 3), "f4"),
        "cameras": np.zeros((*shape[:2], 3, 4), "f4"),
        "turns": np.zeros(shape[:2], "f4"),
    }
    for photograph in range(photographs):
        xy = rng.uniform(0, SIDE, (keypoints, 2))
        own = rng.normal(size=(keypoints, DIMENSION))
        for view in range(views):
            homography = random_homography(rng)
            place = (photograph, view)
            order = rng.permutation(keypoints)
            there = moved(homography, xy) + rng.normal(0, 0.3, xy.shape)
            there[: keypoints // 4] = rng.uniform(0, SIDE, (keypoints // 4, 2))
            seen = own + 0.3 * rng.normal(size=own.shape)
            seen /= np.linalg.norm(seen, axis=1, keepdims=True)
            turn = np.arctan2(homography[1, 0], homography[0, 0])
            arrays["xy"][place], arrays["descriptors"][place] = there[order], seen[order]
            arrays["angles"][place] = arrays["turns"][place] = turn
            back = moved(np.linalg.inv(homography), there[order])
            arrays["places"][place] = np.column_stack([back, np.ones(keypoints)])
            arrays["cameras"][place] = np.column_stack([homography, np.zeros(3)])
    listed = tuple(SetPhotograph(i, f"{i}.jpg", f"{i:064x}") for i in range(photographs))
    origin = Provenance("mine", "abc", DIMENSION)
    return ViewSet(photographs=listed, described_with=origin, **arrays)
