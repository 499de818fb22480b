"""What is known about weights: for people, and for files that are made of them.

Where weights come from, and how they are asked for, is in `kjax.weights.source`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from kjax.errors import InputError
from kjax.files.json_text import parse_json
from kjax.model.descriptor import parameter_count
from kjax.model.dimensions import CHANNELS, DIMENSION, ENCODED_HEADS
from kjax.weights.identify import fields_of
from kjax.weights.metadata import make_metadata
from kjax.weights.source import Source


def facts(sources: Sequence[Source]) -> dict[str, str]:
    """What to tell people about a source: labels and short texts, in order.

    Args:
        sources: one, or one per seed of a run.
    """
    first = sources[0]
    model = first.candidates[0]
    found = {"name": first.name} if first.name else {}
    found["head"] = " or ".join(candidate.head for candidate in first.candidates)
    if model.head in ENCODED_HEADS:
        found["s"] = str(model.position_kernel.s)
    told = not first.announced or model.head == "hardnet"
    found["patch size"] = str(model.patch_size) if told else "any multiple of 4; 32 unless named"
    if model.channels != CHANNELS:
        found["channels"] = ", ".join(map(str, model.channels))
    if model.dimension != DIMENSION:
        found["dimension"] = str(model.dimension)
    if first.nested:
        found["shorter forms"] = f"the first {' or '.join(map(str, first.nested))} numbers"
    found["parameters"] = f"{parameter_count(first.variables):,}"
    found["weights"] = str(jax.tree.leaves(first.variables["params"])[0].dtype)
    return found | _training_facts(sources)


def _training_facts(sources: Sequence[Source]) -> dict[str, str]:
    """The part of `facts` that only runs and shipped weights can tell; empty for other files."""
    first = sources[0]
    if first.card is not None:
        return first.card.facts()
    if first.metadata is not None:
        extent, ratio = first.metadata.extent, first.metadata.ratio
        known = {} if extent is None else {"extent": f"patches of {extent:g} × KeyPoint.size"}
        known |= {} if ratio is None else {"ratio": f"matches up to {ratio:g}"}
        return known | {
            label: text for label, text in first.metadata.remarks.items() if label != "name"
        }
    if first.config is None:
        return {}
    from kjax.runs.config import validate

    config = validate(first.config)
    found = {
        "trained on": ", ".join(first.train_sets),
        **({"started from": config.init} if config.init else {}),
        "precision": config.model.dtype,
        "steps": _steps(first.path, config.train.total_steps, config.all_seeds),
        "seed": ", ".join(str(source.seed) for source in sources),
    }
    if scores := _false_positive_rates(first.path):
        found["FPR@95"] = scores
    return found


def remarks(source: Source) -> dict[str, str]:
    """What files made of a source shall tell about it, besides the model."""
    found = {"name": source.name} if source.name else {}
    return found | _training_facts([source])


def metadata_of(source: Source) -> dict[str, str]:
    """The metadata for a weights file made of a source; empty if its model is not known for sure.

    Weights that alone told what they fit tell it again.
    """
    if source.announced:
        return {}
    return make_metadata(
        fields_of(source.model),
        extent=source.known_extent,
        nested=source.nested,
        ratio=source.known_ratio,
        remarks=remarks(source),
    )


def refitted_metadata(
    source: Source, word: str, *, nested: tuple[int, ...], sets: Sequence[str]
) -> dict[str, str]:
    """The metadata for weights that were refitted: neither name nor scores of those before.

    Args:
        source: the weights as they were.
        word: that stood for them.
        nested: numbers of first entries that are descriptors now.
        sets: that they were refitted on.
    """
    if source.announced:
        return {}
    told = {"refitted from": word, "refitted on": ", ".join(sets)}
    if source.train_sets:
        told["trained on"] = ", ".join(source.train_sets)
    return make_metadata(
        fields_of(source.model),
        extent=source.known_extent,
        nested=nested,
        ratio=source.known_ratio,
        remarks=told,
    )


def _steps(workdir: Path, total: int, seeds: Sequence[int]) -> str:
    """How far the weights that `load_run` gives have been trained."""
    from kjax.runs.checkpoint import saved_steps
    from kjax.runs.workdir import CHECKPOINTS_FOLDER, weights_files

    if all(path.exists() for path in weights_files(workdir, seeds)):
        return f"{total:,}"
    return f"{max(saved_steps(workdir / CHECKPOINTS_FOLDER)):,} of {total:,}"


def _false_positive_rates(workdir: Path) -> str:
    """The final evaluation by test set; empty if there is none yet."""
    from kjax.runs.workdir import RESULTS_FILE

    path = workdir / RESULTS_FILE
    if not path.exists():
        return ""
    try:
        scores = parse_json(path.read_bytes())
        return ", ".join(_rates(scores))
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise InputError(f"{path} is damaged: restore or remove it") from None


def _rates(scores: Mapping[str, float]) -> list[str]:
    rates = []
    for name, value in scores.items():
        if not name.startswith("fpr95/") or name.endswith("_std"):
            continue
        rate = f"{name.removeprefix('fpr95/')} {100 * value:.2f}"
        deviation = scores.get(f"{name}_std")
        rates.append(f"{rate} %" if deviation is None else f"{rate} ± {100 * deviation:.2f} %")
    return rates
