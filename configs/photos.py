"""A descriptor for changed appearance, trained on pairs drawn from photographs.

    kjax train --config photos --out out/photos --config.data.photos=FOLDER

Two views of random keypoints, cut on the device, under changed light, season and sensor. It starts
from `best`; `--config.model.context="(1,4)"` also shows the network the surroundings.
`--show --out pairs.png` draws 64 pairs.
"""

from pathlib import Path

from ml_collections import ConfigDict

from kjax.runs.config import load_config


def get_config() -> ConfigDict:
    """Return InfoNCE on large batches of changed views, from the weights of `best`."""
    config = load_config(Path(__file__).with_name("base.py"))
    config.init = "best"
    config.model.dropout = 0.0
    config.data.train = ()
    config.data.photos = "photos"
    config.data.test = ()
    config.augment.appearance = 1.0
    config.loss.name = "infonce"
    config.loss.temperature = 0.07
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 300
    config.train.pairs = 4096
    config.train.steps = 6000
    config.train.eval_every = 0
    return config
