"""Reports: what the tables say, and that every kind of evaluation makes valid files."""

import dataclasses
import math
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from sample_evaluation import (
    SETS,
    descriptor,
    evaluation,
    hpatches_scores,
    illustrations,
    paper_like_evaluation,
    phototour_scores,
)

from kjax.errors import InputError
from kjax.eval.report.document import compose
from kjax.eval.report.hpatches_tables import headline_table, levels_table, scoreboard
from kjax.eval.report.html import to_html
from kjax.eval.report.markdown import escaped, to_markdown
from kjax.eval.report.page_parts import Document, Paragraph, Section
from kjax.eval.report.patch_pictures import montage_png, pair_png
from kjax.eval.report.phototour_settings import arrange
from kjax.eval.report.phototour_tables import fpr_table, paper_difference
from kjax.eval.report.published import PAPER_PHOTOTOUR, is_hand_crafted, paper_counterpart
from kjax.eval.report.summary import headlines
from kjax.eval.report.theme import TONES
from kjax.eval.report.verification_charts import distance_at_recall
from kjax.eval.report.write import write_report
from kjax.eval.results import Curve, HardPairs, Histogram, Illustrations

NASTY = "<script>alert('x')</script> & \"$a$\" _b_ | `c` *d* [e](f) 漢 \x00\n#"
VOID = {"meta", "link", "img", "br"}


def rows_of(table):
    """Texts by row name and column heading."""
    heads = [column.one_line for column in table.columns]
    return {
        row.cells[0].text: dict(zip(heads, (cell.text for cell in row.cells), strict=True))
        for row in table.rows
    }


class Checker(HTMLParser):
    """Gathers what a page contains, and asserts that its tags nest."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.tags, self.text, self.links = [], [], [], "", []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if self.open and self.open[-1] not in ("script", "style") else ""


def check_markdown_tables(text):
    """Every row of a table has as many cells as its rule."""
    tables = re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE)
    for table in tables:
        head, rule, *rows = (line.strip() for line in table.strip().split("\n"))
        cells = [len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, *rows)]
        assert set(re.split(r"[\s|]+", rule.strip("| "))) <= {"---", "---:"}
        assert rows
        assert len(set(cells)) == 1, table
    return len(tables)


def check_report(folder):
    """What holds for every report; returns the page."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    text = (folder / "report.md").read_text(encoding="utf-8")
    checker = Checker(page)
    assert len(checker.ids) == len(set(checker.ids))
    assert all(link.startswith(("data:", "#")) for link in checker.links), "needs another file"
    inner = {link[1:] for link in checker.links if link.startswith("#")}
    assert inner <= set(checker.ids)
    for words in (checker.text, text):
        assert not re.search(r"\b(nan|inf|None)\b", words, flags=re.IGNORECASE)
    pictures = re.findall(r"\]\((figures/[^)]*)\)", text)
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert not list(folder.rglob(".*"))
    check_markdown_tables(text)
    return checker


def test_paper_layout():
    """Columns and rows as in the paper's table, its own rows beside, and the difference."""
    (arrangement,) = arrange(paper_like_evaluation().descriptors)
    table = fpr_table(arrangement)
    rows = rows_of(table)
    assert [c.one_line for c in table.columns] == [
        "Descriptor", "Parameters", "Mean", "vs. paper",
        "notredame → liberty", "yosemite → liberty", "liberty → notredame",
        "yosemite → notredame", "liberty → yosemite", "notredame → yosemite",
    ]  # fmt: skip
    star = rows["combined_star s=2"]
    assert star["notredame → liberty"] == "1.53 ± 0.07"
    assert star["Mean"] == "1.40"
    assert star["vs. paper"] == "+0.04"
    assert rows["⋆ψᶜ, s=2 (paper)"]["Mean"] == "1.36 ± 0.01"
    assert rows["HardNet+, as reported (paper)"]["yosemite → liberty"] == "2.51"
    # Untrained: one figure per test set. Trained on one set: its columns, and a mean over them.
    assert rows["RootSIFT"]["notredame → liberty"] == rows["RootSIFT"]["yosemite → liberty"]
    assert rows["TFeat"]["liberty → notredame"] == "3.10"
    assert rows["TFeat"]["yosemite → notredame"] == "–"
    mean = next(row for row in table.rows if row.cells[0].text == "TFeat").cells[2]
    assert (mean.text, mean.detail) == ("5.60", "over 2 of 6")


