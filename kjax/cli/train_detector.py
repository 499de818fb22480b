"""`kjax train-detector`: train a detector of keypoints."""

import argparse

from kjax.interrupts import ending_on_interrupt
from kjax.train import command_line
from kjax.train.command_line import INTERRUPTED

HELP = "train a detector of keypoints on photographs, or resume a training"
EXAMPLES = r"""examples:
  kjax train-detector --config detector --out out/detector --config.data.photos=photos \
      --config.data.validation=held_out
      any field of the config can be set; configs/detector.py explains each of them

Ctrl-C saves and exits. Run the same command to resume.
"""
add_arguments = command_line.add_arguments


def run(args: argparse.Namespace) -> int:
    """Train in one process."""
    with ending_on_interrupt(f"kjax train-detector: {INTERRUPTED}"):
        from kjax.keypoints.config import DetectorRunConfig
        from kjax.keypoints.training import run
        from kjax.keypoints.weights import WEIGHTS_FILE
        from kjax.runs.config import load_config, validate_as

    config = validate_as(DetectorRunConfig, load_config(args.config, args.overrides))
    result = f"the detector is {args.out / WEIGHTS_FILE}"
    return command_line.run_training("kjax train-detector", lambda: run(config, args.out), result)
