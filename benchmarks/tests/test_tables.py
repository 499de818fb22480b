"""Tables, figures and the page of experiments, from records whose means are reckoned by hand."""

import re
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from experiments.misalignment_charts import amount_charts, amounts_table, look, noise_tables
from experiments.model_results import model_results
from experiments.page import write_page
from experiments.tables import ablation_table, cost_table
from record_files import hpatches, rate, rival, trained, tried

from kjax.errors import InputError
from kjax.eval.averages import Spread, pooled_std, spread_over_seeds
from kjax.eval.phototour import fpr_interval, fpr_interval_of_counts
from kjax.eval.report import phototour_tables, render
from kjax.eval.report.hpatches_charts import comparison_charts, variants_charts
from kjax.eval.report.hpatches_tables import headline_table, levels_table, scoreboard
from kjax.eval.report.markdown import table_text
from kjax.eval.report.page_parts import Charts, Key, Panel
from kjax.eval.report.phototour_settings import arrange
from kjax.eval.report.published import PAPER_PARAMETERS, PAPER_PHOTOTOUR, paper_parameters
from kjax.eval.report.render import charts_image
from kjax.metrics import fpr_at_recall

PAIRS = {name: [1000, 2000] for name in ("castle", "herzjesu", "fountain")}


def phototour_table(records):
    """The two tables of false positive rates, as the page has them."""
    (arrangement,) = arrange(model_results(records))
    tables = phototour_tables.fpr_table(arrangement), phototour_tables.by_test_table(arrangement)
    return "\n\n".join(map(table_text, tables))


def hpatches_table(records, split, rule="python"):
    """The two tables of HPatches, as the page has them."""
    key = next(
        (
            one
            for one in scoreboard(model_results(records))
            if (one.split, one.protocol) == (split, rule)
        ),
        None,
    )
    if key is None:
        return ""
    apart = scoreboard(model_results(records, apart=True))[key]
    tables = (
        headline_table(key, apart, digits=1),
        levels_table(key, scoreboard(model_results(records))[key], digits=1),
    )
    return "\n\n".join(map(table_text, tables))


def cells_of(text, name, table=0):
    """The cells of the row that begins with a name, bold or not, in one of a text's tables."""
    tables = re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE)
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in tables[table].split("\n")
    ]
    return next(row for row in rows if row[0].strip("*") == name)


def fprs(seed, castle, herzjesu, row="xy s=1"):
    """One seed of a model on both training sets; each tests on the other and on fountain."""
    names = {"castle": "herzjesu", "herzjesu": "castle"}
    return [
        trained(
            row,
            train,
            seed,
            {f"fpr95/{names[train]}": values[0], "fpr95/fountain": values[1]},
            parameters=433_568,
            tested_pairs=PAIRS,
        )
        for train, values in (("castle", castle), ("herzjesu", herzjesu))
    ]


@pytest.fixture
def verified():
    ours = [*fprs(0, (0.02, 0.04), (0.06, 0.08)), *fprs(1, (0.04, 0.04), (0.10, 0.10))]
    rates = {"fpr95/castle": 0.12, "fpr95/herzjesu": 0.02, "fpr95/fountain": 0.10}
    return [*ours, rival("RootSIFT", rates, tested_pairs=PAIRS)]


def test_phototour_table_has_the_papers_layout(verified):
    text = phototour_table(verified)
    assert cells_of(text, "Descriptor") == [
        "Descriptor", "Parameters", "Mean",
        "castle → herzjesu", "castle → fountain", "herzjesu → fountain", "herzjesu → castle",
    ]  # fmt: skip
    # Means of the seeds are 5 and 7: 6 ± √2.
    assert cells_of(text, "xy s=1") == [
        "**xy s=1**", "433,568", "**6.00 ± 1.41**",
        "3.00 ± 1.41", "**4.00 ± 0.00**", "**9.00 ± 1.41**", "**8.00 ± 2.83**",
    ]  # fmt: skip
    assert cells_of(text, "RootSIFT") == [
        "RootSIFT", "–", "8.50", "**2.00**", "10.00", "10.00", "12.00",
    ]  # fmt: skip


