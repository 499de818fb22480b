"""`kjax train-matcher`: train a matcher."""

import argparse

from kjax.interrupts import ending_on_interrupt
from kjax.train import command_line
from kjax.train.command_line import INTERRUPTED

HELP = "train a matcher on the views of kjax build-views, or resume a training"
EXAMPLES = """examples:
  kjax build-views photos --weights best --out views.npz
  kjax train-matcher --config matcher --out out/matcher
  kjax train-matcher --config matcher --out out/short --config.train.steps=2000
      any field of the config can be set; configs/matcher.py explains each of them

Ctrl-C saves and exits. Run the same command to resume.
"""
add_arguments = command_line.add_arguments


def run(args: argparse.Namespace) -> int:
    """Train in one process."""
    with ending_on_interrupt(f"kjax train-matcher: {INTERRUPTED}"):
        from kjax.matcher.config import MatcherRunConfig
        from kjax.matcher.training import run
        from kjax.matcher.weights import WEIGHTS_FILE
        from kjax.runs.config import load_config, validate_as

    config = validate_as(MatcherRunConfig, load_config(args.config, args.overrides))
    result = f"the matcher is {args.out / WEIGHTS_FILE}"
    return command_line.run_training("kjax train-matcher", lambda: run(config, args.out), result)
