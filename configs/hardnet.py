"""HardNet as its release trains it: HardNet+ on Liberty, tested on Notredame and Yosemite.

    kjax download liberty notredame yosemite --out data
    kjax train --config hardnet --out out/hardnet

Half of base's time or less. HardNet's authors report a false positive rate at 95 % recall of 0.53 %
on Notredame and 1.96 % on Yosemite; the paper's own run gave 0.48 % and 2.15 %.
"""

from pathlib import Path

from ml_collections import ConfigDict

from kjax.runs.config import load_config


def get_config() -> ConfigDict:
    """Return the paper's config with another head, mining rule and BatchNorm rule."""
    config = load_config(Path(__file__).with_name("base.py"))
    config.model.head = "hardnet"
    config.model.dropout = 0.3
    config.loss.margin = 1.0
    config.loss.anchor_swap = True
    config.train.joint_batch_norm = False  # separate statistics for anchors and positives
    return config