def test_intervals_and_ratio_to_rootsift(verified):
    text = phototour_table(verified)
    assert cells_of(text, "Descriptor", 1) == [
        "Descriptor", "herzjesu", "× RootSIFT", "fountain", "× RootSIFT", "castle", "× RootSIFT",
    ]  # fmt: skip
    low, high = fpr_interval_of_counts(0.065, 1000, 2000)
    found = cells_of(text, "xy s=1", 1)
    assert found[1].startswith("3.00 ")
    assert found[2:5] == ["1.50", f"6.50 \\[{100 * low:.2f}, {100 * high:.2f}\\]", "0.65"]
    assert "1,000 matching and 2,000 non-matching pairs" in text
    assert cells_of(text, "RootSIFT", 1)[2] == "1.00"


def test_interval_of_counts():
    # So many matching pairs fix the threshold; then it is Jeffreys' interval of 0 in 100.
    assert fpr_interval_of_counts(0.0, 10**9, 100) == pytest.approx((4.9e-6, 0.024745), rel=1e-2)
    rng = np.random.default_rng(0)
    distances = np.concatenate([rng.normal(0, 1, 4000), rng.normal(3, 1, 6000)])
    matching = np.arange(10_000) < 4000
    fpr = fpr_at_recall(distances, matching)
    expected = fpr_interval(distances, matching)
    assert fpr_interval_of_counts(fpr, 4000, 6000) == pytest.approx(expected, rel=0.05)


def test_a_missing_cell_leaves_the_contest(verified):
    text = phototour_table([*verified, *fprs(0, (0.01, 0.01), (0.0, 0.0), row="sum")[:1]])
    assert cells_of(text, "sum")[2:] == ["1.00 over 2 of 4", "**1.00**", "**1.00**", "–", "–"]
    assert cells_of(text, "xy s=1")[2] == "**6.00 ± 1.41**"


def test_values_of_ablations_are_no_models(verified):
    value = tried("dropout", "0.1", 0, 0.4)
    value.result.phototour.append(rate("fountain", 0.01))
    assert phototour_table([*verified, value]) == phototour_table(verified)


def test_a_set_that_was_trained_on_does_not_count(verified):
    expected = phototour_table(verified)
    verified[0].result.phototour.append(rate("castle", 0.0, tested_pairs=PAIRS))
    assert phototour_table(verified) == expected


def test_rivals_alone_need_no_training_sets():
    text = phototour_table([rival("SIFT", {"fpr95/castle": 0.1, "fpr95/fountain": 0.2})])
    assert cells_of(text, "Descriptor")[1:] == [
        "Parameters", "Trained on", "Mean", "castle", "fountain",
    ]  # fmt: skip
    assert cells_of(text, "SIFT") == ["SIFT", "–", "–", "15.00", "10.00", "20.00"]
    assert arrange(model_results([rival("SIFT", hpatches("a", 0.5, 0.5, 0.5))])) == []


def test_a_parameter_count_unlike_the_papers_is_pointed_out(verified):
    assert "differ from the paper" not in phototour_table(verified)
    other = trained("hardnet", "castle", 0, {"fpr95/fountain": 0.1}, parameters=5)
    assert "hardnet 5 (paper: 1,334,560)" in phototour_table([*verified, other])


def test_records_of_two_experiments_that_disagree_are_refused(verified):
    again = trained("xy s=1", "castle", 0, {"fpr95/fountain": 0.5}, name="final/xy s=1/castle/0")
    with pytest.raises(InputError, match="'heads/xy s=1/castle/0' and 'final/xy s=1/castle/0'"):
        phototour_table([*verified, again])


def beside_the_paper(records):
    (arrangement,) = arrange(model_results(records))
    table = phototour_tables.paper_table(arrangement)
    return table and table_text(table)


