"""The report as a whole: its sections and what is in each. One without data is left out."""

from collections.abc import Iterator

from kjax.eval.report import hpatches_charts, hpatches_tables, phototour_tables, verification_charts
from kjax.eval.report.hpatches_tables import HPatchesSetting, Scored, scoreboard
from kjax.eval.report.page_parts import (
    Block,
    Charts,
    Column,
    Document,
    Fold,
    Items,
    Paragraph,
    PatchPairs,
    Picture,
    Section,
    Subheading,
    Table,
    TableCell,
    TableRow,
    Warnings,
)
from kjax.eval.report.phototour_settings import Arrangement, arrange
from kjax.eval.report.phrases import NOTHING, slugged
from kjax.eval.report.published import PAPER_SETS
from kjax.eval.report.summary import headlines, warnings_of
from kjax.eval.report.table_cells import count_cell
from kjax.eval.report.training_charts import training_charts
from kjax.eval.results import Evaluation, HardPairs, Illustrations


def compose(evaluation: Evaluation, illustrations: Illustrations) -> Document:
    """The sections of a report, in order."""
    sections = (
        Section("summary", "Summary", list(_summary(evaluation))),
        Section("verification", _verification_title(evaluation), list(_phototour(evaluation))),
        Section("hpatches", "HPatches", list(_hpatches(evaluation))),
        Section("hardest-errors", "Hardest errors", list(_hard_pairs(illustrations))),
        Section("similarity", "Similarity maps", list(_similarity(illustrations))),
        Section("training", "Training", list(_training(evaluation, illustrations))),
        Section("descriptors", "Descriptors", list(_descriptors(evaluation))),
        Section("missing", "Missing", list(_missing(evaluation))),
    )
    return Document(
        evaluation.title,
        evaluation.created.replace("T", " ").replace("Z", " UTC").replace("+00:00", " UTC"),
        evaluation.command,
        evaluation.versions,
        [section for section in sections if section.blocks],
    )


def _summary(evaluation: Evaluation) -> Iterator[Block]:
    if warnings := warnings_of(evaluation):
        yield Warnings(warnings)
    if sentences := headlines(evaluation):
        yield Items(sentences)
    if not evaluation.descriptors:
        yield Paragraph("No descriptor was evaluated.")


def _verification_title(evaluation: Evaluation) -> str:
    """PhotoTourism by its name only if that is what was tested on: any set has its format."""
    tests = {scores.test.lower() for one in evaluation.descriptors for scores in one.phototour}
    return "Verification of pairs" if tests.isdisjoint(PAPER_SETS) else "PhotoTourism"


def _phototour(evaluation: Evaluation) -> Iterator[Block]:
    arrangements = arrange(evaluation.descriptors)
    for arrangement in arrangements:
        yield phototour_tables.fpr_table(arrangement)
    # Curves and distances are the same under every rule.
    for arrangement in arrangements[:1]:
        yield from _verification_charts(arrangement, evaluation)
    for arrangement in arrangements:
        yield Fold("Areas under the curves", [phototour_tables.areas_table(arrangement)])


def _verification_charts(arrangement: Arrangement, evaluation: Evaluation) -> Iterator[Block]:
    look = verification_charts.looks(evaluation)
    for charts, title in (
        (verification_charts.roc_charts(arrangement, look), "ROC"),
        (verification_charts.precision_recall_charts(arrangement, look), "Precision and recall"),
    ):
        if charts.panels:
            yield Subheading(title)
            yield charts
    # One training set stands for all: the pairs are the same, and so, nearly, are the pictures.
    settings = {setting.test: setting for setting in reversed(arrangement.settings)}.values()
    distances = {
        setting.label: found
        for setting in reversed(settings)
        if (found := verification_charts.distance_charts(arrangement, setting)) is not None
    }
    for place, (label, histograms) in enumerate(distances.items()):
        if place == 0:
            yield Subheading("Distances of pairs")
            yield histograms
        else:
            yield Fold(f"Distances of pairs, {label}", [histograms])


