"""Figures from papers, with their sources, as fractions. Not ours to change."""

import dataclasses

from kjax.eval.results import Result

PAPER_SETS = ("liberty", "notredame", "yosemite")
"""Test sets of the paper's PhotoTourism table, in its order."""

PAPER_SOURCE = (
    "Paper: Mukundan, Tolias, Chum, “Explicit Spatial Encoding for Deep Local Descriptors”, CVPR "
    "2019, PhotoTourism table: mean and standard deviation of 3 runs, patches of 32×32, the full "
    "list of test pairs. “As reported” means by HardNet's authors."
)


@dataclasses.dataclass(frozen=True)
class PublishedFpr:
    """A row of the paper's PhotoTourism table, by training and test set.

    `head` is kjax's name of the architecture.
    """

    name: str
    head: str | None
    parameters: int
    mean: float
    mean_std: float | None
    fpr95: dict[tuple[str, str], float]
    fpr95_std: dict[tuple[str, str], float]


_SETTINGS = [(train, test) for test in PAPER_SETS for train in PAPER_SETS if train != test]

PAPER_PHOTOTOUR = tuple(
    PublishedFpr(
        name,
        head,
        parameters,
        mean / 100,
        None if mean_std is None else mean_std / 100,
        dict(zip(_SETTINGS, (value / 100 for value in percentages), strict=True)),
        # Rows without deviations have none to pair.
        dict(zip(_SETTINGS, (value / 100 for value in deviations), strict=False)),
    )
    for name, head, parameters, mean, mean_std, percentages, deviations in (
        ("HardNet+, as reported", None, 1_334_560, 1.51, None,
         (1.49, 2.51, 0.53, 0.78, 1.96, 1.84), ()),
        ("HardNet+", "hardnet", 1_334_560, 1.43, 0.02,
         (1.25, 2.35, 0.48, 0.74, 2.15, 1.61), (0.03, 0.03, 0.01, 0.02, 0.01, 0.10)),
        ("⋆ψᶜ, s=1", "combined_star", 867_008, 1.53, 0.03,
         (1.27, 2.31, 0.48, 0.82, 2.58, 1.72), (0.03, 0.08, 0.02, 0.05, 0.08, 0.09)),
        ("⋆ψᶜ, s=2", "combined_star", 1_391_296, 1.36, 0.01,
         (1.14, 2.16, 0.42, 0.73, 2.18, 1.51), (0.03, 0.10, 0.01, 0.02, 0.07, 0.12)),
    )
)  # fmt: skip


def paper_counterpart(result: Result) -> PublishedFpr | None:
    """Find the paper's row of the same architecture, which is at the beginning of the source.

    The paper's table does not report 64×64 patches, for which the encoded heads have the same
    number of parameters. Such models are called "polar s=1 N=64".
    """
    architecture = result.source.partition(",")[0]
    if not result.ours or "N=" in architecture or "D=" in architecture:
        return None
    for row in PAPER_PHOTOTOUR:
        named = row.head is not None and architecture.startswith(row.head)
        if named and row.parameters == result.parameters:
            return row
    return None


# The values of the paper's two HPatches bar charts are neither in its text nor in its source.

HPATCHES_SETTING = ("python", "full")
"""Protocol and split of the figures below."""

HPATCHES_SOURCE = (
    "Published: figures in the repository of HardNet (Mishchuk et al., 2017; github.com/DagnyT/"
    "hardnet), read off the charts; trained on Liberty. Protocol and split as its issue 36 says."
)

PUBLISHED_HPATCHES: dict[str, tuple[float | None, float, float]] = {
    "RootSIFT": (None, 0.2722, 0.4249),
    "TFeat-M*": (None, 0.3264, 0.5203),
    "L2Net": (None, 0.4082, 0.5964),
    "L2Net+": (None, 0.4504, 0.6337),
    "HardNet": (None, 0.5218, 0.6944),
    "HardNet+": (0.8843, 0.5276, 0.6966),
}
"""Verification (None if not reported), matching and retrieval mAP."""

_HAND_CRAFTED = (
    "sift", "rootsift", "rsift", "surf", "brief", "orb", "brisk", "freak", "akaze", "kaze",
    "daisy", "latch", "lucid", "mkd", "resize", "meanstd",
)  # fmt: skip


def is_hand_crafted(result: Result) -> bool:
    """Whether a baseline's name is that of a designed descriptor, which the paper draws hatched.

    MKD is among them, even with learned whitening.
    """
    words = "".join(sign if sign.isalnum() else " " for sign in result.name.lower()).split()
    return not result.ours and any(word in _HAND_CRAFTED for word in (*words, "".join(words)))
