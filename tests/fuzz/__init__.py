"""Damaged and hostile files for every reader of kjax: see `python -m tests.fuzz --help`."""

import sys
from pathlib import Path

for _folder in ("", "data", "baselines", "eval"):  # helpers of the tests
    sys.path.append(str(Path(__file__).parents[1] / _folder))
