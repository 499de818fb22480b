"""A few steps of a small model on the embedded set, to check that everything runs.

    kjax train --config smoke --out out/smoke

Seconds on a CPU, once the embedded set is built. The result is of no use.
"""

from pathlib import Path

from ml_collections import ConfigDict

from kjax.runs.config import load_config


def get_config() -> ConfigDict:
    """Return four steps of eight pairs that use every part of the loop."""
    config = load_config(Path(__file__).with_name("base.py"))
    config.model.head = "polar"
    config.model.s = 1
    config.model.patch_size = 16
    config.data.train = ("embedded",)
    config.data.test = ("embedded",)
    config.optimizer.learning_rate = 1.0
    config.train.pairs = 8
    config.train.steps = 4
    config.train.steps_per_dispatch = 2
    config.train.log_every = 2
    config.train.eval_every = 4
    config.train.checkpoint_every = 2
    config.progress = False
    config.tensorboard = False
    return config
