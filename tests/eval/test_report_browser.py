"""The report in a real browser: what a reader sees, wide and narrow, light and dark."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from browser import Page, find_chromium
from PIL import Image
from sample_evaluation import descriptor, illustrations, paper_like_evaluation

from kjax.eval.report.page import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="needs Chromium and Playwright"),
]

NASTY = "<script>console.error('ran')</script><img src=x onerror=console.error('ran')>"
LONG = "a_name_without_any_space_" * 8
SIZES = (380, 1280)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    sample = paper_like_evaluation()
    rows = [*sample.descriptors, descriptor(NASTY, missing=LONG, source=NASTY)]
    rows.append(descriptor(LONG, ours=True, warnings=[NASTY]))
    folder = tmp_path_factory.mktemp("alone")
    write_report(folder, dataclasses.replace(sample, descriptors=rows), illustrations())
    return folder / "report.html"


@pytest.fixture
def page(browser, report: Path):
    with browser.new_page() as tab:
        page = Page(tab)
        page.resize(1280)
        page.colour_scheme("light")
        page.load(report.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        yield page


def test_loads_alone_without_problems(page, report):
    assert page.evaluate("document.title") == "Made-up figures for a test"
    assert page.requests == [report.as_uri()]
    assert page.problems == []
    assert page.evaluate("document.querySelectorAll('section h2').length") == 8
    # Every entry of the contents leads somewhere.
    links = "[...document.querySelectorAll('nav a')]"
    assert page.evaluate(f"{links}.every(a => document.querySelector(a.hash))")


@pytest.mark.parametrize("width", SIZES)
def test_every_figure_is_visible_and_nothing_overflows(page, width):
    page.resize(width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = page.evaluate(
        """[...document.querySelectorAll('body *')].filter(one =>
            !one.closest('.scroll > table, nav ol, pre > code') &&
            one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML)"""
    )
    assert outside == []
    figures = page.evaluate(
        """[...document.querySelectorAll('figure img')].map(one => {
            const box = one.getBoundingClientRect();
            return [box.width, box.height, one.complete && one.naturalWidth, one.alt.length];
        })"""
    )
    # 6 ROC, 6 precision–recall, 23 of distances, 12 of bars, 5 of training; 13 pictures.
    assert len(figures) == 65
    assert (np.array(figures) > [100, 40, 0, 10]).all()


def test_tables_sort(page):
    table = "document.querySelector('main table')"
    names = f"[...{table}.tBodies[0].rows].map(row => row.querySelector('.name').textContent)"
    buttons = f"[...{table}.querySelectorAll('thead button')]"
    click = f"{buttons}.find(b => b.textContent == '%s').click()"
    before = page.evaluate(names)
    page.evaluate(click % "Mean")
    ascending = page.evaluate(names)
    assert ascending[:2] == ["⋆ψᶜ, s=2 (paper)", "combined_star s=2"]
    assert ascending[-1] == "ORB"
    assert page.evaluate(f"{table}.querySelector('[aria-sort]').ariaSort") == "ascending"
    page.evaluate(click % "Mean")
    assert page.evaluate(names)[0] == "ORB"
    # What has no value stays last, whichever way.
    for _ in range(2):
        page.evaluate(click % "vs. paper")
        assert set(page.evaluate(names)[:2]) == {"hardnet", "combined_star s=2"}
    page.evaluate(click % "Descriptor")
    letters = [name for name in page.evaluate(names) if name[0].isalpha()]
    assert letters == sorted(letters, key=str.lower)
    assert sorted(page.evaluate(names)) == sorted(before)
    assert page.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_and_text_are_readable(page, scheme):
    """A chart's ground is the card's, its text has contrast, and its curves have colours.

    The contrast of the page's text follows the formula of WCAG 2.
    """
    page.colour_scheme(scheme)
    shot = page.tab.locator(".panel").first.screenshot()
    with Image.open(io.BytesIO(shot)) as image:
        pixels = np.asarray(image.convert("RGB"))[8:-8, 8:-8].reshape(-1, 3).astype(float)
    grey = pixels @ [0.2126, 0.7152, 0.0722]
    ground = np.median(grey)
    assert (ground > 240) if scheme == "light" else (ground < 40)
    assert np.abs(grey - ground).max() > 150
    assert np.ptp(pixels, axis=1).max() > 80
    worst = page.evaluate(
        """(() => {
        const channels = (text) => text.match(/[\\d.]+/g).map(Number);
        const luminance = (rgb) => {
            const [r, g, b] = rgb.slice(0, 3).map((v) => v / 255)
                .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = (one) => {
            for (; one; one = one.parentElement) {
                const colour = channels(getComputedStyle(one).backgroundColor);
                if (colour.length < 4 || colour[3] === 1) return luminance(colour);
            }
            return 1;
        };
        const worst = {};
        for (const one of document.querySelectorAll('body *')) {
            const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
            if (!own || !one.getClientRects().length) continue;
            const style = getComputedStyle(one);
            const ink = luminance(channels(style.color));
            const [low, high] = [ink, ground(one)].sort((a, b) => a - b);
            const key = one.tagName + '.' + one.className;
            worst[key] = Math.min(worst[key] ?? 21, (high + 0.05) / (low + 0.05));
        }
        return worst;
        })()"""
    )
    assert {"TD.number", "FIGCAPTION.", "LI."} <= set(worst)
    assert {name: value for name, value in worst.items() if value < 4.5} == {}


def test_without_script_the_tables_are_still_there(browser, report):
    with browser.new_page(java_script_enabled=False) as tab:
        tab.goto(report.as_uri())
        assert tab.locator("tbody td").count() > 200


def test_prints_on_light_ground_without_contents(page):
    page.tab.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
