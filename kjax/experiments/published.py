"""What the paper publishes of the experiments that are repeated here.

Its PhotoTourism table, with the deviation of every figure and of the mean, is
`kjax.eval.report.published.PAPER_PHOTOTOUR`; the numbers of parameters are below. The values of its
two HPatches bar charts are neither in its text nor in its source, which includes them from files
that were not published: there is nothing to compare with but the order that the text states.
"""

from typing import NamedTuple

from kjax.eval.report.published import PAPER_PHOTOTOUR, PAPER_SETS, PAPER_SOURCE, paper_row

__all__ = [
    "PAPER_PARAMETERS",
    "PAPER_PHOTOTOUR",
    "PAPER_SETS",
    "PAPER_SOURCE",
    "Parameters",
    "paper_parameters",
    "paper_row",
]


class Parameters(NamedTuple):
    """Learned parameters for patches of 32×32 and of 64×64."""

    n32: int
    n64: int


PAPER_PARAMETERS = {
    "sum": Parameters(285_984, 285_984),
    "cat": Parameters(285_984, 285_984),
    "xy s=1": Parameters(433_568, 433_568),
    "polar s=1": Parameters(433_568, 433_568),
    "combined s=1": Parameters(581_024, 581_024),
    "xy s=2": Parameters(695_712, 695_712),
    "polar s=2": Parameters(695_712, 695_712),
    "combined_star s=1": Parameters(867_008, 867_008),
    "combined s=2": Parameters(1_105_312, 1_105_312),
    "hardnet": Parameters(1_334_560, 4_480_288),
    "combined_star s=2": Parameters(1_391_296, 1_391_296),
}
"""By row, fewest first. The paper states that `sum` and `cat` have none but φ's."""


def paper_parameters(row: str) -> int | None:
    """The paper's number for a row, whose name may go on, e.g. with the patch size 64."""
    names = [name for name in PAPER_PARAMETERS if f"{row} ".startswith(f"{name} ")]
    if not names:
        return None
    found = PAPER_PARAMETERS[names[0]]
    return found.n64 if "64" in row else found.n32
