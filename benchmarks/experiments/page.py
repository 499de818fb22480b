"""A page of results: every table and figure that the records tell, as Markdown with SVG beside."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.model_results import model_results
from experiments.records import Record
from experiments.tables import ablation_table, cost_table
from experiments.trainings import DEFAULT
from kjax.counts import counted, plural
from kjax.errors import InputError
from kjax.eval.report import hpatches_charts, hpatches_tables, misalignment, phototour_tables
from kjax.eval.report.markdown import to_markdown
from kjax.eval.report.page_parts import Block, Charts, Document, Paragraph, Section, Subheading
from kjax.eval.report.phototour_settings import arrange
from kjax.eval.report.phrases import count, joined, slugged
from kjax.eval.report.write import write_pages
from kjax.eval.results import DescriptorResult

PAGE = "results.md"
TITLES = {
    "heads": "Heads",
    "long": "Heads, trained longer",
    "final": "Models trained on all sets",
    "recipes": "Ways of training",
    "light": "Light models, and what a teacher adds",
    "open": "Ways of training on open photographs",
    "photometry": "Changes of grey values in training",
    "rivals": "Rivals",
}


def write_page(
    records: Sequence[Record], folder: str | Path, *, defaults: Mapping[str, str] | None = None
) -> None:
    """Writes `results.md` and `figures/*.svg`; the same records give the same files.

    Args:
        records: of any experiments. Rivals are shown beside every other experiment.
        folder: made if it is not there.
        defaults: of ablations, by question: the value to mark as the default.

    Raises:
        InputError: there are no records, matplotlib is missing, or the folder cannot be written to.
    """
    written = to_markdown(compose_page(records, defaults or {}), charts="svg")
    write_pages(Path(folder), written, PAGE, what="results")


def compose_page(records: Sequence[Record], defaults: Mapping[str, str]) -> Document:
    """The sections: one for each experiment, the ablations, and the cost."""
    if not records:
        raise InputError("there are no records to show: run some experiments first")
    sections = [
        Section(name, TITLES.get(name, name), list(_experiment(records, name)))
        for name in _experiments(records)
    ]
    sections.append(Section("ablations", "Ablations", list(_ablations(records, defaults))))
    costs = cost_table(records)
    sections.append(Section("cost", "Cost", [costs] if costs else []))
    return Document(
        "Results", "", "", _software(records), [section for section in sections if section.blocks]
    )


def _experiments(records: Sequence[Record]) -> list[str]:
    """Names of experiments other than ablations; rivals alone only if nothing else is there."""
    names = list(dict.fromkeys(record.experiment for record in records if not record.group))
    trained = [name for name in names if any(_of(records, name))]
    return trained or names[:1]


def _of(records: Iterable[Record], experiment: str) -> list[Record]:
    """The trainings of an experiment."""
    return [one for one in records if one.experiment == experiment and one.train and not one.group]


def _experiment(records: Sequence[Record], experiment: str) -> Iterator[Block]:
    """A section: its trainings beside the rivals."""
    own = _of(records, experiment)
    rivals = [record for record in records if not record.train]
    yield Paragraph(_setup_line(own))
    yield from _settings(own, "They all")
    shown = _comparable(model_results([*own, *rivals]))
    yield from _verification(shown)
    apart = _comparable(model_results([*own, *rivals], apart=True))
    yield from _hpatches(shown, apart, experiment, _means_of(own))
    yield from _misaligned(shown, experiment, _means_of(own))


def _comparable(results: Sequence[DescriptorResult]) -> list[DescriptorResult]:
    """Rivals are there to compare with: what no model of ours was tested on is left out."""
    own = [one for one in results if one.ours]
    if not own:
        return list(results)
    tests = {scores.test for one in own for scores in one.phototour}
    splits = {(scores.split, scores.protocol) for one in own for scores in one.hpatches}
    return [
        dataclasses.replace(
            one,
            phototour=[scores for scores in one.phototour if scores.test in tests],
            hpatches=[s for s in one.hpatches if (s.split, s.protocol) in splits],
        )
        for one in results
    ]


def _verification(results: Sequence[DescriptorResult]) -> Iterator[Block]:
    for arrangement in arrange(results):
        yield Subheading("Verification of pairs")
        yield phototour_tables.fpr_table(arrangement)
        yield phototour_tables.by_test_table(arrangement)
        if (beside := phototour_tables.paper_table(arrangement)) is not None:
            yield beside


def _hpatches(
    results: Sequence[DescriptorResult],
    apart: Sequence[DescriptorResult],
    experiment: str,
    means: str,
) -> Iterator[Block]:
    by_set = hpatches_tables.scoreboard(apart)
    for benchmark, scored in hpatches_tables.scoreboard(results).items():
        yield Subheading(f"HPatches: {benchmark.split}, {benchmark.protocol} rules")
        yield hpatches_tables.headline_table(benchmark, by_set[benchmark], digits=1)
        if len(by_set[benchmark]) > len(scored):
            yield Paragraph(f"Below{means}.")
        yield hpatches_tables.levels_table(benchmark, scored, digits=1)
        if (variants := hpatches_charts.variants_charts(benchmark, scored)) is not None:
            yield _named(variants, experiment)
        if len(scored) > 1 and not all(one.result.ours for one in scored):
            yield _named(hpatches_charts.comparison_charts(benchmark, scored), experiment)


def _misaligned(
    results: Sequence[DescriptorResult], experiment: str, means: str
) -> Iterator[Block]:
    blocks = [
        *misalignment.noise_tables(results, means),
        misalignment.amounts_table(results, means),
        misalignment.amount_charts(_few(results), means),
    ]
    found = [block for block in blocks if block is not None]
    if found:
        yield Subheading("Misaligned patches")
    yield from (_named(one, experiment) if isinstance(one, Charts) else one for one in found)


def _named(charts: Charts, experiment: str) -> Charts:
    """Charts whose file is the experiment's own."""
    return dataclasses.replace(charts, slug=f"{slugged(experiment)}-{charts.slug}")


