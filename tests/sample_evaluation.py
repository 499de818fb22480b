"""Made-up results for tests of reports. No figure here was measured by anybody."""

import io

import numpy as np
from PIL import Image

from kjax.eval import results
from kjax.eval.hpatches.scores import LEVELS, NEGATIVES, HPatchesScores

SETS = ("liberty", "notredame", "yosemite")


def phototour_scores(fpr95: float, test="stereo", train=None, *, std=None):
    """Curves and histogram of two normal distributions that roughly give the rate."""
    x = np.linspace(0, 2, 41)
    middle = 1.35
    matching = np.exp(-0.5 * ((x[:-1] - 0.5 - 2 * fpr95) / 0.2) ** 2)
    others = np.exp(-0.5 * ((x[:-1] - middle) / 0.15) ** 2)
    rate = np.concatenate([[0], np.logspace(-5, 0, 60)])
    power = np.log(0.95) / np.log(max(fpr95, 1e-4))
    recall = rate**power
    precision = np.divide(recall, recall + rate, out=np.ones_like(recall), where=rate > 0)
    return results.PhototourScores(
        test=test,
        train=train,
        rule="hardnet",
        matching_pairs=50_000,
        non_matching_pairs=50_000,
        fpr95=fpr95,
        fpr95_interval=(0.93 * fpr95, 1.08 * fpr95),
        fpr95_std=std,
        auc=1 - fpr95 / 4,
        average_precision=1 - fpr95 / 3,
        roc=results.Curve(rate.tolist(), recall.tolist()),
        precision_recall=results.Curve(recall.tolist(), precision.tolist()),
        distances=results.Histogram(
            x.tolist(),
            (50_000 * matching / matching.sum()).astype(int).tolist(),
            (50_000 * others / others.sum()).astype(int).tolist(),
        ),
    )


def hpatches_scores(quality: float, protocol: str = "python", split: str = "abc") -> HPatchesScores:
    """Scores that fall with the level, around a quality in 0…1."""
    falls = dict(zip(LEVELS, (0.12, 0.0, -0.13), strict=True))
    kinds = dict(zip(NEGATIVES, (-0.03, 0.02), strict=True))

    def at(base: float) -> dict[str, float]:
        return {level: float(np.clip(base + fall, 0, 1)) for level, fall in falls.items()}

    verification = {
        level: {kind: float(np.clip(0.35 + 0.6 * quality + 0.6 * fall + more, 0, 1))
                for kind, more in kinds.items()}
        for level, fall in falls.items()
    }  # fmt: skip
    return HPatchesScores(
        protocol=protocol,
        split=split,
        tasks="generated, seed 42",
        sequences=6,
        verification=verification,
        verification_auc={
            level: {kind: 0.5 + share / 2 for kind, share in kinds.items()}
            for level, kinds in verification.items()
        },
        matching=at(0.8 * quality - 0.05),
        matching_by_sequence={
            f"{kind}_scene{number}": at(0.8 * quality - 0.05 + shift)
            for kind, shift in (("i", -0.04), ("v", 0.04))
            for number in range(3)
        },
        retrieval=at(quality),
        retrieval_by_pool={
            level: {str(size): float(np.clip(share + bonus, 0, 1))
                    for size, bonus in ((100, 0.15), (1000, 0.07), (10000, 0.0))}
            for level, share in at(quality).items()
        },
        verification_map=float(np.mean([list(one.values()) for one in verification.values()])),
        matching_map=0.8 * quality - 0.05,
        retrieval_map=quality,
    )  # fmt: skip


def descriptor(name: str, *, ours: bool = False, **fields: object) -> results.Result:
    """A descriptor with sensible blanks."""
    blanks = {
        "source": "made up for a test", "dimension": 128, "parameters": None, "distance": "L2",
        "missing": None, "warnings": [], "phototour": [], "hpatches": [],
    }  # fmt: skip
    return results.Result(name=name, ours=ours, **{**blanks, **fields})