def _hpatches(evaluation: Evaluation) -> Iterator[Block]:
    board = scoreboard(evaluation.descriptors)
    shown = set()
    for benchmark, scored in board.items():
        tables = _hpatches_tables(benchmark, scored)
        if benchmark.protocol in shown:
            yield Fold(f"Tables of {benchmark.label}", tables)
            continue
        shown.add(benchmark.protocol)
        yield Subheading(benchmark.label.capitalize())
        yield tables[0]
        yield from _hpatches_charts(benchmark, scored)
        yield Fold("By level, pool and sequence", tables[1:])


def _hpatches_charts(benchmark: HPatchesSetting, scored: list[Scored]) -> Iterator[Charts]:
    yield hpatches_charts.comparison_charts(benchmark, scored)
    if (variants := hpatches_charts.variants_charts(benchmark, scored)) is not None:
        yield variants


def _hpatches_tables(benchmark: HPatchesSetting, scored: list[Scored]) -> list[Table]:
    tables = [
        make(benchmark, scored)
        for make in (
            hpatches_tables.headline_table,
            hpatches_tables.levels_table,
            hpatches_tables.auc_table,
            hpatches_tables.pool_table,
            hpatches_tables.sequences_table,
        )
    ]
    return [table for table in tables if table.rows and len(table.columns) > 1]


def _hard_pairs(illustrations: Illustrations) -> Iterator[Block]:
    shown = [pairs for pairs in illustrations.hard_pairs if len(pairs.patches)]
    if shown:
        yield Paragraph(
            "The worst errors of each descriptor, worst first, with their distances. Some are "
            "errors of the labels: a look at them is worth more than their number."
        )
    yield from (
        PatchPairs(f"errors-{place}-{slugged(pairs.descriptor)}", _pairs_caption(pairs), pairs)
        for place, pairs in enumerate(shown)
    )


def _pairs_caption(pairs: HardPairs) -> str:
    kind = (
        "matching pairs that it holds furthest apart"
        if pairs.matching
        else "non-matching pairs that it holds closest together"
    )
    return f"{pairs.descriptor} on {pairs.test}: {kind}"


def _similarity(illustrations: Illustrations) -> Iterator[Block]:
    if illustrations.similarity:
        yield Paragraph(
            "For a position p of one patch, its similarity to all positions of another, scaled to "
            "0…1 with red for the largest. The red box is the receptive field of p."
        )
    for place, figure in enumerate(illustrations.similarity):
        yield Picture(
            f"similarity-{place}-{slugged(figure.descriptor)}",
            f"Similarity maps of {figure.descriptor}",
            f"Similarity maps of {figure.descriptor}: one row per chosen position.",
            figure.png,
        )


def _training(evaluation: Evaluation, illustrations: Illustrations) -> Iterator[Block]:
    charts = training_charts(illustrations.training, verification_charts.looks(evaluation))
    if charts is not None:
        yield charts


def _descriptors(evaluation: Evaluation) -> Iterator[Block]:
    rows = [
        TableRow(
            [
                TableCell(result.name),
                count_cell(result.dimension),
                count_cell(result.parameters),
                TableCell(result.distance),
                TableCell(result.source),
            ],
            "ours" if result.ours else "rival",
        )
        for result in evaluation.descriptors
        if result.missing is None
    ]
    if rows:
        names = ("Descriptor", "Dimension", "Parameters", "Distance", "Source")
        columns = [Column(name, numeric=name in ("Dimension", "Parameters")) for name in names]
        yield Table("What was compared, and where it came from.", columns, rows)


def _missing(evaluation: Evaluation) -> Iterator[Block]:
    rows = [
        TableRow(
            [TableCell(result.name), TableCell(result.missing), TableCell(result.source or NOTHING)]
        )
        for result in evaluation.descriptors
        if result.missing is not None
    ]
    if rows:
        columns = [Column(name, numeric=False) for name in ("Descriptor", "Reason", "Source")]
        yield Table("Descriptors that were asked for but could not be had.", columns, rows)