def test_best_of_each_column_is_marked_among_those_measured():
    (arrangement,) = arrange(paper_like_evaluation().descriptors)
    marked = {
        (row.cells[0].text, place)
        for row in fpr_table(arrangement).rows
        for place, cell in enumerate(row.cells)
        if cell.best
    }
    assert marked == {("combined_star s=2", place) for place in (2, 4, 5, 6, 7, 8, 9)}


def test_a_row_per_training_set_beside_the_papers_figures():
    results = evaluation(
        descriptor(
            "hardnet", ours=True, parameters=1_334_560,
            phototour=[phototour_scores(0.0049, "notredame", "liberty"),
                       phototour_scores(0.0211, "yosemite", "liberty"),
                       phototour_scores(0.001, "liberty", "liberty")],
        ),
        descriptor("ORB", phototour=[phototour_scores(0.4, test) for test in SETS]),
    )  # fmt: skip
    (arrangement,) = arrange(results.descriptors)
    rows = rows_of(fpr_table(arrangement))
    assert rows["hardnet"]["Trained on"] == "liberty"
    assert rows["HardNet+ (paper)"]["notredame"] == "0.48 ± 0.01"
    # On its own training set it is shown but does not count.
    assert rows["hardnet"]["Mean"] == "1.30"
    assert rows["hardnet"]["vs. paper"] == "−0.01"
    assert paper_difference(arrangement, results.descriptors[0]) == pytest.approx(-0.00015)


def test_no_paper_rows_for_other_sets():
    results = evaluation(
        descriptor("hardnet", ours=True, parameters=1_334_560,
                   phototour=[phototour_scores(0.05, "stereo", "liberty")]),
        descriptor("SIFT", phototour=[phototour_scores(0.06, "stereo")]),
    )  # fmt: skip
    table = fpr_table(arrange(results.descriptors)[0])
    assert [row.cells[0].text for row in table.rows] == ["hardnet", "SIFT"]
    assert [c.title for c in table.columns] == ["Descriptor", "Parameters", "Trained on", "stereo"]
    assert "Paper:" not in " ".join(table.notes)


def test_any_of_several_training_sets_does_not_count():
    several = [phototour_scores(rate, test, "stereo+castle")
               for test, rate in (("castle", 0.01), ("garden", 0.05))]  # fmt: skip
    (arrangement,) = arrange([descriptor("a", ours=True, phototour=several)])
    assert rows_of(fpr_table(arrangement))["a"]["Mean"] == "5.00"


def test_rules_do_not_mix():
    both = [phototour_scores(0.05), dataclasses.replace(phototour_scores(0.06), rule="hynet")]
    arrangements = arrange([descriptor("a", phototour=both)])
    assert [one.rule for one in arrangements] == ["hardnet", "hynet"]
    assert [rows_of(fpr_table(one))["a"]["stereo"] for one in arrangements] == ["5.00", "6.00"]


def test_published_rows_are_consistent():
    """The paper's means are those of its six figures, as far as two decimals tell."""
    for row in PAPER_PHOTOTOUR:
        assert len(row.fpr95) == 6
        assert np.mean(list(row.fpr95.values())) == pytest.approx(row.mean, abs=1.01e-4)


@pytest.mark.parametrize(
    ("name", "ours", "parameters", "counterpart"),
    [
        ("hardnet", True, 1_334_560, "HardNet+"),
        ("combined_star s=2", True, 1_391_296, "⋆ψᶜ, s=2"),
        ("combined_star s=2 (64)", True, 1_391_296, None),
        ("combined_star", True, 867_008, "⋆ψᶜ, s=1"),
        ("HardNet", False, 1_334_560, None),
        ("xy s=1", True, 433_568, None),
    ],
)
def test_counterparts_in_the_paper(name, ours, parameters, counterpart):
    found = paper_counterpart(descriptor(name, ours=ours, parameters=parameters))
    assert (found and found.name) == counterpart


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [("RootSIFT", None, True), ("ORB (OpenCV)", None, True), ("Root-SIFT", None, True),
     ("TFeat", 599_808, False), ("HardNet", None, False), ("MKD concat", 30_000, True),
     ("BBoost", None, False)],
)  # fmt: skip
def test_hand_crafted_ones_are_known_by_name(name, parameters, expected):
    assert is_hand_crafted(descriptor(name, parameters=parameters)) == expected