def _few(results: Sequence[DescriptorResult]) -> list[DescriptorResult]:
    """Those whose curves can be told apart: of each head the largest, and the rival to beat."""
    heads: dict[str, DescriptorResult] = {}
    for one in results:
        head = one.name.split(" s=")[0]
        if one.ours and (one.parameters or 0) >= (heads.get(head, one).parameters or 0):
            heads[head] = one
    rivals = [one for one in results if not one.ours]
    reference = phototour_tables.REFERENCE.lower()
    return [*heads.values(), *(one for one in rivals if not heads or one.name.lower() == reference)]


def _means_of(records: Sequence[Record]) -> str:
    """What was averaged for some model, if anything was."""
    models: dict[str, list[Record]] = {}
    for record in records:
        models.setdefault(record.row, []).append(record)
    sets = max((len({one.train_label for one in each}) for each in models.values()), default=0)
    seeds = max((len({one.seed for one in each}) for each in models.values()), default=0)
    numbers = {"training sets": sets, "seeds": seeds}
    parts = [f"{number} {name}" for name, number in numbers.items() if number > 1]
    return f", means over {joined(parts)}" if parts else ""


def _ablations(records: Sequence[Record], defaults: Mapping[str, str]) -> Iterator[Block]:
    tried = [record for record in records if record.group]
    groups = [name for name in dict.fromkeys(one.group for one in tried) if name != DEFAULT]
    if not groups:
        return
    usual = [record for record in tried if record.group == DEFAULT]
    yield Paragraph(_setup_line(tried))
    yield from _settings(usual or tried, "Unless a table says otherwise, they")
    for group in groups:
        yield Subheading(group)
        yield ablation_table(records, group, defaults.get(group))


def _setup_line(records: Sequence[Record]) -> str:
    """How the trainings of a section were done: seeds, sets, length, hardware."""
    if not records:
        return "Nothing was trained."
    seeds = sorted({one.seed for one in records if one.seed is not None})
    pairs = sorted({one.pairs for one in records})
    length = count(pairs[0]) + (f" to {count(pairs[-1])}" if len(pairs) > 1 else "")
    parts = [
        counted(len(records), "training"),
        f"{plural('seed', len(seeds))} {', '.join(map(str, seeds))}",
        f"trained on {'; '.join(dict.fromkeys(one.train_label for one in records))}",
        f"{length} pairs each",
        ", ".join(dict.fromkeys(one.hardware for one in records)),
    ]
    return " · ".join(parts)


def _settings(records: Sequence[Record], subject: str) -> Iterator[Paragraph]:
    shared = _shared_settings(records) if records else {}
    settings = ", ".join(f"`{name}={value}`" for name, value in shared.items())
    if shared:
        yield Paragraph(f"{subject} differ from `configs/base.py` in {settings}.")


def _shared_settings(records: Sequence[Record]) -> dict[str, Any]:
    """Fields of the config that all records have with the same value."""
    first, *others = [one.config for one in records]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _software(records: Sequence[Record]) -> dict[str, str]:
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for name, version in record.versions.items():
            found.setdefault(name, {})[version] = None
    return {name: ", ".join(each) for name, each in found.items()}
