"""Small sets in the benchmarks' formats, and the folder of a finished run, for evaluation tests."""

import json
from pathlib import Path

import numpy as np
from models import make_model, random_patches
from PIL import Image

from kjax.data.hpatches import IMAGES
from kjax.data.phototour import TestPairs, write_phototour
from kjax.eval.hpatches import tasks as hpatches_tasks
from kjax.runs.config import load_config
from kjax.weights.files import save_variables

CONFIGS = Path(__file__).parents[2] / "configs"


def write_test_set(folder: Path, *, seed: int = 0, points: int = 30) -> Path:
    """Pairs of patches that differ by noise, and as many pairs of different points."""
    rng = np.random.default_rng(seed)
    patches = np.repeat(random_patches(rng, points, 64), 2, axis=0)
    noisy = patches[1::2].astype(int) + rng.integers(-20, 20, patches[1::2].shape)
    patches[1::2] = noisy.clip(0, 255)
    ids = np.repeat(np.arange(points), 2)
    first = np.concatenate([np.arange(0, 2 * points, 2)] * 2)
    second = np.concatenate([np.arange(1, 2 * points, 2), np.roll(np.arange(1, 2 * points, 2), 1)])
    pairs = TestPairs(first, second, ids[first] == ids[second])
    return write_phototour(folder, patches, ids, pairs=pairs)


def write_hpatches(folder: Path, names=("i_one", "v_two"), *, patches: int = 8) -> Path:
    """Sequences whose images differ by noise."""
    for seed, name in enumerate(names):
        rng = np.random.default_rng(seed)
        reference = np.pad(random_patches(rng, patches, 64), ((0, 0), (0, 1), (0, 1)), mode="edge")
        (folder / name).mkdir(parents=True)
        for image in IMAGES:
            noise = rng.integers(-30, 30, reference.shape)
            column = (reference + noise).clip(0, 255).astype(np.uint8)
            Image.fromarray(column.reshape(-1, 65)).save(folder / name / f"{image}.png")
    return folder


def write_run(workdir: Path, *, train: str, test: tuple[str, ...] = (), seeds=()) -> Path:
    """A finished run of an untrained model."""
    config = load_config(CONFIGS / "smoke.py").to_dict()
    config["model"] |= {"head": "xy", "s": 1, "patch_size": 16}
    config["data"] |= {"train": [train], "test": list(test)}
    config["seeds"] = list(seeds)
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(config))
    lines = [{"step": step, "loss": 1 / step, "fpr95": 0.5 / step} for step in (1, 2, 3)]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, variables = make_model("xy", s=1, patch_size=16)
    for name in [f"weights_{seed}.npz" for seed in seeds] or ["weights.npz"]:
        save_variables(workdir / name, variables)
    return workdir


TASK_FILES = {
    **{"verif_pos": "positives", "verif_neg_intra": "intra", "verif_neg_inter": "inter"},
    **{"retr_queries": "queries", "retr_distractors": "distractors"},
}
"""Beginnings of the official files' names, and the fields of `Tasks`."""


def task_rows(listed, names) -> list[list[str]]:
    """Pairs or patches as a file's rows."""
    columns = []
    fields = (np.atleast_2d(column.T) for column in vars(listed).values())
    for sequence, *others in zip(*fields, strict=True):
        columns += [[names[place] for place in sequence], *(map(str, other) for other in others)]
    return [list(row) for row in zip(*columns, strict=True)]


def write_tasks(tasks: hpatches_tasks.Tasks, folder: Path, split: str) -> None:
    """Writes the five official files of a split, byte for byte as the official generator would."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, field in TASK_FILES.items():
        pairs = file.startswith("verif")
        header = hpatches_tasks.PAIR_COLUMNS if pairs else hpatches_tasks.PATCH_COLUMNS
        rows = [list(header), *task_rows(getattr(tasks, field), list(tasks.patches))]
        text = "".join(",".join(row) + "\n" for row in rows)
        (folder / f"{file}_split-{split}.csv").write_bytes(text.encode())
