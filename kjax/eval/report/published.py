"""Figures that papers report, with their sources. Shares, as everywhere; not ours to change."""

import dataclasses

from kjax.eval.results import DescriptorResult

PAPER_SETS = ("liberty", "notredame", "yosemite")
"""The test sets of the paper's PhotoTourism table, in its order."""

PAPER_SOURCE = (
    "Paper: Mukundan, Tolias, Chum, “Explicit Spatial Encoding for Deep Local Descriptors”, CVPR "
    "2019, PhotoTourism table: mean and standard deviation of 3 runs, patches of 32×32, the full "
    "list of test pairs. “As reported” means by HardNet's authors."
)

SettingName = tuple[str, str]
"""Training set and test set."""


@dataclasses.dataclass(frozen=True)
class PublishedFpr:
    """A row of the paper's PhotoTourism table.

    Attributes:
        name: of the descriptor.
        head: what kjax calls its architecture; None where the row is another implementation's.
        parameters: learned ones.
        mean: over the six settings.
        mean_std: standard deviation of the mean over seeds, if given.
        fpr95: by training and test set.
        fpr95_std: over seeds, if given.
    """

    name: str
    head: str | None
    parameters: int
    mean: float
    mean_std: float | None
    fpr95: dict[SettingName, float]
    fpr95_std: dict[SettingName, float]


_SETTINGS: tuple[SettingName, ...] = (
    ("notredame", "liberty"),
    ("yosemite", "liberty"),
    ("liberty", "notredame"),
    ("yosemite", "notredame"),
    ("liberty", "yosemite"),
    ("notredame", "yosemite"),
)


def _row(
    name: str,
    head: str | None,
    parameters: int,
    mean: tuple[float, float | None],
    percentages: tuple[float, ...],
    deviations: tuple[float, ...] = (),
) -> PublishedFpr:
    return PublishedFpr(
        name,
        head,
        parameters,
        mean[0] / 100,
        None if mean[1] is None else mean[1] / 100,
        dict(zip(_SETTINGS, (value / 100 for value in percentages), strict=True)),
        # Rows without deviations have none to pair.
        dict(zip(_SETTINGS, (value / 100 for value in deviations), strict=False)),
    )


PAPER_PHOTOTOUR = (
    _row(
        "HardNet+, as reported", None, 1_334_560, (1.51, None),
        (1.49, 2.51, 0.53, 0.78, 1.96, 1.84),
    ),
    _row(
        "HardNet+", "hardnet", 1_334_560, (1.43, 0.02),
        (1.25, 2.35, 0.48, 0.74, 2.15, 1.61), (0.03, 0.03, 0.01, 0.02, 0.01, 0.10),
    ),
    _row(
        "⋆ψᶜ, s=1", "combined_star", 867_008, (1.53, 0.03),
        (1.27, 2.31, 0.48, 0.82, 2.58, 1.72), (0.03, 0.08, 0.02, 0.05, 0.08, 0.09),
    ),
    _row(
        "⋆ψᶜ, s=2", "combined_star", 1_391_296, (1.36, 0.01),
        (1.14, 2.16, 0.42, 0.73, 2.18, 1.51), (0.03, 0.10, 0.01, 0.02, 0.07, 0.12),
    ),
)  # fmt: skip


def paper_counterpart(result: DescriptorResult) -> PublishedFpr | None:
    """The paper's row of the same architecture as one of our own.

    Told by name and number of parameters: the encoded heads have as many parameters at 64×64, which
    the paper's table does not report. There the name says so.
    """
    if not result.ours or "64" in result.name:
        return None
    for row in PAPER_PHOTOTOUR:
        named = row.head is not None and result.name.lower().startswith(row.head)
        if named and row.parameters == result.parameters:
            return row
    return None


PAPER_PARAMETERS = {
    "sum": 285_984,
    "cat": 285_984,
    "xy s=1": 433_568,
    "polar s=1": 433_568,
    "combined s=1": 581_024,
    "xy s=2": 695_712,
    "polar s=2": 695_712,
    "combined_star s=1": 867_008,
    "combined s=2": 1_105_312,
    "hardnet": 1_334_560,
    "combined_star s=2": 1_391_296,
}
"""By row, fewest first. The paper states that `sum` and `cat` have none but φ's."""
_LARGER_HARDNET = 4_480_288
"""For patches of 64×64; the other models have as many as for 32×32."""


def paper_parameters(row: str) -> int | None:
    """The paper's number for a row, whose name may go on, e.g. with the patch size 64."""
    names = [name for name in PAPER_PARAMETERS if f"{row} ".startswith(f"{name} ")]
    if not names:
        return None
    return _LARGER_HARDNET if names[0] == "hardnet" and "64" in row else PAPER_PARAMETERS[names[0]]


# The values of the paper's two HPatches bar charts are neither in its text nor in its source, which
# includes them from files that were not published: the order that the text states is all there is.


@dataclasses.dataclass(frozen=True)
class PublishedHPatches:
    """Headlines of the three tasks; None where they were not reported."""

    name: str
    verification: float | None
    matching: float
    retrieval: float


HPATCHES_SETTING = ("python", "full")
"""Protocol and split of the figures below."""

HPATCHES_SOURCE = (
    "Published: figures in the repository of HardNet (Mishchuk et al., 2017; github.com/DagnyT/"
    "hardnet), read off the charts; trained on Liberty. Protocol and split as its issue 36 says."
)

PUBLISHED_HPATCHES = (
    PublishedHPatches("RootSIFT", None, 0.2722, 0.4249),
    PublishedHPatches("TFeat-M*", None, 0.3264, 0.5203),
    PublishedHPatches("L2Net", None, 0.4082, 0.5964),
    PublishedHPatches("L2Net+", None, 0.4504, 0.6337),
    PublishedHPatches("HardNet", None, 0.5218, 0.6944),
    PublishedHPatches("HardNet+", 0.8843, 0.5276, 0.6966),
)

_HAND_CRAFTED = (
    "sift", "rootsift", "rsift", "surf", "brief", "orb", "brisk", "freak", "akaze", "kaze",
    "daisy", "latch", "lucid", "mkd", "resize", "meanstd",
)  # fmt: skip


def is_hand_crafted(result: DescriptorResult) -> bool:
    """Whether a descriptor is a rival that was designed rather than trained, as its name tells.

    The paper's figure draws these with stripes. MKD is among them, even with learned whitening.
    """
    words = "".join(sign if sign.isalnum() else " " for sign in result.name.lower()).split()
    return not result.ours and any(word in _HAND_CRAFTED for word in (*words, "".join(words)))
