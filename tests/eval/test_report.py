"""Results as JSON, tables and sentences of reports, and valid pages for all evaluations."""

import dataclasses
import json
import math
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import sample_evaluation
from refusals import assert_refused
from sample_evaluation import SETS, descriptor, evaluation, hpatches_scores, phototour_scores

from kjax.eval.report import tables
from kjax.eval.report.charts import distance_at_recall
from kjax.eval.report.page import compose, headlines, write_report
from kjax.eval.report.published import PAPER_PHOTOTOUR, is_hand_crafted, paper_counterpart
from kjax.eval.report.tables import arrange, fpr_table, headline_table, scoreboard
from kjax.eval.results import Curve, Evaluation, HardPairs, Histogram, Illustrations

NASTY = "<script>alert('x')</script> & \"$a$\" _b_ | `c` *d* [e](f) 漢 \x00\n#"
VOID = {"meta", "link", "img", "br"}
PATCHES = np.zeros((1, 2, 8, 8), np.uint8)


def test_results_survive_json():
    odd = descriptor("ψ <b> | “quoted” \\ \n", missing="no: *weights*")
    for results in (sample_evaluation.paper_like_evaluation(), evaluation(), evaluation(odd)):
        text = results.to_json()
        assert Evaluation.from_json(text) == results
        assert json.loads(text) == json.loads(json.dumps(dataclasses.asdict(results)))
        assert "\\u" not in text.replace("\\\\u", ""), "names stay readable"
    for text in ("", "{", '{"title": "only"}', '{"colour": "red"}'):
        assert_refused("not the results of an evaluation", Evaluation.from_json, text)


# Tables


def rows_of(table):
    """Texts by row name and column heading."""
    heads = [", ".join(filter(None, column)) for column in table.columns]
    return {
        cells[0].text: dict(zip(heads, (cell.text for cell in cells), strict=True))
        for _, cells in table.rows
    }


def test_paper_layout():
    (arrangement,) = arrange(sample_evaluation.paper_like_evaluation().descriptors)
    table = fpr_table(arrangement)
    rows = rows_of(table)
    assert list(rows["sum"]) == [
        "Descriptor", "Parameters", "Mean", "vs. paper",
        "Tested on liberty, notredame", "Tested on liberty, yosemite",
        "Tested on notredame, liberty", "Tested on notredame, yosemite",
        "Tested on yosemite, liberty", "Tested on yosemite, notredame",
    ]  # fmt: skip
    star = rows["combined_star s=2"]
    assert star["Tested on liberty, notredame"] == "1.53 ± 0.07"
    assert (star["Mean"], star["vs. paper"]) == ("1.40", "+0.04")
    assert rows["⋆ψᶜ, s=2 (paper)"]["Mean"] == "1.36 ± 0.01"
    assert rows["HardNet+, as reported (paper)"]["Tested on liberty, yosemite"] == "2.51"
    # Untrained: one value per test set. Trained on one set: its columns, and a mean over them.
    sift = rows["RootSIFT"]
    assert sift["Tested on liberty, notredame"] == sift["Tested on liberty, yosemite"]
    assert rows["TFeat"]["Tested on notredame, liberty"] == "3.10"
    assert rows["TFeat"]["Tested on notredame, yosemite"] == "–"
    mean = next(cells for _, cells in table.rows if cells[0].text == "TFeat")[2]
    assert (mean.text, mean.detail) == ("5.60", "over 2 of 6")
    # The best of each column is marked among those measured.
    best = {(cells[0].text, i) for _, cells in table.rows for i, c in enumerate(cells) if c.best}
    assert best == {("combined_star s=2", place) for place in (2, 4, 5, 6, 7, 8, 9)}
    assert table.groups == [("", 4), *((f"Tested on {test}", 2) for test in SETS)]
    assert table.numeric == [False] + 9 * [True]


def hardnet(*scores):
    more = {"source": "hardnet, out/run", "parameters": 1_334_560, "phototour": list(scores)}
    return descriptor("hardnet", ours=True, **more)


def test_a_row_per_training_set_beside_the_papers_figures():
    rates = {"notredame": 0.0049, "yosemite": 0.0211, "liberty": 0.001}
    ours = hardnet(*(phototour_scores(rate, test, "liberty") for test, rate in rates.items()))
    orb = descriptor("ORB", phototour=[phototour_scores(0.4, test) for test in SETS])
    (arrangement,) = arrange([ours, orb])
    rows = rows_of(fpr_table(arrangement))
    assert rows["hardnet"]["Trained on"] == "liberty"
    assert rows["HardNet+ (paper)"]["notredame"] == "0.48 ± 0.01"
    # On its own training set it is shown but does not count.
    assert (rows["hardnet"]["Mean"], rows["hardnet"]["vs. paper"]) == ("1.30", "−0.01")
    assert arrangement.paper_difference(ours) == pytest.approx(-0.00015)