def test_hpatches_tables_name_protocol_and_split():
    board = scoreboard(paper_like_evaluation().descriptors)
    assert [(key.protocol, key.split) for key in board] == [
        ("python", "abc"), ("python", "a"), ("matlab", "a"),
    ]  # fmt: skip
    for benchmark, scored in board.items():
        for make in (headline_table, levels_table):
            caption = make(benchmark, scored).caption
            assert f"protocol {benchmark.protocol}" in caption
            assert ("splits a, b, c" if benchmark.split == "abc" else "split a") in caption
    rows = rows_of(levels_table(*next(iter(board.items()))))
    assert rows["combined_star s=2"]["Retrieval, tough"] == "56.00"
    assert rows["combined_star s=2"]["Verification, easy intra"] == "80.60"


def test_spread_over_seeds_stands_beside_the_headline():
    scores = hpatches_scores(0.5, "python", "a")
    several = dataclasses.replace(scores, seeds=3, map_std={"matching": 0.0123})
    board = scoreboard([descriptor("a", hpatches=[several])])
    table = headline_table(*next(iter(board.items())))
    assert rows_of(table)["a"]["Matching"] == "35.00 ± 1.23"
    assert rows_of(table)["a"]["Retrieval"] == "50.00"
    assert any("over seeds" in note for note in table.notes)


def test_published_hpatches_rows_stand_only_beside_their_own_protocol_and_split():
    for protocol, split, shown in (("python", "full", True), ("matlab", "full", False)):
        scores = hpatches_scores(0.5, protocol, split)
        board = scoreboard([descriptor("a", hpatches=[scores])])
        rows = rows_of(headline_table(*next(iter(board.items()))))
        assert ("HardNet+ (published)" in rows) == shown


def test_headlines_state_the_figures():
    text = " ".join(headlines(paper_like_evaluation()))
    assert "8 descriptors compared: 5 of kjax and 3 rivals; 1 more could not be had." in text
    assert "combined_star s=2 (1.40 %), among the rivals RootSIFT (27.00 %)" in text
    assert "combined_star s=2 is 0.04 percentage points above the paper's mean" in text
    assert "protocol python, mean of splits a, b, c: combined_star s=2 at verification" in text


@pytest.mark.parametrize(("rival", "verdict"), [(0.051, "overlap"), (0.5, "do not overlap")])
def test_headlines_say_whether_few_pairs_can_tell(rival, verdict):
    sentences = headlines(
        evaluation(
            descriptor("a", ours=True, phototour=[phototour_scores(0.05)]),
            descriptor("b", phototour=[phototour_scores(rival)]),
        )
    )
    assert sentences[-1].endswith(f"confidence intervals {verdict}.")


def test_distance_at_recall_by_hand():
    histogram = Histogram([0.0, 1.0, 2.0], [90, 10], [0, 5])
    assert distance_at_recall(histogram) == pytest.approx(1.5)
    assert distance_at_recall(Histogram([0.0, 1.0], [0], [1])) is None


def test_light_colours_are_distinct():
    """Charts are recoloured by their light colours."""
    assert len({tone.light for tone in TONES.values()}) == len(TONES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a|b", r"a\|b"), ("combined_star", "combined_star"), ("_x_", r"\_x\_"),
     ("<b>", "&lt;b&gt;"), ("*`[", r"\*\`\["), ("two\nlines", "two lines")],
)  # fmt: skip
def test_markdown_escapes(text, expected):
    assert escaped(text) == expected


def test_code_in_a_paragraph():
    paragraph = Paragraph("`a_<b>` differs from _c_")
    document = Document("t", "", "", {}, [Section("s", "S", [paragraph])])
    assert "<p><code>a_&lt;b&gt;</code> differs from _c_</p>" in to_html(document)
    assert "\n`a_<b>` differs from \\_c\\_\n" in to_markdown(document).text


def test_patches_become_pictures(rng):
    from io import BytesIO

    from PIL import Image

    patches = rng.integers(0, 256, (7, 2, 32, 32), np.uint8)
    pair = np.asarray(Image.open(BytesIO(pair_png(patches[0]))))
    assert pair.shape == (64, 132, 2)
    np.testing.assert_array_equal(pair[::2, :64:2, 0], patches[0, 0])
    np.testing.assert_array_equal(pair[::2, 68::2, 0], patches[0, 1])
    assert Image.open(BytesIO(montage_png(patches))).size == (6 * 144 - 12, 2 * 76 - 12)


