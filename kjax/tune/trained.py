"""What a training of either kind leaves to the rest of a tuning."""

from pathlib import Path
from typing import NamedTuple

RUN_FOLDER = "run"


class Trained(NamedTuple):
    """A training that is done.

    Attributes:
        files: what the folder of the tuning needs of it, to stand for the weights.
        how: sentences for the report.
        advice: what else to try if the weights got worse.
    """

    files: tuple[Path, ...]
    how: tuple[str, ...]
    advice: str