def test_published_comparison():
    sets = ("liberty", "notredame", "yosemite")
    records = [
        trained(
            "hardnet",
            train,
            seed,
            {f"fpr95/{test}": 0.01 + 0.002 * seed for test in sets if test != train},
            parameters=1_334_560,
        )
        for train in sets
        for seed in (0, 1)
    ]
    text = beside_the_paper(records)
    ours, paper, difference = (
        cells_of(text, name) for name in ("hardnet, ours", "HardNet+, paper", "difference")
    )
    assert cells_of(text, "Descriptor")[3:5] == ["notredame → liberty", "yosemite → liberty"]
    assert ours[1:4] == ["1,334,560", "1.10 ± 0.14", "1.10 ± 0.14"]
    assert paper[1:4] == ["1,334,560", "1.43 ± 0.02", "1.25 ± 0.03"]
    assert difference[2:] == ["−0.33", "−0.15", "−1.25", "+0.62", "+0.36", "−1.05", "−0.51"]
    # With Liberty alone, the paper's mean is that of its two figures: 0.48 and 2.15.
    partial = beside_the_paper([one for one in records if one.train == ["liberty"]])
    assert cells_of(partial, "HardNet+, paper")[2:] == ["1.31", "0.48 ± 0.01", "2.15 ± 0.01"]


def test_no_published_comparison_elsewhere(verified):
    assert beside_the_paper(verified) is None


def test_published_figures_agree_with_each_other():
    for row in PAPER_PHOTOTOUR:
        assert row.parameters in PAPER_PARAMETERS.values()
        assert np.mean(list(row.fpr95.values())) == pytest.approx(row.mean, abs=1e-4)
    assert paper_parameters("hardnet 64") == 4_480_288
    assert paper_parameters("combined_star s=1") == 867_008
    assert paper_parameters("hardnetwork") is None


@pytest.fixture
def matched():
    return [
        trained("sum", "castle", 0, hpatches("oxford", 0.5, 0.30, 0.4), parameters=5),
        trained("sum", "castle", 1, hpatches("oxford", 0.5, 0.32, 0.4), parameters=5),
        trained("cat", "castle", 0, hpatches("oxford", 0.6, 0.20, 0.5), dimension=8192),
        rival("SIFT", hpatches("oxford", 0.55, 0.25, 0.35)),
        rival("Nought", hpatches("oxford", 0.9, 0.9, 0.9, rule="matlab")),
    ]


def test_hpatches_table(matched):
    text = hpatches_table(matched, "oxford")
    assert cells_of(text, "sum") == [
        "**sum**", "128", "5", "50.0 ± 0.0", "**31.0 ± 1.4**", "40.0 ± 0.0",
    ]  # fmt: skip
    assert cells_of(text, "cat") == ["**cat**", "8,192", "–", "**60.0**", "20.0", "**50.0**"]
    assert cells_of(text, "SIFT", 1)[4:7] == ["35.0", "25.0", "15.0"]
    assert cells_of(text, "sum", 1)[4] == "**41.0 ± 1.4**"
    assert "castle" not in text
    assert "Nought" not in text
    assert "Nought" in hpatches_table(matched, "oxford", "matlab")
    assert hpatches_table(matched, "hpatches") == ""


def test_hpatches_table_names_training_sets_when_there_are_several(matched):
    other = trained("sum", "fountain", 0, hpatches("oxford", 0.7, 0.51, 0.7))
    text = hpatches_table([*matched, other], "oxford")
    rows = re.findall(r"^\| \**([^|*]*?)\** \|", text, re.MULTILINE)
    assert rows[2:6] == ["sum, castle", "cat, castle", "SIFT", "sum, fountain"]
    # By level: the mean of castle's 31 % and fountain's 51 %, each a tenth more where easy.
    assert cells_of(text, "sum", 1)[4] == "**51.0**"


def test_noisy_table():
    scores = {"noisy/fountain/easy": 0.7, "noisy/fountain/hard": 0.3}
    (table,) = noise_tables(model_results([trained("sum", "castle", 0, scores)]))
    assert "Matching on fountain" in table.caption
    row = cells_of(table_text(table), "sum")
    assert row == ["**sum**", "128", "–", "50.0", "70.0", "30.0", "–"]
    assert noise_tables([]) == []


def test_misaligned_table():
    records = [
        trained("sum", "castle", seed, {"jitter/rotation/30": 0.5 + seed / 10}) for seed in (0, 1)
    ]
    records.append(trained("cat", "castle", 0, {"jitter/rotation/10": 0.9}))
    text = table_text(amounts_table(model_results(records)))
    assert cells_of(text, "sum") == ["**sum**", "–", "55.0 ± 7.1", "–"]
    assert "cat" not in text
    assert amounts_table([]) is None


