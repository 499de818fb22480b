"""The page of matches in a real browser: what a reader sees, and how quickly."""

import re

import cv2
import numpy as np
import pytest
from browser import Page, find_chromium

from kjax.images.draw import MAX_SIDE, save_match_page
from kjax.images.extract import extract_patches
from kjax.images.features import Features, Matches


def in_a_browser(test):
    missing = pytest.mark.skipif(find_chromium() is None, reason="no Chromium, or no Playwright")
    return pytest.mark.slow(missing(test))


NASTY = "</script><script>console.error('ran')</script>\"<img src=x onerror=console.error('ran')>"
EXTENT = 9.0
MANY = 5000
FRAME = 50
"""Milliseconds."""


def make_side(name, rng, count, shape=(300, 400)):
    coarse = rng.integers(0, 256, (shape[0] // 10, shape[1] // 10), np.uint8)
    photo = cv2.resize(coarse, shape[::-1], interpolation=cv2.INTER_CUBIC)
    low, high = (60, 60), (shape[1] - 60, shape[0] - 60)
    features = Features(
        xy=rng.uniform(low, high, (count, 2)).astype(np.float32),
        descriptors=np.zeros((count, 1), np.float32),
        image_size=shape[::-1],
        scales=rng.uniform(3, 6, count).astype(np.float32),
        angles=rng.uniform(0, 360, count).astype(np.float32),
    )
    return name, photo, features


def make_pair(count, **options):
    rng = np.random.default_rng(0)
    sides = make_side("a.jpg", rng, count, **options), make_side(NASTY, rng, count, **options)
    indices = np.column_stack([np.arange(count), np.arange(count)[::-1]]).astype(np.int32)
    ratios = np.linspace(0.2, 0.9, count, dtype=np.float32)
    matches = Matches(indices, np.linspace(0.1, 1.1, count, dtype=np.float32), ratios)
    return *zip(*sides, strict=True), matches, np.arange(count) % 4 != 3


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens the page of some matches, alone in its folder."""
    tabs = []

    def open_(*pair) -> Page:
        file = tmp_path / "matches.html"
        save_match_page(file, *pair, extent=EXTENT)
        tabs.append(browser.new_page())
        page = Page(tabs[-1])
        page.resize(1280, 800)
        page.load(file.as_uri())
        page.tab.wait_for_selector("body[data-ready]")
        assert page.requests == [file.as_uri()]
        return page

    yield open_
    for tab in tabs:
        tab.close()


def ends(page, match):
    """Where a match begins and ends on the screen."""
    x0, y0, x1, y1 = page.evaluate(f"across({match})")
    left, top = page.evaluate("(b => [b.left, b.top])(canvas.getBoundingClientRect())")
    return (left + x0, top + y0), (left + x1, top + y1)


def wait_until(page, expression):
    """Asks again and again: the page lets nobody else evaluate text."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.tab.wait_for_timeout(25)
    pytest.fail(f"never: {expression}")


def text(page, name):
    return page.tab.text_content(f"#{name}")


def pixels(page, name):
    side = page.evaluate(f"document.getElementById('{name}').width")
    flat = page.evaluate(
        f"[...document.getElementById('{name}').getContext('2d').getImageData(0, 0, {side}, {side})"
        ".data].filter((_, place) => place % 4 === 0)"
    )
    return np.array(flat, np.float32).reshape(side, side)


@in_a_browser
def test_loads_alone_and_names_stay_names(open_page):
    page = open_page(*make_pair(40))
    assert page.evaluate("document.title") == f"Matches of a.jpg and {NASTY}"
    assert text(page, "count") == "30 of 40 matches"
    assert page.tab.is_hidden("#panel")
    assert page.problems == []
    page = open_page(*make_pair(0))
    assert text(page, "count") == "0 of 0 matches"
    page.tab.focus("#view")
    page.tab.keyboard.press("n")
    page.tab.mouse.move(300, 300)
    assert page.problems == []


@in_a_browser
@pytest.mark.parametrize("end", [0, 1])
def test_hover_shows_both_patches_distance_and_ratio(open_page, end):
    pair = _, photos, features, matches, _ = make_pair(40)
    page = open_page(*pair)
    page.tab.mouse.move(*ends(page, 10)[end])
    page.tab.wait_for_selector("#panel:not([hidden])")
    assert float(text(page, "distance")) == pytest.approx(matches.distances[10], abs=1e-3)
    assert float(text(page, "ratio")) == pytest.approx(matches.ratios[10], abs=1e-3)
    assert text(page, "agrees") == "yes"
    for name, photo, one, row in zip(("first", "second"), photos, features, (10, 29), strict=True):
        shown = pixels(page, name)
        patch = extract_patches(
            photo, one.xy[row][None], one.scales[row : row + 1], one.angles[row : row + 1],
            size=len(shown), extent=EXTENT,
        ).patches[0]  # fmt: skip
        # JPEG and the browser's interpolation.
        assert np.abs(shown - np.asarray(patch)).mean() < 3
    page.tab.mouse.move(5, 795)
    page.tab.wait_for_selector("#panel", state="hidden")


@in_a_browser
def test_a_click_holds_a_match_and_keys_go_on(open_page):
    page = open_page(*make_pair(40))
    (x, y), _ = ends(page, 10)
    page.tab.mouse.click(x, y)
    page.tab.mouse.move(5, 795)
    assert page.evaluate("current()") == 10
    page.tab.keyboard.press("n")
    # The next worse that agrees.
    assert page.evaluate("current()") == 12
    assert float(text(page, "ratio")) == pytest.approx(0.2 + 0.7 * 12 / 39, abs=1e-3)
    page.tab.keyboard.press("p")
    assert page.evaluate("current()") == 10


@in_a_browser
def test_zoom_keeps_the_point_under_the_pointer_and_drags_move(open_page):
    page = open_page(*make_pair(40))
    whole = page.evaluate("view.scale")
    (x, y), _ = ends(page, 7)
    page.tab.mouse.move(x, y)
    for _ in range(5):
        page.tab.mouse.wheel(0, -300)
    wait_until(page, f"view.scale > 5 * {whole}")
    nearer = page.evaluate("view.scale")
    # A pointer is told in whole pixels: the half that is lost grows with the photographs.
    place = np.array(ends(page, 7)[0])
    np.testing.assert_allclose(place, (x, y), atol=0.6 * nearer / whole)
    page.tab.mouse.down()
    page.tab.mouse.move(x + 50, y - 30, steps=3)
    page.tab.mouse.up()
    np.testing.assert_allclose(ends(page, 7)[0], np.add(place, (50, -30)), atol=1.5)
    page.tab.click("#whole")
    assert page.evaluate("view.scale") == pytest.approx(whole)
    page.tab.click("#closer")
    assert page.evaluate("view.scale") == pytest.approx(1.3 * whole)


@in_a_browser
def test_filters(open_page):
    page = open_page(*make_pair(40))
    assert text(page, "least") == "0.10"
    page.tab.uncheck("#agreeing")
    assert text(page, "count") == "40 of 40 matches"
    page.tab.fill("#score", "0.5")
    # Ratios from 0.2 to 0.5 are scores from 0.8 to 0.5.
    kept = int((np.linspace(0.2, 0.9, 40) <= 0.5).sum())
    assert text(page, "count") == f"{kept} of 40 matches"
    assert page.evaluate("shown.every(match => data.ratio[match] <= 0.5)")
    # What is filtered out is not found either.
    page.tab.mouse.move(*ends(page, 39)[0])
    assert page.evaluate("hovered") != 39
    page.tab.check("#agreeing")
    assert page.evaluate("shown.every(match => data.agrees[match])")


@in_a_browser
def test_phones_stack_the_images_and_fingers_zoom(open_page):
    page = open_page(*make_pair(40))
    assert float(page.evaluate("opacity.value")) == 0.8  # of few lines
    page.resize(390, 844)
    wait_until(page, "view.stacked")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("photos[1].left === 0 && photos[1].top > photos[0].height")
    (x, y), _ = ends(page, 10)
    whole, touch = page.evaluate("view.scale"), page.tab.context.new_cdp_session(page.tab).send
    for kind, apart in (("touchStart", 20), ("touchMove", 40), ("touchMove", 60), ("touchEnd", 0)):
        fingers = [{"x": 195 + side * apart, "y": 400, "id": side} for side in (0, 1)]
        points = fingers if apart else []
        touch("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    wait_until(page, f"view.scale > 2.5 * {whole}")
    page.tab.click("#whole")
    assert page.evaluate("view.scale") == whole
    touch("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    touch("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    wait_until(page, "pinned === 10")
    assert page.problems == []


@in_a_browser
def test_many_matches_stay_smooth_and_all_are_drawn(open_page):
    page = open_page(*make_pair(MANY, shape=(1200, 1600)))
    page.tab.uncheck("#agreeing")
    script = """new Promise((done) => {
      const gaps = [];
      let before = null;
      const turn = (now) => {
        if (before !== null) gaps.push(now - before);
        before = now;
        if (gaps.length === 40) return done(gaps);
        zoom(gaps.length % 20 < 10 ? 1.1 : 1 / 1.1);
        pan(2, 1);
        return requestAnimationFrame(turn);
      };
      requestAnimationFrame(turn);
    })"""
    # The best of three: other programs may have the processor for a while.
    assert min(np.median(page.evaluate(script)) for _ in range(3)) <= FRAME
    wait_until(page, f"drawn === {MANY}")
    # A frame has room for the pointer too.
    seconds = page.evaluate(
        "(start => { for (let i = 0; i < 20; i++) find(300 + i, 300); "
        "return performance.now() - start; })(performance.now())"
    )
    assert seconds / 20 < FRAME / 2


def test_large_photographs_are_reduced_with_their_keypoints(tmp_path):
    pair = make_pair(3, shape=(200, 2 * MAX_SIDE))
    save_match_page(tmp_path / "m.html", *pair, extent=EXTENT)
    x, *_ = re.search(r'"ends":\[\[(.*?)\]', (tmp_path / "m.html").read_text())[1].split(",")
    assert float(x) == pytest.approx((pair[2][0].xy[0, 0] + 0.5) / 2, abs=1e-2)
