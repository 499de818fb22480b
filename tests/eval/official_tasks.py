"""Tasks that the official generator drew for sets of the Oxford sequences' sizes, drawn again."""

import functools
import json
from pathlib import Path

import numpy as np

from kjax.eval.hpatches.tasks import Tasks, generate_tasks

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "oxford.json").read_text())


@functools.cache
def official_tasks() -> Tasks:
    """The same rows in the same order: see test_hpatches_tasks.py."""
    patches = GOLDEN["sequences"]
    textured = {name: np.ones(count, bool) for name, count in patches.items()}
    for name, flat in GOLDEN["flat"].items():
        textured[name][flat] = False
    return generate_tasks(patches, textured=textured, pairs=20_000, queries=1000, progress=False)