def test_ablation_table_judges_the_lead():
    records = [
        *(tried("dropout", "0", seed, value) for seed, value in enumerate((0.40, 0.42))),
        *(tried("dropout", "0.3", seed, value) for seed, value in enumerate((0.42, 0.43, 0.44))),
    ]
    text = table_text(ablation_table(records, "dropout", default="0"))
    assert cells_of(text, "0 (default)") == [
        "0 (default)", "2", "–", "41.00 ± 1.41", "51.00 ± 1.41", "41.00 ± 1.41", "31.00 ± 1.41",
    ]  # fmt: skip
    assert cells_of(text, "0.3")[:4] == ["**0.3**", "3", "–", "**43.00 ± 1.00**"]
    # √((1·2 + 2·1)/3) = 1.15
    assert "0.3 leads 0 by 2.00 points: more than one pooled standard deviation (1.15)." in text


def test_ablation_table_does_not_call_chance_a_lead():
    records = [
        *(tried("dropout", "0", seed, value) for seed, value in enumerate((0.40, 0.42))),
        *(tried("dropout", "0.3", seed, value) for seed, value in enumerate((0.40, 0.43))),
    ]
    assert "by 0.50 points: not more than one pooled" in table_text(
        ablation_table(records, "dropout")
    )
    assert "with one seed each" in table_text(ablation_table(records[1::2], "dropout"))
    with pytest.raises(InputError, match="did you mean 'dropout'"):
        ablation_table(records, "drop out")


