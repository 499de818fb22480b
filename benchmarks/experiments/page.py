"""`docs/results.md`: tables computed from `results/*.jsonl`, in the text of `results.md` beside."""

import functools
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
AXES = {"translation": ("% of the patch side", 100), "rotation": ("degrees", 1)}
AXES["scale"] = ("octaves", 1)
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
    """A table's cell: the mean and the deviation in percent, or a dash."""
    mean, deviation = (percent(one, digits) for one in (found or (None, None))[:2])
    return mean if deviation == "–" else f"{mean} ± {deviation}"


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


def hpatches(record: Record, task: str) -> float | None:
    """Mean average precision of a task on the Oxford sequences, by HPatches' Python rules."""
    for scores in record["result"]["hpatches"]:
        if (scores["split"], scores["protocol"]) == ("oxford", "python"):
            return scores[f"{task}_map"]
    return None


def task_cells(records: Sequence[Record]) -> list[str]:
    """The cells of HPatches' three tasks."""
    values = (functools.partial(hpatches, task=task) for task in TASKS)
    return [cell(mean_of(records, value)) for value in values]


def noisy(record: Record, *, validation: bool = False) -> float | None:
    """Matching mAP of patches with HPatches' noise, the mean of its three levels."""
    for scores in record["result"]["misaligned"]:
        if scores["validation"] == validation and scores["by_level"]:
            return float(np.mean(list(scores["by_level"].values())))
    return None


def misaligned(record: Record, kind: str, amount: str) -> float | None:
    """Matching mAP with one misalignment of a known amount."""
    for scores in record["result"]["misaligned"]:
        if not scores["validation"]:
            return scores["by_amount"].get(kind, {}).get(amount)
    return None


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
    template = Path(__file__).with_name("results.md").read_text(encoding="utf-8")
    return template.format(
        shipped=shipped_table(records["rivals"]),
        heads=heads_table(records["heads"], records["rivals"]),
        misaligned=misaligned_table(records["heads"]),
        longer=longer_table([*records["long"], *records["final"]]),
        ablations=ablation_table(records["ablation"]),
        recipes=trials_table(records["recipes"], records["photometry"]),
        light=trials_table(records["light"]),
        open=trials_table(records["open"]),
        cost=cost_table(records),
    )


def shipped_table(rivals: Sequence[Record]) -> str:
    """What ships, by the weights' own files, and descriptors of others."""
    rows: list[list[str]] = []
    for name in SHIPPED:
        card = read_card(name)
        assert card is not None
        scores = [card["results"][f"hpatches/oxford/python/{task}"] for task in TASKS]
        rows.append([f"**{name}**", "128", f"{card['parameters']:,}", *map(percent, scores)])
    for record in rivals:
        result, scores = record["result"], [hpatches(record, task) for task in TASKS]
        own = [result["name"], str(result["dimension"]), parameters(record)]
        rows.append([*own, *map(percent, scores)])
    return table(("Descriptor", "Dimension", "Parameters", *map(str.title, TASKS)), rows)


def heads_table(heads: Sequence[Record], rivals: Sequence[Record]) -> str:
    """The paper's models, trained alike."""
    trained = sorted({record["train"][0] for record in heads})
    tests = sorted({one["test"] for record in heads for one in record["result"]["phototour"]})
    columns = [(train, test) for train in trained for test in tests if train != test]
    rows = []
    for name, each in by_row([*heads, *rivals]).items():
        if each[0]["train"] or name in RIVALS:
            label = f"**{name}**" if each[0]["train"] else name
            rate = cell(mean_fpr(each, columns), 2)
            rows.append([label, parameters(each[0]), rate, *task_cells(each)])
    return table(("Descriptor", "Parameters", "FPR@95", *map(str.title, TASKS)), rows)


def misaligned_table(heads: Sequence[Record]) -> str:
    """HPatches' noise, and one misalignment at a time."""
    moved = (functools.partial(misaligned, kind=a, amount=b) for a, b in AMOUNTS.values())
    values = (noisy, *moved)
    rows = [
        [name, *(cell(mean_of(each, value)) for value in values)]
        for name, each in by_row(heads).items()
    ]
    return table(("Head", "Misaligned", *AMOUNTS), rows)


def longer_table(records: Sequence[Record]) -> str:
    """Longer trainings, and those on all photographs together."""
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
    return table(header, rows, text=2)


def ablation_table(records: Sequence[Record]) -> str:
    """The values of every question beside its default."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["group"], []).append(record)
    score = functools.partial(noisy, validation=True)
    usual = mean_of(groups.pop(DEFAULT), score)
    rows = [["(all defaults)", "", cell(usual, 2), ""]]
    for group, own in groups.items():
        for place, (value, each) in enumerate(by_row(own).items()):
            found = mean_of(each, score)
            if found and usual:
                change = found.mean - usual.mean
                text = f"{100 * change:+.2f}".replace("-", "−")
                if abs(change) > (pooled_std(found, usual) or math.inf):
                    text = f"**{text}**"
                question = "" if place else f"{group} ({DEFAULTS[group]})"
                rows.append([question, value, cell(found, 2), text])
    return table(("Setting (default)", "Value", "Matching", "Change"), rows, text=2)


def trials_table(*experiments: Sequence[Record]) -> str:
    """Single trainings, in two columns."""
    trials = (trial for records in experiments for trial in by_row(records).items())
    found = [(name, cell(mean_of(each, noisy))) for name, each in trials]
    half = -(-len(found) // 2)
    pairs = zip(found[:half], [*found[half:], *[("", "")] * half], strict=False)
    return table(("Training", "mAP", "Training ", "mAP "), [[*a, *b] for a, b in pairs])


def cost_table(records: Mapping[str, Sequence[Record]]) -> str:
    """Time of all trainings, by experiment."""
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
    return table((*header, "Pairs/s"), rows)


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
    matplotlib, figures = require("matplotlib", "figures"), require("matplotlib.figure", "figures")
    rows = by_row(heads)
    with matplotlib.rc_context({"svg.hashsalt": "kjax", "svg.fonttype": "none", "font.size": 9}):
        figure = figures.Figure(figsize=(9, 3.1), layout="constrained")
        axes = figure.subplots(1, len(AXES))
        for axis, (kind, (label, factor)) in zip(axes, AXES.items(), strict=True):
            for name, colour in zip(CURVES, COLOURS, strict=True):
                amounts = rows[name][0]["result"]["misaligned"][0]["by_amount"][kind]
                value = functools.partial(misaligned, kind=kind)
                each = (functools.partial(value, amount=amount) for amount in amounts)
                found = [mean_of(rows[name], one) for one in each]
                x = [factor * float(amount) for amount in amounts]
                axis.plot(x, [100 * one.mean for one in found if one], color=colour, label=name)
            axis.set(xlabel=label, ylim=(0, None), title=kind.capitalize())
        axes[0].set_ylabel("matching mAP, %")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=7)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()