def evaluation(*descriptors: results.Result) -> results.Evaluation:
    return results.Evaluation(
        title="Made-up figures for a test",
        command="kjax eval out/test",
        created="2026-01-02T03:04:05+00:00",
        versions={"kjax": "0.0", "jax": "0.0", "Python": "3.11", "device": "2 × CPU"},
        descriptors=list(descriptors),
    )


def paper_like_evaluation() -> results.Evaluation:
    """As for the paper: three sets, six settings, rivals, and one that is missing."""
    ours = [
        ("sum", 285_984, 0.060, 0.42), ("cat", 285_984, 0.021, 0.60),
        ("xy s=1", 433_568, 0.019, 0.64), ("hardnet", 1_334_560, 0.0151, 0.67),
        ("combined_star s=2", 1_391_296, 0.0142, 0.69),
    ]  # fmt: skip
    rows = [
        descriptor(
            name, ours=True, parameters=parameters, dimension=8192 if name == "cat" else 128,
            source=f"{name}, out/run", phototour=_six(rate), hpatches=_boards(quality),
            warnings=["3 of 1,000 descriptors are constant"] if name == "sum" else [],
        )
        for name, parameters, rate, quality in ours
    ]  # fmt: skip
    rivals = [("RootSIFT", 0.25, 0.43, "L2", 128), ("ORB", 0.46, 0.19, "L1", 256)]
    rows += [
        descriptor(
            name, distance=unit, dimension=dimension, source="OpenCV 0.0",
            phototour=[phototour_scores(rate + 0.02 * place, test)
                       for place, test in enumerate(SETS)],
            hpatches=_boards(quality),
        )
        for name, rate, quality, unit, dimension in rivals
    ]  # fmt: skip
    rows.append(
        descriptor(
            "TFeat", parameters=599_808, source="weights.npz", hpatches=_boards(0.51),
            phototour=[phototour_scores(rate, test, "liberty")
                       for test, rate in zip(SETS, (0.02, 0.031, 0.081), strict=True)],
        )
    )  # fmt: skip
    reason = "its weights are not in the folder of weights"
    rows.append(descriptor("SOSNet", missing=reason, dimension=None))
    return evaluation(*rows)


def illustrations() -> results.Illustrations:
    """Noise as patches, a grey picture as similarity maps, and smooth training curves."""
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (6, 2, 8, 8), np.uint8).repeat(4, 2).repeat(4, 3)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (150, 600), np.uint8)).save(buffer, "PNG")
    steps = np.arange(0, 2001, 50.0)
    fall = np.exp(-steps / 500)
    curves = {
        "loss": 0.3 + 0.7 * fall, "positive_distance": 0.6 + 0.3 * fall,
        "negative_distance": 1.1 - 0.3 * fall, "learning_rate": 10 * (1 - steps / 2000),
        "gradient_norm": 0.02 + fall, "fpr95/notredame": 0.005 + 0.1 * fall,
        "fpr95/yosemite": 0.02 + 0.2 * fall,
    }  # fmt: skip
    return results.Illustrations(
        hard_pairs=[
            results.HardPairs("combined_star s=2", "liberty", kind, patches, np.linspace(*ends, 6))
            for kind, ends in ((True, (1.5, 1.2)), (False, (0.3, 0.5)))
        ],
        similarity={"combined_star s=2": buffer.getvalue()},
        training={
            name: {metric: results.Curve(steps.tolist(), (factor * values).tolist())
                   for metric, values in curves.items()}
            for name, factor in (("combined_star s=2", 1.0), ("hardnet", 1.1))
        },
    )  # fmt: skip


def _six(rate: float) -> list[results.PhototourScores]:
    hardness = {"liberty": 1.2, "notredame": 0.5, "yosemite": 1.4}
    factors = {"liberty": 0.9, "notredame": 0.9, "yosemite": 1.1}
    return [
        phototour_scores(rate * hardness[test] * factors[train], test, train, std=rate / 20)
        for test in SETS
        for train in SETS
        if test != train
    ]


def _boards(quality: float) -> list[HPatchesScores]:
    kinds = (("python", "abc", 0.0), ("python", "a", 0.01), ("matlab", "a", 0.05))
    return [hpatches_scores(quality - shift, *kind) for *kind, shift in kinds]