def test_the_default_of_all_questions_stands_in_each(tmp_path):
    records = [
        tried("dropout", "0", 0, 0.41, config={"model.dropout": 0.0, "train.steps": 7}),
        tried("kappa", "2", 0, 0.39, config={"model.kappa_xy": 2.0, "train.steps": 7}),
        tried("default", "default", 0, 0.40, config={"train.steps": 7}),
    ]
    text = table_text(ablation_table(records, "kappa"))
    rows = re.findall(r"^\| \**([^|*]*?)\** \|", text, re.MULTILINE)
    assert rows == ["Value", "---", "default", "2"]
    text = table_text(ablation_table(records, "kappa", "1"))
    assert cells_of(text, "1 (default)")[3] == "**40.00**"
    write_page(records, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert re.findall("^### (.*)", text, flags=re.MULTILINE) == ["dropout", "kappa"]
    assert "otherwise, they differ from `configs/base.py` in `train.steps=7`." in text


def test_deviation_counts_shared_seeds_only():
    assert spread_over_seeds([{0: 1.0, 1: 3.0}, {1: 5.0}]) == Spread(3.5, None, 1)
    assert spread_over_seeds([{}, {0: 1.0}]) == Spread(1.0, None, 1)
    assert spread_over_seeds([{}]) is None
    assert pooled_std(Spread(0, None, 1), Spread(0, 2.0, 3)) == 2.0


def test_cost_table():
    records = [
        trained("sum", "castle", 0, {}, pairs=1000, seconds=2.0, compile_seconds=30.0),
        trained("sum", "castle", 1, {}, pairs=1000, seconds=3.0),
        tried("dropout", "0", 0, 0.4, pairs=500, seconds=1.0),
        tried("dropout", "0.3", 0, 0.4, pairs=500, seconds=1.0, hardware="a CPU"),
        rival("SIFT", {}),
    ]
    text = table_text(cost_table(records))
    assert cells_of(text, "heads") == [
        "heads", "sum", "2", "1,000", "2.5", "400", "15.0", "a GPU",
    ]  # fmt: skip
    assert cells_of(text, "ablation")[1:3] == ["dropout", "1"]
    assert "In total on a GPU: 3 trainings, 0.6 min, of which 0.5 min compiling." in text
    assert "In total on a CPU: 1 trainings" not in text
    assert "In total on a CPU: 1 training, 0.0 min" in text
    assert cost_table(records[-1:]) is None


def jitter(*means):
    return {f"jitter/rotation/{10 * place}": mean for place, mean in enumerate(means)}


@pytest.fixture
def everything(verified, matched):
    turned = [trained("polar s=1", "castle", seed, jitter(0.9, 0.5 + seed / 10)) for seed in (0, 1)]
    return [
        *verified, *matched, *turned, tried("dropout", "0", 0, 0.4), tried("dropout", "1", 0, 0.3),
    ]  # fmt: skip


def svg_texts(charts):
    return [
        "".join(one.itertext()).strip()
        for one in ElementTree.fromstring(charts_image(charts, "svg")).iter()
        if one.tag.endswith("text")
    ]


def test_bar_charts_keep_their_order_and_write_the_means(matched):
    pytest.importorskip("matplotlib")
    key, scored = next(iter(scoreboard(model_results(matched)).items()))
    texts = svg_texts(variants_charts(key, scored))
    assert [text for text in texts if text in ("cat", "SIFT", "sum")] == ["cat", "sum"] * 3
    texts = svg_texts(comparison_charts(key, scored))
    assert {"31.0 ± 1.4", "25.0", "hand-crafted", "easy", "tough", "Retrieval"} <= set(texts)
    names = [text for text in texts if text in ("cat", "SIFT", "sum")]
    assert names == ["cat", "SIFT", "sum", "sum", "SIFT", "cat", "cat", "sum", "SIFT"]


def test_misalignment_charts(everything):
    pytest.importorskip("matplotlib")
    charts = amount_charts(model_results(everything))
    assert [panel.title for panel in charts.panels] == ["Rotation"]
    assert charts_image(charts, "png").startswith(b"\x89PNG")
    assert amount_charts([]) is None


def test_a_legend_is_no_wider_than_its_panels(monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = []
    make = render._figure
    monkeypatch.setattr(render, "_figure", lambda *size: drawn.append(make(*size)) or drawn[-1])
    keys = [Key(f"best:steady + learned matcher {number}", "ours", "line") for number in range(4)]
    charts_image(Charts("wide", "", [Panel("One", "", lambda axis: None, 200)], keys), "png")
    (figure,) = drawn
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_page_holds_everything_and_is_the_same_again(everything, tmp_path):
    pytest.importorskip("matplotlib")
    write_page(everything, tmp_path)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    text = (tmp_path / "results.md").read_text()
    linked = {tmp_path / name for name in re.findall(r"\]\((figures/[^)]*\.svg)\)", text)}
    assert linked == set(first) - {tmp_path / "results.md"}
    assert {path.stem for path in linked} == {
        "heads-hpatches-variants-python-oxford-made-up",
        "heads-hpatches-comparison-python-oxford-made-up",
        "heads-jitter",
    }
    assert re.findall("^##+ (.*)", text, flags=re.MULTILINE) == [
        "Heads", "Verification of pairs", "HPatches: oxford, python rules", "Misaligned patches",
        "Ablations", "dropout", "Cost",
    ]  # fmt: skip
    assert "seeds 0, 1 · trained on castle; herzjesu · 1,000 pairs each · a GPU" in text
    assert not re.search(r"\b(nan|inf|None)\b", text)
    write_page(everything, tmp_path)
    assert first == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert all(b"<dc:date>" not in content for content in first.values())


def test_page_says_which_settings_all_trainings_share(tmp_path):
    records = [
        trained("sum", "a", seed, {"fpr95/b": 0.1}, config={"train.steps": 7, "model.s": seed})
        for seed in (0, 1)
    ]
    write_page(records, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert "differ from `configs/base.py` in `train.steps=7`." in text


def test_rivals_alone_make_no_section(tmp_path):
    scores = {f"noisy/garden/{level}": 0.5 for level in ("easy", "hard", "tough")}
    write_page([trained("sum", "a", 0, scores), rival("MKD", {"fpr95/a": 0.1})], tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert re.findall("^### (.*)", text, flags=re.MULTILINE) == ["Misaligned patches"]
    assert "1 training · seed 0 ·" in text


def test_page_without_records_or_matplotlib(matched, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no records"):
        write_page([], tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="pip install matplotlib"):
        write_page(matched, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write results to"):
        write_page(matched[:1], tmp_path / "file")


def test_no_two_curves_look_alike():
    looks = [look(place) for place in range(32)]
    assert len(set(looks)) == 32
