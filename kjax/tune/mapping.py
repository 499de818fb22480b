"""How COLMAP maps the held-out photographs with some weights' descriptors."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from kjax.data.cutting.photographs import read_grey
from kjax.images.collection.matching import match_and_verify_all
from kjax.images.describer import Describer
from kjax.images.exchange import colmap_program
from kjax.images.exchange.colmap_database import read_features
from kjax.images.features import Features
from kjax.weights.source import LoadedModel


def map_photographs(
    source: LoadedModel, photos: Path, names: Sequence[str], base: Path, *, progress: bool
) -> dict[str, float]:
    """Photographs that are registered, and their points.

    Args:
        source: of the weights.
        photos: folder of the photographs.
        names: of those to map.
        base: COLMAP's database, whose keypoints and cameras are taken.
        progress: show bars.
    """
    describer = Describer(source.model, source.variables, extent=source.extent)
    theirs = read_features(base, colmap_program.photo_sizes(base))
    features: dict[str, Features] = {}
    for name in tqdm(names, desc="describing", unit="photo", disable=not progress):
        keypoints = theirs[name].keypoints()
        features[name] = describer.describe_image(read_grey(photos / name), keypoints)
    with tempfile.TemporaryDirectory() as folder:
        database, log = Path(folder, "database.db"), Path(folder, "log.txt")
        match_and_verify_all(database, features, base=base, ratio=source.ratio, log=log)
        models = colmap_program.reconstruct(database, photos, Path(folder, "sparse"), log=log)
        model = colmap_program.largest_model(models)
    if model is None:
        return {"images": 0.0, "points": 0.0}
    return {"images": float(len(model.images)), "points": float(len(model.points.ids))}
