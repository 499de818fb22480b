"""The report as a whole: its sections and what is in each. One without data is left out."""

from collections.abc import Iterator

from kjax.eval.report import hpatches_charts, hpatches_tables, phototour_tables, verification_charts
from kjax.eval.report import page_parts as parts
from kjax.eval.report.hpatches_tables import HPatchesSetting, Scored, scoreboard
from kjax.eval.report.phototour_settings import Arrangement, arrange
from kjax.eval.report.phrases import slugged
from kjax.eval.report.published import PAPER_SETS
from kjax.eval.report.summary import headlines, warnings_of
from kjax.eval.report.table_cells import NAME, SIZES, result_row, size_cells
from kjax.eval.report.training_charts import training_charts
from kjax.eval.results import Evaluation, HardPairs, Illustrations


def compose(evaluation: Evaluation, illustrations: Illustrations) -> parts.Document:
    """The sections of a report, in order."""
    sections = (
        parts.Section("summary", "Summary", list(_summary(evaluation))),
        parts.Section(
            "verification", _verification_title(evaluation), list(_phototour(evaluation))
        ),
        parts.Section("hpatches", "HPatches", list(_hpatches(evaluation))),
        parts.Section("hardest-errors", "Hardest errors", list(_hard_pairs(illustrations))),
        parts.Section("similarity", "Similarity maps", list(_similarity(illustrations))),
        parts.Section("training", "Training", list(_training(evaluation, illustrations))),
        parts.Section("descriptors", "Descriptors", list(_descriptors(evaluation))),
        parts.Section("missing", "Missing", list(_missing(evaluation))),
    )
    return parts.Document(
        evaluation.title,
        evaluation.created.replace("T", " ").replace("Z", " UTC").replace("+00:00", " UTC"),
        evaluation.command,
        evaluation.versions,
        [section for section in sections if section.blocks],
    )


def _summary(evaluation: Evaluation) -> Iterator[parts.Block]:
    if warnings := warnings_of(evaluation):
        yield parts.Warnings(warnings)
    if sentences := headlines(evaluation):
        yield parts.Items(sentences)
    if not evaluation.descriptors:
        yield parts.Paragraph("No descriptor was evaluated.")


def _verification_title(evaluation: Evaluation) -> str:
    """PhotoTourism by its name only if that is what was tested on: any set has its format."""
    tests = {scores.test.lower() for one in evaluation.descriptors for scores in one.phototour}
    return "Verification of pairs" if tests.isdisjoint(PAPER_SETS) else "PhotoTourism"


def _phototour(evaluation: Evaluation) -> Iterator[parts.Block]:
    arrangements = arrange(evaluation.descriptors)
    for arrangement in arrangements:
        yield phototour_tables.fpr_table(arrangement)
    # Curves and distances are the same under every rule.
    for arrangement in arrangements[:1]:
        yield from _verification_charts(arrangement, evaluation)
    for arrangement in arrangements:
        yield parts.Fold("Areas under the curves", [phototour_tables.areas_table(arrangement)])


def _verification_charts(arrangement: Arrangement, evaluation: Evaluation) -> Iterator[parts.Block]:
    look = verification_charts.looks(evaluation)
    for charts, title in (
        (verification_charts.roc_charts(arrangement, look), "ROC"),
        (verification_charts.precision_recall_charts(arrangement, look), "Precision and recall"),
    ):
        if charts.panels:
            yield parts.Subheading(title)
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
            yield parts.Subheading("Distances of pairs")
            yield histograms
        else:
            yield parts.Fold(f"Distances of pairs, {label}", [histograms])


def _hpatches(evaluation: Evaluation) -> Iterator[parts.Block]:
    board = scoreboard(evaluation.descriptors)
    shown = set()
    for benchmark, scored in board.items():
        tables = _hpatches_tables(benchmark, scored)
        if benchmark.protocol in shown:
            yield parts.Fold(f"Tables of {benchmark.label}", tables)
            continue
        shown.add(benchmark.protocol)
        yield parts.Subheading(benchmark.label.capitalize())
        yield tables[0]
        yield from _hpatches_charts(benchmark, scored)
        yield parts.Fold("By level, pool and sequence", tables[1:])


def _hpatches_charts(benchmark: HPatchesSetting, scored: list[Scored]) -> Iterator[parts.Charts]:
    yield hpatches_charts.comparison_charts(benchmark, scored)
    if (variants := hpatches_charts.variants_charts(benchmark, scored)) is not None:
        yield variants


def _hpatches_tables(benchmark: HPatchesSetting, scored: list[Scored]) -> list[parts.Table]:
    tables = (
        hpatches_tables.headline_table(benchmark, scored),
        hpatches_tables.levels_table(benchmark, scored),
        hpatches_tables.auc_table(benchmark, scored),
        hpatches_tables.pool_table(benchmark, scored),
        hpatches_tables.sequences_table(benchmark, scored),
    )
    return [table for table in tables if table.rows and len(table.columns) > 1]


def _hard_pairs(illustrations: Illustrations) -> Iterator[parts.Block]:
    shown = [pairs for pairs in illustrations.hard_pairs if len(pairs.patches)]
    if shown:
        yield parts.Paragraph(
            "The worst errors of each descriptor, worst first, with their distances. Some are "
            "errors of the labels: a look at them is worth more than their number."
        )
    yield from (
        parts.PatchPairs(
            f"errors-{place}-{slugged(pairs.descriptor)}", _pairs_caption(pairs), pairs
        )
        for place, pairs in enumerate(shown)
    )


def _pairs_caption(pairs: HardPairs) -> str:
    kind = (
        "matching pairs that it holds furthest apart"
        if pairs.matching
        else "non-matching pairs that it holds closest together"
    )
    return f"{pairs.descriptor} on {pairs.test}: {kind}"


def _similarity(illustrations: Illustrations) -> Iterator[parts.Block]:
    if illustrations.similarity:
        yield parts.Paragraph(
            "For a position p of one patch, its similarity to all positions of another, scaled to "
            "0…1 with red for the largest. The red box is the receptive field of p."
        )
    for place, figure in enumerate(illustrations.similarity):
        yield parts.Picture(
            f"similarity-{place}-{slugged(figure.descriptor)}",
            f"Similarity maps of {figure.descriptor}",
            f"Similarity maps of {figure.descriptor}: one row per chosen position.",
            figure.png,
        )


def _training(evaluation: Evaluation, illustrations: Illustrations) -> Iterator[parts.Block]:
    charts = training_charts(illustrations.training, verification_charts.looks(evaluation))
    if charts is not None:
        yield charts


def _descriptors(evaluation: Evaluation) -> Iterator[parts.Block]:
    rows = [
        result_row(
            one, [*size_cells(one), parts.TableCell(one.distance), parts.TableCell(one.source)]
        )
        for one in evaluation.descriptors
        if one.missing is None
    ]
    if rows:
        words = [parts.Column(name, numeric=False) for name in ("Distance", "Source")]
        caption = "What was compared, and where it came from."
        yield parts.Table(caption, [NAME, *SIZES, *words], rows)


def _missing(evaluation: Evaluation) -> Iterator[parts.Block]:
    rows = [
        parts.TableRow([parts.TableCell(text) for text in (one.name, one.missing, one.source)])
        for one in evaluation.descriptors
        if one.missing is not None
    ]
    if rows:
        columns = [NAME, *(parts.Column(name, numeric=False) for name in ("Reason", "Source"))]
        yield parts.Table("Descriptors that were asked for but could not be had.", columns, rows)