def test_other_sets_several_training_sets_and_rules():
    sift = descriptor("SIFT", phototour=[phototour_scores(0.06, "stereo")])
    table = fpr_table(arrange([hardnet(phototour_scores(0.05, "stereo", "liberty")), sift])[0])
    assert list(rows_of(table)) == ["hardnet", "SIFT"], "no rows of the paper"
    titles = ["Descriptor", "Parameters", "Trained on", "stereo"]
    assert [title for _, title in table.columns] == titles
    assert "Paper:" not in " ".join(table.notes)
    rates = {"castle": 0.01, "garden": 0.05}
    several = [phototour_scores(rate, test, "stereo+castle") for test, rate in rates.items()]
    (arrangement,) = arrange([hardnet(*several)])
    assert rows_of(fpr_table(arrangement))["hardnet"]["Mean"] == "5.00"
    # Scores by different rules do not mix.
    both = [phototour_scores(0.05), dataclasses.replace(phototour_scores(0.06), rule="hynet")]
    found = {one.rule: rows_of(fpr_table(one))["hardnet"] for one in arrange([hardnet(*both)])}
    stereo = {rule: row["stereo"] for rule, row in found.items()}
    assert stereo == {"hardnet": "5.00", "hynet": "6.00"}


def test_published_rows_and_their_counterparts():
    for row in PAPER_PHOTOTOUR:
        assert len(row.fpr95) == 6
        assert np.mean(list(row.fpr95.values())) == pytest.approx(row.mean, abs=1.01e-4)
    for name, ours, parameters, counterpart in (
        ("hardnet", True, 1_334_560, "HardNet+"),
        ("combined_star s=2", True, 1_391_296, "⋆ψᶜ, s=2"),
        ("combined_star s=2 N=64", True, 1_391_296, None),
        ("combined_star", True, 867_008, "⋆ψᶜ, s=1"),
        ("HardNet", False, 1_334_560, None),
        ("xy s=1", True, 433_568, None),
    ):
        more = {"parameters": parameters, "source": f"{name}, out/run"}
        found = paper_counterpart(descriptor("run", ours=ours, **more))
        assert (found and found.name) == counterpart, name
    names = {"RootSIFT": True, "ORB (OpenCV)": True, "Root-SIFT": True, "MKD concat": True,
             "TFeat": False, "HardNet": False, "BBoost": False}  # fmt: skip
    assert {name: is_hand_crafted(descriptor(name)) for name in names} == names


def test_hpatches_tables():
    board = scoreboard(sample_evaluation.paper_like_evaluation().descriptors)
    settings = [("python", "abc"), ("python", "a"), ("matlab", "a")]
    assert [(key.protocol, key.split) for key in board] == settings
    for setting, scored in board.items():
        for table in (headline_table(setting, scored), *tables.detail_tables(setting, scored)):
            assert f"protocol {setting.protocol}" in table.caption
            assert ("splits a, b, c" if setting.split == "abc" else "split a") in table.caption
    levels, areas, pools, sequences = map(rows_of, tables.detail_tables(*next(iter(board.items()))))
    star = "combined_star s=2"
    assert levels[star]["Retrieval, tough"] == "56.00"
    assert levels[star]["Verification, easy intra"] == "80.60"
    assert areas[star]["ROC area, easy intra"] == "90.30"
    assert list(pools[star])[1:] == ["Pool of, 100", "Pool of, 1,000", "Pool of, 10,000"]
    assert pools[star]["Pool of, 10,000"] == "68.67"
    assert sequences["v_scene2"][star] == "53.87"


def test_spread_and_published_rows_beside_the_headline():
    plain = hpatches_scores(0.5, "python", "full")
    scores = dataclasses.replace(plain, map_std={"matching": 0.0123})
    table = headline_table(*next(iter(scoreboard([descriptor("a", hpatches=[scores])]).items())))
    rows = rows_of(table)
    assert (rows["a"]["Matching"], rows["a"]["Retrieval"]) == ("35.00 ± 1.23", "50.00")
    assert rows["HardNet+ (published)"]["Matching"] == "52.76"
    assert any("over seeds" in note for note in table.notes)
    other = descriptor("a", hpatches=[hpatches_scores(0.5, "matlab", "full")])
    assert list(rows_of(headline_table(*next(iter(scoreboard([other]).items()))))) == ["a"]


def test_best_value_and_distance_at_recall_by_hand():
    rows = [("rival", {"x": tables.share_cell(value)}) for value in (0.5, None)]
    assert not any(cells[0].best for _, cells in tables.make_table("", rows).rows), "the only one"
    histogram = Histogram([0.0, 1.0, 2.0], [90, 10], [0, 5])
    assert distance_at_recall(histogram) == pytest.approx(1.5)
    assert distance_at_recall(Histogram([0.0, 1.0], [0], [1])) is None


