"""What weights are worth on the photographs that were held out, and on the embedded pair.

Matching: of patches that are cut askew, as strongly as in HPatches. Verification: false positives
at 95 % recall. Correct matches: between a photograph and views of it by known homographies.
"""

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from kjax.data.cutting.keypoints import detect
from kjax.data.cutting.patches import cut_patches
from kjax.data.cutting.photographs import read_grey_or_none
from kjax.data.embedded import embedded_test
from kjax.data.phototour import PatchSet, read_with_pairs
from kjax.data.selfsupervised import ViewConfig, random_view, reduce_photo
from kjax.eval.entries import Describe, model_describer
from kjax.eval.misalignment import matching_scores, noisy_set
from kjax.images.geometry import Count, count_matches, total
from kjax.metrics import fpr_at_recall, pair_distances
from kjax.tune.sets import OwnSets
from kjax.weights.source import LoadedModel

HELD_OUT, EMBEDDED_PAIR = "held-out", "embedded"
POINTS = 1000
"""That compete in matching."""
PHOTOS, VIEWS = 8, 2
"""Held-out photographs that are matched with views of themselves, and how many of each."""
KEYPOINTS, THRESHOLD = 1000, 3.0

Scores = dict[str, float]
"""`matching/<where>` and its levels, `fpr95/<where>`, `correct` and `matches`."""


def score(source: LoadedModel, sets: OwnSets, photos: Path, *, seed: int, progress: bool) -> Scores:
    """All figures of some weights.

    Args:
        source: of the weights.
        sets: whose held-out part is looked at.
        photos: folder of the photographs.
        seed: of points, noise and views.
        progress: show bars.
    """
    tests = {
        HELD_OUT: read_with_pairs(sets.held_out, progress=False),
        EMBEDDED_PAIR: embedded_test(progress=progress),
    }
    scores: Scores = {}
    for name, test in tests.items():
        found = patch_scores(source, test, seed=seed)
        scores |= {f"{key}/{name}": value for key, value in found.items()}
    if sets.held_out_photos:
        scores |= correct_matches(
            source, photos, sets.held_out_photos, seed=seed, progress=progress
        )
    return scores


def patch_scores(source: LoadedModel, test: PatchSet, *, seed: int) -> Scores:
    """Verification, and matching of patches cut askew: its mean, and by level."""
    describe = model_describer(source.model, source.variables)
    rows = describe(test.patches, progress=False)
    distances = pair_distances(rows, test.pairs.first, test.pairs.second)
    noisy = noisy_set(test, size=source.model.patch_size, points=POINTS, seed=seed)
    levels = matching_scores(jnp.asarray(describe(noisy.patches, progress=False)), noisy)
    return {
        "fpr95": fpr_at_recall(distances, test.pairs.matching),
        "matching": float(np.mean(list(levels.values()))),
        **{f"matching {level}": value for level, value in levels.items()},
    }


def correct_matches(
    source: LoadedModel, photos: Path, names: Sequence[str], *, seed: int, progress: bool
) -> Scores:
    """Matches of some photographs with views of themselves, and how many are correct."""
    describe = model_describer(source.model, source.variables)
    chosen = np.linspace(0, len(names) - 1, min(PHOTOS, len(names))).round().astype(int)
    counts = []
    for number in tqdm(chosen, desc="matching", unit="photo", disable=not progress):
        photo = read_grey_or_none(photos / names[number])
        if photo is not None:
            counts += _with_views(
                describe, source.extent, photo, np.random.default_rng([seed, number])
            )
    found = total(counts)
    return {"correct": float(found.correct), "matches": float(found.matches)}


def _with_views(
    describe: Describe, extent: float, photo: np.ndarray, rng: np.random.Generator
) -> list[Count]:
    config = ViewConfig()
    photo = reduce_photo(photo, config.max_side)
    views = [random_view(rng, photo, config=config) for _ in range(VIEWS)]
    pictures = [photo, *(view.pixels for view in views)]
    keypoints = [detect(picture, max_keypoints=KEYPOINTS) for picture in pictures]
    # Cut on the host: every view has a size of its own, which a device would compile for.
    patches = [
        cut_patches(picture, points, extent=extent)
        for picture, points in zip(pictures, keypoints, strict=True)
    ]
    rows = [describe(cut, progress=False) for cut in patches]
    homographies = [view.homography for view in views]
    return count_matches(keypoints, rows, homographies, threshold=THRESHOLD)
