"""`docs/results.md`: the tables that a reader would quote, computed from `results/*.jsonl`."""

import functools
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from program import percent, read_card, read_records, table

from experiments.trainings import DEFAULT, DEFAULTS
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import write_text, write_whole

PAGE, FIGURE = "results.md", "figures/heads-jitter.svg"
SHIPPED = ("best", "fast", "tiny", "hardnet")
TASKS = ("verification", "matching", "retrieval")
RIVALS = ("RootSIFT", "TFeat", "MKD lw")
"""Descriptors of others beside the heads: all are in the first table."""
AMOUNTS = {"Moved 15 %": ("translation", "0.15"), "Turned 30°": ("rotation", "30")}
AMOUNTS["Scaled 2^±0.45"] = ("scale", "0.45")
AXES = {
    "translation": ("% of the patch side", 100),
    "rotation": ("degrees", 1),
    "scale": ("octaves", 1),
}
"""Label of each misalignment's axis, and the factor of its amounts."""
CURVES = ("hardnet", "sum", "cat", "xy s=2", "polar s=2", "combined s=2", "combined_star s=2")
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#7f7f7f", "#e377c2", "#9467bd", "#d62728")

Record = Mapping[str, Any]
Value = Callable[[Record], float | None]


class Spread(NamedTuple):
    """A mean, its standard deviation over seeds (None for one seed), and the number of seeds."""

    mean: float
    std: float | None
    seeds: int

    def text(self, digits: int = 1) -> str:
        """The mean and the deviation in percent."""
        deviation = "" if self.std is None else f" ± {percent(self.std, digits)}"
        return percent(self.mean, digits) + deviation


def spread(columns: Iterable[Mapping[Any, float]]) -> Spread | None:
    """Average over columns, which hold values by seed, e.g. one column per training set.

    The deviation is that of each seed's mean over columns, of the seeds that all columns share.
    """
    known = [column for column in columns if column]
    if not known:
        return None
    mean = float(np.mean([np.mean(list(column.values())) for column in known]))
    shared = [seed for seed in known[0] if all(seed in column for column in known)]
    means = [float(np.mean([column[seed] for column in known])) for seed in shared]
    return Spread(mean, float(np.std(means, ddof=1)) if len(means) > 1 else None, len(shared))


def mean_of(records: Iterable[Record], value: Value) -> Spread | None:
    """Average a score over training sets and seeds."""
    columns: dict[str, dict[Any, float]] = {}
    for record in records:
        if (score := value(record)) is not None:
            columns.setdefault("+".join(record["train"]), {})[record["seed"]] = score
    return spread(columns.values())


def cell(found: Spread | None, digits: int = 1) -> str:
    """A table's cell."""
    return "–" if found is None else found.text(digits)