def test_headlines():
    text = " ".join(headlines(sample_evaluation.paper_like_evaluation()))
    assert "8 descriptors compared: 5 of kjax and 3 baselines; 1 more unavailable." in text
    best = "combined_star s=2 among kjax models (1.40 %), RootSIFT among baselines (27.00 %)"
    assert best in text
    assert "combined_star s=2 is 0.04 percentage points above the paper's mean" in text
    assert "protocol python, mean of splits a, b, c: combined_star s=2 at verification" in text
    for rate, verdict in ((0.051, "overlap"), (0.5, "do not overlap")):
        ours = descriptor("a", ours=True, phototour=[phototour_scores(0.05)])
        other = descriptor("b", phototour=[phototour_scores(rate)])
        assert headlines(evaluation(ours, other))[-1].endswith(f"confidence intervals {verdict}.")


# Pages


class Checker(HTMLParser):
    """Collects the content of a page, and asserts that its tags nest."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.tags, self.text, self.links = [], [], [], "", []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("src", "href")]
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


def nasty():
    results = evaluation(
        descriptor(
            NASTY, ours=True, source=NASTY, warnings=[NASTY],
            phototour=[phototour_scores(0.05, NASTY, NASTY + "2")],
            hpatches=[hpatches_scores(0.4, split=NASTY)],
        ),
        descriptor("漢字 _x", missing=NASTY),
    )  # fmt: skip
    return dataclasses.replace(results, title=NASTY, command=NASTY, versions={NASTY: NASTY})


def not_finite():
    bad = dataclasses.replace(
        phototour_scores(0.1),
        fpr95=math.nan, auc=math.nan, average_precision=math.nan, fpr95_std=math.nan,
        fpr95_interval=(math.nan, math.nan),
        roc=Curve([0.0, math.nan, 1.0], [0.0, 0.5, 1.0]),
        precision_recall=Curve([math.nan], [math.nan]),
        distances=Histogram([0.0, 1.0], [0], [0]),
    )  # fmt: skip
    odd = {"matching_map": math.nan, "retrieval": {"e": math.nan}, "verification": {}}
    poor = dataclasses.replace(hpatches_scores(0.4), **odd)
    return evaluation(descriptor("odd", phototour=[bad], hpatches=[poor]))


CASES = {
    "empty": (evaluation(), Illustrations(), ["Summary"]),
    "missing": (
        evaluation(descriptor("MKD", missing="not installed")), Illustrations(),
        ["Summary", "Missing"],
    ),
    "two protocols": (
        evaluation(
            descriptor("lonely", ours=True, phototour=[phototour_scores(0.05)]),
            descriptor("SIFT", hpatches=[hpatches_scores(0.4, split="folder")]),
        ),
        Illustrations(), ["Summary", "Verification of pairs", "HPatches", "Descriptors"],
    ),
    "nasty names": (
        nasty(), Illustrations(hard_pairs=[HardPairs(NASTY, NASTY, True, PATCHES, np.ones(1))]),
        ["Summary", "Verification of pairs", "HPatches", "Hardest errors", "Descriptors",
         "Missing"],
    ),
    "not finite": (
        not_finite(),
        Illustrations(hard_pairs=[HardPairs("odd", "stereo", False, PATCHES, np.full(1, np.nan))]),
        ["Summary", "Verification of pairs", "HPatches", "Hardest errors", "Descriptors"],
    ),
    "training": (
        evaluation(),
        Illustrations(training=dict([*sample_evaluation.illustrations().training.items()][:1])),
        ["Summary", "Training"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_pages_are_valid_and_need_no_other_file(tmp_path, case):
    results, shown, titles = CASES[case]
    write_report(tmp_path / "new" / "folder", results, shown)
    (path,) = (tmp_path / "new" / "folder").iterdir()
    checker = Checker(path.read_text(encoding="utf-8"))
    assert len(checker.ids) == len(set(checker.ids)) == len(titles)
    assert all(link.startswith(("data:", "#")) for link in checker.links)
    assert {link[1:] for link in checker.links if link.startswith("#")} == set(checker.ids)
    assert not re.search(r"\b(nan|inf|None)\b", checker.text, flags=re.IGNORECASE)
    assert checker.tags.count("script") == 1
    sections = compose(results, shown)
    assert [s["title"] for s in sections if any(s[k] for k in s if k != "title")] == titles
    if case == "training":
        before = path.read_bytes()
        write_report(path.parent, results, shown)
        assert path.read_bytes() == before, "the same results make the same file"


def test_missing_packages_and_bad_folders_are_one_line(tmp_path, monkeypatch):
    results = evaluation(descriptor("a", phototour=[phototour_scores(0.05)]))
    for module in ("matplotlib", "jinja2"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, module, None)
            message = rf"{module}: pip install 'kjax\[figures\]'"
            assert_refused(message, write_report, tmp_path, results)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert_refused("cannot write the report to", write_report, tmp_path / "file", evaluation())
