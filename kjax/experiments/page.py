"""A page of results: every table and figure that the records tell, as Markdown with SVG beside."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kjax.errors import InputError
from kjax.eval.report.markdown import FIGURES, escaped
from kjax.eval.report.phrases import count, joined, plural, slugged
from kjax.experiments.figures import bar_chart, jitter_curves
from kjax.experiments.phototour_tables import REFERENCE, phototour_table, published_comparison
from kjax.experiments.records import Record
from kjax.experiments.table_rows import Model, askew, jittered, models_of, on_hpatches, verified
from kjax.experiments.tables import (
    ablation_table,
    cost_table,
    hpatches_table,
    misaligned_table,
    noisy_table,
)
from kjax.experiments.trainings import DEFAULT
from kjax.files.atomic import write_text

PAGE = "results.md"
TITLES = {
    "heads": "Heads",
    "long": "Heads, trained longer",
    "final": "Models trained on all sets",
    "recipes": "Ways of training",
    "photometry": "Changes of grey values in training",
    "rivals": "Rivals",
}


def write_page(
    records: Sequence[Record],
    folder: str | Path,
    *,
    title: str = "Results",
    defaults: Mapping[str, str] | None = None,
) -> None:
    """Writes `results.md` and `figures/*.svg`; the same records give the same files.

    Args:
        records: of any experiments. Rivals are shown beside every other experiment.
        folder: made if it is not there.
        title: of the page.
        defaults: of ablations, by question: the value to mark as the default.

    Raises:
        InputError: there are no records, matplotlib is missing, or the folder cannot be written to.
    """
    if not records:
        raise InputError("there are no records to show: run some experiments first")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        parts = [f"# {escaped(title)}", _software(records)]
        for experiment in _experiments(records):
            parts += _experiment(records, experiment, folder)
        parts += _ablations(records, defaults or {})
        costs = cost_table(records)
        parts += ["## Cost", costs] if costs else []
        write_text(folder / PAGE, "\n\n".join(parts) + "\n")
    except OSError as error:
        raise InputError(
            f"cannot write results to {folder} ({error.strerror or error}): "
            "free some space or choose another folder"
        ) from error


def _experiments(records: Sequence[Record]) -> list[str]:
    """Names of experiments other than ablations; rivals alone only if nothing else is there."""
    names = list(dict.fromkeys(record.experiment for record in records if not record.group))
    trained = [name for name in names if any(_of(records, name))]
    return trained or names[:1]


def _of(records: Iterable[Record], experiment: str) -> list[Record]:
    """The trainings of an experiment."""
    return [one for one in records if one.experiment == experiment and one.train and not one.group]


def _experiment(records: Sequence[Record], experiment: str, folder: Path) -> list[str]:
    """A section: its trainings beside the rivals."""
    own = _of(records, experiment)
    shown = own + [record for record in records if not record.train]
    # Rivals are there to compare with: what no model of ours was tested on is left out.
    tested = own or shown
    parts = [
        f"## {escaped(TITLES.get(experiment, experiment))}",
        _setup_line(own),
        *_settings_line(own, "They all"),
    ]
    if verified(tested):
        tables = [phototour_table(shown), published_comparison(shown)]
        parts += _under("Verification of pairs", tables)
    for split, rule in _benchmarks(tested):
        name = f"{slugged(experiment)}-hpatches-{slugged(split)}-{rule}"
        parts += _under(
            f"HPatches: {split}, {rule} rules",
            [hpatches_table(shown, split, rule), *_bar_charts(shown, split, rule, folder, name)],
        )
    tables = [noisy_table(shown, name) for name in _noisy_sets(tested)]
    figure = _jitter(shown, folder, f"{slugged(experiment)}-jitter")
    return parts + _under("Misaligned patches", [*tables, misaligned_table(shown), figure])


def _under(heading: str, parts: Sequence[str]) -> list[str]:
    """The parts that are there, under their heading."""
    there = [part for part in parts if part]
    return [f"### {escaped(heading)}", *there] if there else []


def _benchmarks(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Splits and rules that there are figures of, in the order met; Python's rules first."""
    scores = [scores for record in records for scores in record.result.hpatches]
    found = dict.fromkeys((one.split, one.protocol) for one in scores)
    return sorted(found, key=lambda key: key[1] != "python")


def _noisy_sets(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(s.test for one in records for s in askew(one) if s.by_level))


