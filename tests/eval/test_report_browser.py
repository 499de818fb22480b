"""The report in a real browser: what a reader sees, wide and narrow, light and dark."""

import dataclasses
from pathlib import Path

import pytest
from browser import Page, find_chromium, open_browser
from sample_evaluation import descriptor, illustrations, paper_like_evaluation

from kjax.eval.report.document import compose
from kjax.eval.report.html import to_html

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium on this machine, or no Playwright to drive it"
)

NASTY = "<script>console.error('ran')</script><img src=x onerror=console.error('ran')>"
LONG = "a_name_without_any_space_" * 8
SIZES = (380, 1280)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    sample = paper_like_evaluation()
    rows = [
        *sample.descriptors,
        descriptor(NASTY, missing=LONG, source=NASTY),
        descriptor(LONG, ours=True, warnings=[NASTY]),
    ]
    document = compose(dataclasses.replace(sample, descriptors=rows), illustrations())
    # Alone in its folder: whatever else it asked for would not be found.
    page = tmp_path_factory.mktemp("alone") / "report.html"
    page.write_text(to_html(document), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser, report: Path):
    with browser.new_page() as tab:
        page = Page(tab)
        page.resize(1280)
        page.colour_scheme("light")
        page.load(report.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        yield page


def test_loads_alone_and_without_complaint(page, report):
    assert page.evaluate("document.title") == "Made-up figures for a test"
    assert page.requests == [report.as_uri()]
    assert page.problems == []
    assert page.evaluate("document.querySelectorAll('section h2').length") == 8
    # Every entry of the contents leads somewhere.
    assert page.evaluate(
        "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))"
    )


def test_a_complaint_would_be_noticed(browser, tmp_path):
    """The two checks above can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text("<script>throw new Error('x')</script><img src='missing.png'>")
    with browser.new_page() as tab:
        page = Page(tab)
        page.load(bad.as_uri())
        assert any("x" in problem for problem in page.problems)
        assert len(page.requests) == 2


@pytest.mark.parametrize("width", SIZES)
def test_every_figure_is_visible(page, width):
    page.resize(width)
    figures = page.evaluate(
        """[...document.querySelectorAll('figure img, .panel svg')].map(one => {
            const box = one.getBoundingClientRect();
            const drawn = one.tagName === 'IMG' ? one.complete && one.naturalWidth
                                                : one.querySelectorAll('path').length;
            return [box.width, box.height, drawn, (one.alt || one.ariaLabel || '').length];
        })"""
    )
    # 6 ROC, 6 precision–recall, 23 of distances, 12 of bars, 5 of training; 13 pictures.
    assert len(figures) == 65
    for box_width, box_height, drawn, alt in figures:
        assert box_width > 100
        assert box_height > 40
        assert drawn > 0
        assert alt > 10


def test_charts_have_ink_in_the_colours_of_the_theme(page):
    """No colour of the light theme is left in the drawings, which would not follow the dark one."""
    assert page.evaluate(
        "[...document.querySelectorAll('.panel')].every(one => !/#[0-9a-f]{6}/.test(one.innerHTML))"
    )
    curve = "getComputedStyle(document.querySelector('#figure-roc path[style*=series-0]')).stroke"
    light = page.evaluate(curve)
    page.colour_scheme("dark")
    assert page.evaluate(curve) != light


@pytest.mark.parametrize("width", SIZES)
def test_nothing_overflows_the_page(page, width):
    page.resize(width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = page.evaluate(
        """[...document.querySelectorAll('body *')].filter(one =>
            !one.closest('.scroll > table, nav ol, pre > code, .panel svg') &&
            one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML)"""
    )
    assert outside == []


def test_tables_sort(page):
    table = "document.querySelector('#verification table')"
    names = f"[...{table}.tBodies[0].rows].map(row => row.querySelector('.name').textContent)"
    click = (
        f"[...{table}.querySelectorAll('thead button')].find(b => b.textContent == '%s').click()"
    )
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
def test_text_is_readable(page, scheme):
    """Contrast of all text, in drawings too, by the formula of WCAG 2."""
    page.colour_scheme(scheme)
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
            const ink = luminance(channels(one.tagName === 'text' ? style.fill : style.color));
            const [low, high] = [ink, ground(one)].sort((a, b) => a - b);
            const key = one.tagName + '.' + (one.className.baseVal ?? one.className);
            worst[key] = Math.min(worst[key] ?? 21, (high + 0.05) / (low + 0.05));
        }
        return worst;
        })()"""
    )
    assert {"text.", "TD.number", "FIGCAPTION.", "LI."} <= set(worst)
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