def by_row(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by the name of their model, or by the value tried."""
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record["result"]["name"], []).append(record)
    return rows


def parameters(record: Record) -> str:
    """The number of learned parameters, or a dash."""
    count = record["result"]["parameters"]
    return f"{count:,}" if count else "–"


def hpatches(task: str) -> Value:
    """Mean average precision of a task on the Oxford sequences, by HPatches' Python rules."""
    return lambda record: next(
        (
            scores[f"{task}_map"]
            for scores in record["result"]["hpatches"]
            if (scores["split"], scores["protocol"]) == ("oxford", "python")
        ),
        None,
    )


def task_cells(records: Sequence[Record]) -> list[str]:
    """The cells of HPatches' three tasks."""
    return [cell(mean_of(records, hpatches(task))) for task in TASKS]


def noisy(record: Record, *, validation: bool = False) -> float | None:
    """Matching mAP of patches with HPatches' noise, the mean of its three levels."""
    for scores in record["result"]["misaligned"]:
        if scores["validation"] == validation and scores["by_level"]:
            return float(np.mean(list(scores["by_level"].values())))
    return None


def misaligned(kind: str, amount: str) -> Value:
    """Matching mAP with one misalignment of a known amount."""
    return lambda record: next(
        (
            scores["by_amount"].get(kind, {}).get(amount)
            for scores in record["result"]["misaligned"]
            if not scores["validation"]
        ),
        None,
    )


def mean_fpr(records: Sequence[Record], columns: Iterable[tuple[str, str]]) -> Spread | None:
    """FPR@95, averaged over pairs of a training and a test set; rivals have one per test set."""
    return spread(
        {
            record["seed"]: scores["fpr95"]
            for record in records
            if record["train"] in ([], [train])
            for scores in record["result"]["phototour"]
            if scores["test"] == test
        }
        for train, test in columns
    )


def compose_page(records: Mapping[str, Sequence[Record]]) -> str:
    """Return the page in Markdown, from records by the name of their file."""
    parts = [
        "# Results",
        "Every figure here is computed from `results/*.jsonl` by `python benchmarks/reproduce.py "
        "page`. A record holds one training with one seed, or one "
        "descriptor of others: its scores, configuration, seed, hardware, versions and commit. "
        "Scores are percentages; ± is the standard deviation over seeds. Trainings ran on an "
        "NVIDIA H200 in bfloat16, other descriptors on a CPU.",
        "**HPatches protocol, Oxford**: the eight Oxford affine sequences cut into HPatches' "
        "format and scored by its Python rules (mean average precision; tasks generated with seed "
        "42). Nothing was trained on them. **FPR@95**: false positive rate at 95 % recall on "
        "80,000 matching and 80,000 non-matching pairs of a set that was not trained on. "
        "**Misaligned**: matching mAP of patches with HPatches' geometric noise, the mean of easy, "
        "hard and tough.",
    ]
    sections = (
        shipped_section(records["rivals"]),
        heads_section(records["heads"], records["rivals"]),
        longer_section([*records["long"], *records["final"]]),
        ablation_section(records["ablation"]),
        trials_section(records),
        cost_section(records),
    )
    for section in sections:
        parts += section
    return "\n\n".join(parts) + "\n"


def shipped_section(rivals: Sequence[Record]) -> Iterator[str]:
    """What ships, by the weights' own files, and descriptors of others."""
    yield "## Shipped weights and other descriptors"
    yield (
        "HPatches protocol, Oxford. `kjax info NAME` shows how each was trained and measured; "
        "the others are in `results/rivals.jsonl`. DDesc is DeepDesc's `split4`, which its authors "
        "recommend. Weights of L2-Net, DeepCompare and the authors' HardNet could not be had."
    )
    yield command("rivals --test castle herzjesu fountain garden --protocols python matlab")
    rows: list[list[str]] = []
    for name in SHIPPED:
        card = read_card(name)
        assert card is not None
        scores = [card["results"][f"hpatches/oxford/python/{task}"] for task in TASKS]
        rows.append([f"**{name}**", "128", f"{card['parameters']:,}", *map(percent, scores)])
    for record in rivals:
        result, scores = record["result"], [hpatches(task)(record) for task in TASKS]
        own = [result["name"], str(result["dimension"]), parameters(record)]
        rows.append([*own, *map(percent, scores)])
    yield table(("Descriptor", "Dimension", "Parameters", *map(str.title, TASKS)), rows)


def heads_section(heads: Sequence[Record], rivals: Sequence[Record]) -> Iterator[str]:
    """The paper's models, trained alike."""
    yield "## Heads of the paper"
    yield (
        "Each head was trained on castle, herzjesu and fountain alone, with seeds 0, 1 and 2: "
        "1,024,000 pairs, otherwise `configs/base.py`. Means over nine trainings. FPR@95 is the "
        "mean over the nine pairs of training and test set (garden included)."
    )
    yield command(
        "heads --train castle herzjesu fountain --test castle herzjesu fountain garden \\\n"
        "    --jitter garden --config.model.dtype=bfloat16 --config.train.steps=2000"
    )
    trained = sorted({record["train"][0] for record in heads})
    tests = sorted({one["test"] for record in heads for one in record["result"]["phototour"]})
    columns = [(train, test) for train in trained for test in tests if train != test]
    rows = [
        [
            name if record["train"] == [] else f"**{name}**",
            parameters(record),
            cell(mean_fpr(each, columns), 2),
            *task_cells(each),
        ]
        for name, each in by_row([*heads, *rivals]).items()
        for record in each[:1]
        if record["train"] or name in RIVALS
    ]
    yield table(("Descriptor", "Parameters", "FPR@95", *map(str.title, TASKS)), rows)
    yield "Misaligned patches of garden: HPatches' noise, and one misalignment at a time."
    rows = [
        [
            name,
            cell(mean_of(each, noisy)),
            *(cell(mean_of(each, misaligned(*amount))) for amount in AMOUNTS.values()),
        ]
        for name, each in by_row(heads).items()
    ]
    yield table(("Head", "Misaligned", *AMOUNTS), rows)
    title = "Matching mAP of seven heads as the second patch is moved, turned or scaled"
    yield f"![{title}]({FIGURE})"


def longer_section(records: Sequence[Record]) -> Iterator[str]:
    """Longer trainings, and those on all photographs together."""
    yield "## Longer training and more photographs"
    yield (
        "HPatches protocol, Oxford. `long` trains heads on each of the three sets alone, `final` "
        "on all sets together; `as best` means `best`'s recipe. The shipped weights are "
        "trained further from such rows, in larger batches and on misaligned pairs, as `kjax info` "
        "shows."
    )
    rows = []
    for experiment in ("long", "final"):
        own = [record for record in records if record["experiment"] == experiment]
        for name, each in by_row(own).items():
            if name.endswith("-research"):  # weights that no longer ship
                continue
            sets = "/".join(sorted({str(len(record["train"])) for record in each}))
            pairs = f"{each[0]['pairs'] / 1e6:.1f}"
            rows.append([experiment, name, sets, pairs, *task_cells(each)])
    header = ("Experiment", "Model", "Sets", "Million pairs", *map(str.title, TASKS))
    yield table(header, rows, text=2)


def ablation_section(records: Sequence[Record]) -> Iterator[str]:
    """One table: the values of every question beside its default."""
    yield "## Ablations"
    yield (
        "One setting changed at a time, for `combined` with s = 2, trained on castle, herzjesu and "
        "fountain together: 1,024,000 pairs, seeds 0, 1 and 2. The score is misaligned matching on "
        "the validation set (motorcycle). Changes larger than one pooled standard deviation are "
        "bold."
    )
    yield command(
        "ablation --train castle herzjesu fountain --validation embedded --test \\\n"
        "    --jitter garden --config.model.dtype=bfloat16 --config.train.steps=2000"
    )
    score = functools.partial(noisy, validation=True)
    usual = mean_of((one for one in records if one["group"] == DEFAULT), score)
    if usual is None:
        return
    rows = [["(all defaults)", "", usual.text(2), ""]]
    for group in dict.fromkeys(one["group"] for one in records if one["group"] != DEFAULT):
        own = (one for one in records if one["group"] == group)
        for place, (value, each) in enumerate(by_row(own).items()):
            found = mean_of(each, score)
            if found is not None:
                change = found.mean - usual.mean
                text = f"{100 * change:+.2f}".replace("-", "−")
                if abs(change) > (pooled_std(found, usual) or math.inf):
                    text = f"**{text}**"
                question = "" if place else f"{group} ({DEFAULTS[group]})"
                rows.append([question, value, found.text(2), text])
    yield table(("Setting (default)", "Value", "Matching", "Change"), rows, text=2)


def trials_section(records: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Single trainings that decided how the shipped weights are trained."""
    yield "## Trials of recipes"
    yield (
        "One training each (seed 0), to choose how the shipped weights are trained; "
        "differences of a point are within what seeds change. The score is misaligned matching, on "
        "garden for the first two tables and on ground for the third. The records have each "
        "training's settings."
    )
    titles = {
        ("recipes", "photometry"): "Augmentation, loss and optimiser, 512 pairs per batch:",
        ("light",): "Narrower trunks, with and without a teacher (`taught`: weight 1):",
        ("open",): "On openly licensed photographs (`continued`: from the trained `best`):",
    }
    for names, title in titles.items():
        yield title
        found = [
            (name, cell(mean_of(each, noisy)))
            for experiment in names
            for name, each in by_row(records[experiment]).items()
        ]
        half = -(-len(found) // 2)
        pairs = zip(found[:half], [*found[half:], *[("", "")] * half], strict=False)
        yield table(("Training", "mAP", "Training ", "mAP "), [[*a, *b] for a, b in pairs])


def cost_section(records: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """Time of all trainings, by experiment."""
    yield "## Cost"
    rows = []
    for name, each in records.items():
        trained = [record for record in each if record["pairs"]]
        if trained:
            fields = ("pairs", "seconds", "compile_seconds")
            pairs, seconds, compiling = (sum(one[field] for one in trained) for field in fields)
            minutes = [f"{spent / 60:.1f}" for spent in (seconds, compiling)]
            counts = [len(trained), f"{pairs / 1e6:,.0f}", *minutes, f"{pairs / seconds:,.0f}"]
            rows.append([f"`{name}`", *counts])
    header = ("Experiment", "Trainings", "Million pairs", "Training, min", "Compiling, min")
    yield table((*header, "Pairs/s"), rows)
    yield (
        "Trainings that differ in their seed only share a compilation. Part of `final` and `open` "
        "shared the GPU with others; their records say so."
    )


def command(arguments: str) -> str:
    """A command line of `benchmarks/reproduce.py`, as a block."""
    given = "" if arguments.startswith("ablation") else " --hpatches data/oxford"
    return f"```bash\npython benchmarks/reproduce.py {arguments} --data data{given}\n```"


def pooled_std(first: Spread, second: Spread) -> float | None:
    """The common standard deviation of two groups, or None if neither has one."""
    weighted = [(one.seeds - 1, one.std**2) for one in (first, second) if one.std is not None]
    total = sum(degrees for degrees, _ in weighted)
    return math.sqrt(sum(n * variance for n, variance in weighted) / total) if total else None


def read_all(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the records of all experiments; files of other benchmarks are left out."""
    found = {path.stem: read_records(path) for path in sorted(folder.glob("*.jsonl"))}
    return {name: each for name, each in found.items() if each and "experiment" in each[0]}


def write_page(results: Path, folder: Path) -> None:
    """Write the page and its figure; the same records give the same files."""
    records = read_all(results)
    if not records:
        raise InputError(f"no records in {results}: run some experiments first")
    text = compose_page(records)
    (folder / FIGURE).parent.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FIGURE, lambda path: path.write_bytes(draw_figure(records["heads"])))
    write_text(folder / PAGE, text)


def draw_figure(heads: Sequence[Record]) -> bytes:
    """Draw matching mAP against the amount of each misalignment, as SVG."""
    require("matplotlib", "figures").use("agg")
    import matplotlib
    from matplotlib import pyplot

    rows = by_row(heads)
    with matplotlib.rc_context({"svg.hashsalt": "kjax", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(1, len(AXES), figsize=(9, 3.1), layout="constrained")
        for axis, (kind, (label, factor)) in zip(axes, AXES.items(), strict=True):
            for name, colour in zip(CURVES, COLOURS, strict=True):
                amounts = rows[name][0]["result"]["misaligned"][0]["by_amount"][kind]
                found = [mean_of(rows[name], misaligned(kind, amount)) for amount in amounts]
                x = [factor * float(amount) for amount in amounts]
                axis.plot(x, [100 * one.mean for one in found if one], color=colour, label=name)
            axis.set(xlabel=label, ylim=(0, None), title=kind.capitalize())
        axes[0].set_ylabel("matching mAP, %")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=7)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return stream.getvalue()
