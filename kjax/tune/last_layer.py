"""A tuning for processors: the network stays as it is, its last layer is refitted.

Two cores train a network on a hundredth of the pairs that an accelerator does, in smaller batches,
and weights that learned from large ones get worse by it. Describing patches once, and learning a
linear map of the descriptors, takes minutes.
"""

from pathlib import Path

import numpy as np

from kjax.data.sets import read_train_sets
from kjax.errors import InputError
from kjax.eval.misalignment import describe_misaligned
from kjax.files.atomic import write_json
from kjax.model.folding import check_remap, remap
from kjax.train.refitting import BATCH, LEARNING_RATE, STEPS, learn_map
from kjax.tune.sets import OwnSets
from kjax.tune.settings import Settings
from kjax.tune.trained import RUN_FOLDER, Trained
from kjax.weights.files import save_variables
from kjax.weights.info import make_metadata
from kjax.weights.source import METADATA_FILE, WEIGHTS_FILE, LoadedModel, refitted_info

POINTS = 10_000
"""Of one's own that are described at most, each in sixteen patches."""
PULL = 0.003
"""To the map that changes nothing, so that little is forgotten."""


def can_refit(source: LoadedModel) -> bool:
    """Whether the weights have a last layer that a map can be merged with."""
    try:
        check_remap(source.variables)
    except InputError:
        return False
    return True


def refit(
    settings: Settings, source: LoadedModel, sets: OwnSets, out: Path, *, progress: bool
) -> Trained:
    """Refits the last layer, unless that is done."""
    names = _shares(settings, sets)
    batch, steps = settings.pairs or BATCH, settings.steps or STEPS
    rate = settings.learning_rate or LEARNING_RATE
    path = out / RUN_FOLDER / WEIGHTS_FILE
    if not path.is_file():
        views = [
            describe_misaligned(source, [one], points=points, progress=progress)[0]
            for one, points in zip(
                read_train_sets(list(names), progress=progress), names.values(), strict=True
            )
        ]
        matrix = learn_map(
            np.concatenate(views, axis=1),
            source.nested,
            pull=PULL,
            learning_rate=rate,
            batch=batch,
            steps=steps,
            seed=settings.seed,
            progress=progress,
        )
        path.parent.mkdir(exist_ok=True)
        # Whatever told the model of the weights, from here on they tell it themselves.
        info = refitted_info(
            source,
            settings.start,
            nested=source.nested,
            sets=[Path(name).name for name in names],
        )
        write_json(path.with_name(METADATA_FILE), make_metadata(info))
        save_variables(path, remap(source.variables, matrix))
    mixed = ", ".join(f"{Path(name).name} {points:,}" for name, points in names.items())
    return Trained(
        (path.with_name(METADATA_FILE), path),
        (
            f"The last layer alone: a linear map of the descriptors of {settings.start}, "
            f"{steps:,} steps of {batch:,} points, with a learning rate of {rate:g}, seed "
            f"{settings.seed}.",
            f"Points that were described, each in sixteen patches, at most: {mixed}.",
        ),
        "train all layers on an accelerator (--layers all)",
    )


def _shares(settings: Settings, sets: OwnSets) -> dict[str, int]:
    """Points of each set to learn from: one's own, and of the general ones so as to share them."""
    own = min(POINTS, sets.points[0])
    general = settings.general if settings.share else ()
    others = own * settings.share / (1 - settings.share)
    return {str(sets.train.resolve()): own} | {
        name: max(1, round(others / len(general))) for name in general
    }