def _bar_charts(
    records: Sequence[Record], split: str, rule: str, folder: Path, name: str
) -> list[str]:
    """The paper's two charts: our own models by size, and all descriptors by their score."""
    models = models_of(records, lambda record: on_hpatches(record, split, rule))
    own = sorted((one for one in models if one.trained), key=lambda one: one.parameters or 0)
    means = _mean_words(own)
    parts = []
    if len(own) > 1:
        path = folder / FIGURES / f"{name}-heads.svg"
        bar_chart(records, split, rule, [one.name for one in own], path)
        parts.append(
            _picture(
                path,
                f"Our models on HPatches, {split}, {rule} rules, the one with the fewest "
                f"parameters on top{means}. Marks: the levels.",
            )
        )
    if len(own) < len(models) > 1:
        path = folder / FIGURES / f"{name}-comparison.svg"
        bar_chart(records, split, rule, [one.name for one in models], path, sort=True)
        parts.append(
            _picture(
                path,
                f"All descriptors on HPatches, {split}, {rule} rules, the best on top{means}. "
                "Marks: the levels; striped: hand-crafted.",
            )
        )
    return parts


def _jitter(records: Sequence[Record], folder: Path, name: str) -> str:
    models = jittered(records)
    if not models:
        return ""
    path = folder / FIGURES / f"{name}.svg"
    jitter_curves(records, path, _few(models))
    own = [one for one in models if one.trained]
    return _picture(
        path,
        "Matching when the second patch is moved, turned or scaled by a known amount"
        f"{_mean_words(own)}. Bands: ± the standard deviation over seeds.",
    )


def _few(models: Sequence[Model]) -> list[str]:
    """Rows whose curves can be told apart: of each head the largest, and the rival to beat."""
    heads: dict[str, Model] = {}
    for model in models:
        head = model.name.split(" s=")[0]
        if model.trained and (model.parameters or 0) >= (heads.get(head, model).parameters or 0):
            heads[head] = model
    rivals = [one for one in models if not one.trained]
    reference = [one for one in rivals if one.name.lower() == REFERENCE.lower()]
    return [one.name for one in [*heads.values(), *(reference if heads else rivals)]]


def _mean_words(models: Sequence[Model]) -> str:
    """What was averaged, if anything was."""
    records = [record for model in models for record in model.records]
    sets, seeds = ({one.train_label for one in records}, {one.seed for one in records})
    parts = [
        f"{len(each)} {name}"
        for each, name in ((sets, "training sets"), (seeds, "seeds"))
        if len(each) > 1
    ]
    return f"; means over {joined(parts)}" if parts else ""


def _picture(path: Path, caption: str) -> str:
    """A figure; its first clause is also for those who do not see it."""
    alt = caption.split(", the ")[0].split(";")[0].rstrip(".")
    return f"![{escaped(alt)}]({FIGURES}/{path.name})\n\n{escaped(caption)}"


def _ablations(records: Sequence[Record], defaults: Mapping[str, str]) -> list[str]:
    tried = [record for record in records if record.group]
    groups = [name for name in dict.fromkeys(one.group for one in tried) if name != DEFAULT]
    if not groups:
        return []
    usual = [record for record in tried if record.group == DEFAULT]
    settings = _settings_line(usual or tried, "Unless a table says otherwise, they")
    parts = ["## Ablations", _setup_line(tried), *settings]
    for group in groups:
        parts += _under(group, [ablation_table(records, group, defaults.get(group))])
    return parts


def _setup_line(records: Sequence[Record]) -> str:
    """How the trainings of a section were done: seeds, sets, length, hardware."""
    if not records:
        return "Nothing was trained."
    seeds = sorted({one.seed for one in records if one.seed is not None})
    sets = dict.fromkeys(one.train_label for one in records)
    pairs = sorted({one.pairs for one in records})
    hardware = dict.fromkeys(one.hardware for one in records)
    length = count(pairs[0]) + (f" to {count(pairs[-1])}" if len(pairs) > 1 else "")
    parts = [
        f"{len(records)} {plural('training', len(records))}",
        f"{plural('seed', len(seeds))} {', '.join(map(str, seeds))}",
        f"trained on {'; '.join(sets)}",
        f"{length} pairs each",
        ", ".join(hardware),
    ]
    return escaped(" · ".join(parts))


def _settings_line(records: Sequence[Record], subject: str) -> list[str]:
    shared = _shared_settings(records) if records else {}
    settings = ", ".join(f"`{name}={value}`" for name, value in shared.items())
    return [f"{subject} differ from `configs/base.py` in {settings}."] if shared else []


def _shared_settings(records: Sequence[Record]) -> dict[str, Any]:
    """Fields of the config that all records have with the same value."""
    first, *others = [one.config for one in records]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _software(records: Sequence[Record]) -> str:
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for name, version in record.versions.items():
            found.setdefault(name, {})[version] = None
    return escaped(" · ".join(f"{name} {', '.join(each)}" for name, each in found.items()))
