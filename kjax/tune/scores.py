"""Score weights on the held-out images and on the embedded pair of sets.

Matching uses misaligned patches, with HPatches' noise. Verification is the false positive rate at
95 % recall. Correct matches are counted between an image and views of it by known homographies.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from kjax.data.cutting.keypoints import detect
from kjax.data.cutting.patches import cut_patches
from kjax.data.cutting.photographs import read_grey, read_grey_or_none
from kjax.data.embedded import embedded_test
from kjax.data.phototour import PatchSet, read_with_pairs
from kjax.data.selfsupervised import ViewConfig, random_view, reduce_photo
from kjax.eval.entries import model_describer
from kjax.eval.misalignment import matching_scores, noisy_set
from kjax.images.collection.matching import match_and_verify_all
from kjax.images.describer import Describer
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import read_features
from kjax.images.geometry import count_matches, total
from kjax.metrics import fpr_at_recall, pair_distances
from kjax.tune.sets import OwnSets
from kjax.weights.source import LoadedModel

HELD_OUT, EMBEDDED_PAIR = "held-out", "embedded"
POINTS = 1000
"""Number of points that compete in matching."""
PHOTOS, VIEWS = 8, 2
"""Number of held-out images matched with views of themselves, and of views of each."""
KEYPOINTS, THRESHOLD = 1000, 3.0

Scores = dict[str, float]
"""`matching/<where>` and its levels, `fpr95/<where>`, `correct` and `matches`."""


def score(source: LoadedModel, sets: OwnSets, photos: Path, *, seed: int, progress: bool) -> Scores:
    """Compute all scores of some weights on the held-out set and the images in a folder."""
    own, embedded = read_with_pairs(sets.held_out, progress=False), embedded_test(progress=progress)
    scores: Scores = {}
    for name, test in ((HELD_OUT, own), (EMBEDDED_PAIR, embedded)):
        found = patch_scores(source, test, seed=seed)
        scores |= {f"{key}/{name}": value for key, value in found.items()}
    if names := sets.held_out_photos:
        scores |= correct_matches(source, photos, names, seed=seed, progress=progress)
    return scores


def patch_scores(source: LoadedModel, test: PatchSet, *, seed: int) -> Scores:
    """Score verification, and matching of misaligned patches: its mean, and by level."""
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
    """Match some images with views of themselves, and count correct matches."""
    describe = model_describer(source.model, source.variables)
    config = ViewConfig()
    chosen = np.linspace(0, len(names) - 1, min(PHOTOS, len(names))).round().astype(int)
    counts = []
    for number in tqdm(chosen, desc="matching", unit="photo", disable=not progress):
        photo = read_grey_or_none(photos / names[number])
        if photo is None:
            continue
        photo = reduce_photo(photo, config.max_side)
        rng = np.random.default_rng([seed, number])
        views = [random_view(rng, photo, config=config) for _ in range(VIEWS)]
        images = [photo, *(view.pixels for view in views)]
        keypoints = [detect(image, max_keypoints=KEYPOINTS) for image in images]
        # Cut on the host: a device would compile for the size of every view.
        rows = [
            describe(cut_patches(image, points, extent=source.extent), progress=False)
            for image, points in zip(images, keypoints, strict=True)
        ]
        homographies = [view.homography for view in views]
        counts += count_matches(keypoints, rows, homographies, threshold=THRESHOLD)
    found = total(counts)
    return {"correct": float(found.correct), "matches": float(found.matches)}


def map_photographs(
    source: LoadedModel, photos: Path, names: Sequence[str], base: Path, *, progress: bool
) -> Scores:
    """Count the images and points that COLMAP maps with its keypoints and our descriptors."""
    describer = Describer(source.model, source.variables, extent=source.extent)
    theirs = read_features(base)
    features = {
        name: describer.describe_grey(read_grey(photos / name), theirs[name].keypoints())
        for name in tqdm(names, desc="describing", unit="photo", disable=not progress)
    }
    with tempfile.TemporaryDirectory() as folder:
        database, log = Path(folder, "database.db"), Path(folder, "log.txt")
        match_and_verify_all(database, features, base=base, ratio=source.ratio, log=log)
        models = colmap_program.reconstruct(database, photos, Path(folder, "sparse"), log=log)
        largest = colmap_program.largest_model(models)
    images, points = (0, 0) if largest is None else colmap_program.model_size(largest)
    return {"images": float(images), "points": float(points)}
