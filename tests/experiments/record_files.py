"""Synthetic records for tests: numbers that can be reckoned by hand, no training."""

from kjax.experiments.records import Record

DEFAULTS = {
    "experiment": "heads",
    "group": "",
    "parameters": None,
    "dimension": 128,
    "pairs": 0,
    "seconds": 0.0,
    "compile_seconds": 0.0,
    "tested_pairs": {},
    "config": {},
    "hardware": "a GPU",
    "versions": {"jax": "1.2"},
}


def trained(row, train, seed, metrics, **fields):
    """One training."""
    known = {"cell": f"heads/{row}/{train}/{seed}", "train": [train], "pairs": 1000, "seconds": 2.0}
    return Record(**DEFAULTS | known | {"row": row, "seed": seed, "metrics": metrics} | fields)


def rival(row, metrics, **fields):
    """A descriptor that nobody trains here."""
    known = {"experiment": "rivals", "cell": f"rivals/{row}", "train": [], "seed": None}
    return Record(**DEFAULTS | known | {"row": row, "metrics": metrics} | fields)


def tried(group, row, seed, matching, **fields):
    """A value of an ablation; the levels lie a tenth around the mean."""
    metrics = {
        "validation/matching": matching,
        "validation/matching/easy": matching + 0.1,
        "validation/matching/hard": matching,
        "validation/matching/tough": matching - 0.1,
    }
    cell = f"ablation/{group}/{row}/castle/{seed}"
    known = {"cell": cell, "experiment": "ablation", "group": group}
    return trained(row, "castle", seed, metrics, **known | fields)


def hpatches(split, *means, rule="python"):
    """Metrics of the three tasks; easy a tenth above the mean, tough a tenth below."""
    metrics = {}
    for task, mean in zip(("verification", "matching", "retrieval"), means, strict=True):
        name = f"hpatches/{split}/{rule}/{task}"
        metrics |= {
            name: mean,
            f"{name}/easy": mean + 0.1,
            f"{name}/hard": mean,
            f"{name}/tough": mean - 0.1,
        }
    return metrics
