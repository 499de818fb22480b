"""Any head of the paper with the paper's training: give the head, then fields of the model.

    kjax train --config encoded:combined_star,s=2 --out out/combined_star
    kjax train --config encoded:xy,s=1 --out out/xy
    kjax train --config encoded:polar,s=2,patch_size=64 --out out/polar64

Datasets as for base, and at most its time. The paper reports a mean false positive rate at 95 %
recall over all six pairs of sets of 1.36 % for `combined_star,s=2` and 1.53 % for
`combined_star,s=1`.
"""

from pathlib import Path

from ml_collections import ConfigDict

from kjax.runs.config import load_config, override


def get_config(argument: str = "combined_star") -> ConfigDict:
    """Return the paper's config with another model, e.g. "polar,s=1"."""
    config = load_config(Path(__file__).with_name("base.py"))
    head, *fields = argument.split(",")
    override(config, [f"--config.model.head={head}", *(f"--config.model.{f}" for f in fields)])
    return config