def test_empty_evaluation(tmp_path):
    write_report(tmp_path / "new" / "folder", evaluation())
    checker = check_report(tmp_path / "new" / "folder")
    assert checker.tags.count("h2") == 1
    assert "No descriptor was evaluated." in checker.text


def test_only_missing_rivals(tmp_path):
    write_report(tmp_path, evaluation(descriptor("MKD", missing="kornia is not installed")))
    checker = check_report(tmp_path)
    assert "kornia is not installed" in checker.text
    assert [section.slug for section in compose(
        evaluation(descriptor("MKD", missing="x")), Illustrations()).sections
    ] == ["summary", "missing"]  # fmt: skip


def test_one_descriptor_without_hpatches(tmp_path):
    one = descriptor("lonely", ours=True, phototour=[phototour_scores(0.05)])
    other = descriptor("SIFT", hpatches=[hpatches_scores(0.4, split="folder")])
    write_report(tmp_path, evaluation(one, other))
    checker = check_report(tmp_path)
    assert {"verification", "hpatches"} <= set(checker.ids)
    assert {"training", "similarity", "missing"}.isdisjoint(checker.ids)
    assert "PhotoTourism" not in checker.text


def test_names_run_nothing_and_break_nothing(tmp_path):
    results = evaluation(
        descriptor(
            NASTY, ours=True, source=NASTY, warnings=[NASTY],
            phototour=[phototour_scores(0.05, NASTY, NASTY + "2")],
            hpatches=[hpatches_scores(0.4, split=NASTY)],
        ),
        descriptor("漢字 _x", missing=NASTY),
    )  # fmt: skip
    results = dataclasses.replace(results, title=NASTY, command=NASTY, versions={NASTY: NASTY})
    patches = np.zeros((1, 2, 8, 8), np.uint8)
    shown = Illustrations(hard_pairs=[HardPairs(NASTY, NASTY, True, patches, np.ones(1))])
    write_report(tmp_path, results, shown)
    checker = check_report(tmp_path)
    assert checker.tags.count("script") == 1
    assert "alert('x')" in checker.text


def test_what_is_not_finite_is_a_dash(tmp_path):
    bad = dataclasses.replace(
        phototour_scores(0.1),
        fpr95=math.nan, auc=math.nan, average_precision=math.nan, fpr95_std=math.nan,
        fpr95_interval=(math.nan, math.nan),
        roc=Curve([0.0, math.nan, 1.0], [0.0, 0.5, 1.0]),
        precision_recall=Curve([math.nan], [math.nan]),
        distances=Histogram([0.0, 1.0], [0], [0]),
    )  # fmt: skip
    poor = dataclasses.replace(
        hpatches_scores(0.4), matching_map=math.nan, retrieval={"e": math.nan}, verification={}
    )
    results = evaluation(descriptor("odd", phototour=[bad], hpatches=[poor]))
    patches = np.zeros((1, 2, 8, 8), np.uint8)
    pairs = HardPairs("odd", "stereo", False, patches, np.full(1, np.nan))
    write_report(tmp_path, results, Illustrations(hard_pairs=[pairs]))
    check_report(tmp_path)


def test_markdown_has_the_tables_of_the_page():
    document = compose(
        dataclasses.replace(
            paper_like_evaluation(),
            descriptors=[
                dataclasses.replace(one, phototour=[], hpatches=one.hpatches[1:2])
                for one in paper_like_evaluation().descriptors[-3:]
            ],
        ),
        Illustrations(),
    )
    written = to_markdown(document)
    assert check_markdown_tables(written.text) == 7
    assert sorted(written.pictures) == ["hpatches-comparison-python-a-generated-seed-42.png"]


def test_without_matplotlib_one_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    results = evaluation(descriptor("a", phototour=[phototour_scores(0.05)]))
    with pytest.raises(InputError, match="pip install matplotlib"):
        write_report(tmp_path, results)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write the report to") as error:
        write_report(tmp_path / "file", evaluation())
    assert "\n" not in str(error.value)


def test_training_alone(tmp_path):
    shown = Illustrations(training=illustrations().training[:1])
    write_report(tmp_path, evaluation(), shown)
    assert "training" in check_report(tmp_path).ids
    # The same figures make the same file.
    again = to_html(compose(evaluation(), shown))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == again
