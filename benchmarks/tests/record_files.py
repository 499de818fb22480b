"""Synthetic records for tests: numbers that can be reckoned by hand, no training.

Scores are given by short names:

    fpr95/<test set>                           false positive rate at 95 % recall
    hpatches/<split>/<rule>/<task>[/<level>]   see `hpatches` below
    validation/<level>                         matching on noisy patches, on the validation set
    noisy/<set>/<level>                        the same on another set
    jitter/<kind>/<amount>                     matching with one misalignment
"""

from experiments.records import Record

from kjax.eval.results import (
    LEVELS,
    MEAN,
    DescriptorResult,
    HPatchesScores,
    MisalignmentScores,
    PhototourScores,
)

DEFAULTS = {
    "experiment": "heads",
    "group": "",
    "pairs": 0,
    "seconds": 0.0,
    "compile_seconds": 0.0,
    "config": {},
    "hardware": "a GPU",
    "versions": {"jax": "1.2"},
}


def result(row, scores, *, train=None, parameters=None, dimension=128, tested_pairs=None):
    """The scores of some names."""
    return DescriptorResult(
        name=row,
        ours=train is not None,
        source="made up",
        dimension=dimension,
        parameters=parameters,
        distance="L2",
        missing=None,
        warnings=[],
        phototour=[
            rate(name.removeprefix("fpr95/"), share, train=train, tested_pairs=tested_pairs)
            for name, share in scores.items()
            if name.startswith("fpr95/")
        ],
        hpatches=list(_hpatches(scores)),
        misaligned=list(_misaligned(scores)),
    )


def rate(test, share, *, train=None, tested_pairs=None):
    """A false positive rate."""
    matching, others = (tested_pairs or {}).get(test, (0, 0))
    return PhototourScores(
        test=test,
        train=train,
        rule="hardnet",
        matching_pairs=matching,
        non_matching_pairs=others,
        fpr95=share,
    )


def _hpatches(scores):
    names = [name.split("/")[1:3] for name in scores if name.startswith("hpatches/")]
    for split, rule in dict.fromkeys(map(tuple, names)):
        found = {
            task: {level: scores[f"hpatches/{split}/{rule}/{task}/{level}"] for level in LEVELS}
            for task in ("verification", "matching", "retrieval")
        }
        yield HPatchesScores(
            protocol=rule,
            split=split,
            tasks="made up",
            sequences=1,
            verification={level: {MEAN: v} for level, v in found["verification"].items()},
            matching=found["matching"],
            retrieval=found["retrieval"],
            **{f"{task}_map": scores[f"hpatches/{split}/{rule}/{task}"] for task in found},
        )


def _misaligned(scores):
    by_level, by_amount = {}, {}
    for name, share in scores.items():
        match name.split("/"):
            case "validation", level:
                by_level.setdefault(("any", True), {})[level] = share
            case "noisy", test, level:
                by_level.setdefault((test, False), {})[level] = share
            case "jitter", kind, amount:
                by_amount.setdefault(kind, {})[amount] = share
    for (test, validation), levels in by_level.items():
        yield MisalignmentScores(test=test, validation=validation, by_level=levels)
    if by_amount:
        yield MisalignmentScores(test="any", validation=False, by_level={}, by_amount=by_amount)


def _record(row, scores, *, train, seed, fields, **known):
    own = {
        key: fields.pop(key) for key in ("parameters", "dimension", "tested_pairs") if key in fields
    }
    found = result(row, scores, train="+".join(train) or None, **own)
    return Record(**DEFAULTS | known | {"train": train, "seed": seed, "result": found} | fields)


def trained(row, train, seed, scores, **fields):
    """One training."""
    known = {"name": f"heads/{row}/{train}/{seed}", "pairs": 1000, "seconds": 2.0}
    return _record(row, scores, train=[train], seed=seed, fields=fields, **known)


def rival(row, scores, **fields):
    """A descriptor that nobody trains here."""
    known = {"experiment": "rivals", "name": f"rivals/{row}"}
    return _record(row, scores, train=[], seed=None, fields=fields, **known)


def tried(group, row, seed, matching, **fields):
    """A value of an ablation; the levels lie a tenth around the mean."""
    scores = {
        "validation/easy": matching + 0.1,
        "validation/hard": matching,
        "validation/tough": matching - 0.1,
    }
    name = f"ablation/{group}/{row}/castle/{seed}"
    known = {"name": name, "experiment": "ablation", "group": group}
    return trained(row, "castle", seed, scores, **known | fields)


def hpatches(split, *means, rule="python"):
    """The three tasks; easy a tenth above the mean, tough a tenth below."""
    scores = {}
    for task, mean in zip(("verification", "matching", "retrieval"), means, strict=True):
        name = f"hpatches/{split}/{rule}/{task}"
        scores |= {
            name: mean,
            f"{name}/e": mean + 0.1,
            f"{name}/h": mean,
            f"{name}/t": mean - 0.1,
        }
    return scores
