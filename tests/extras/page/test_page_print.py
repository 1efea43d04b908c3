"""A printed page has no blank places: curves, tokens and tables are on paper as they are on the screen."""

from pathlib import Path

import pytest
from browser import open_page
from playwright.sync_api import Browser, Page
from run_folders import write_run

pytestmark = pytest.mark.release

PAPER = 700
"""CSS pixels between the margins of A4."""

CURVES = """() => [...document.querySelectorAll('.curve')].map(curve => {
    const canvas = curve.querySelector('canvas');
    if (!canvas) return 0;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((value, i) => i % 4 === 3 && value > 0).length;
})"""


LISTEN = """() => matchMedia('print').addEventListener('change', () => {
    window.filled = [...document.querySelectorAll('.tokens')].map(each => each.children.length);
})"""
"""A printer does not wait for the next frame, in which the page would fill the rows that have come into sight."""


def printed(browser: Browser, path: Path) -> Page:
    """A page in print, as soon as it has opened: the browser has not yet drawn what is far from its window."""
    page = browser.new_context().new_page()
    page.add_init_script("window.requestIdleCallback = () => 0")
    open_page(page, path)
    assert page.locator(".curve canvas").count() < page.locator(".curve").count()
    page.evaluate(LISTEN)
    page.emulate_media(media="print")
    page.wait_for_function("() => window.filled")
    return page


def test_every_curve_is_drawn_in_print(browser: Browser, small_page: Path):
    page = printed(browser, small_page)
    inks = page.evaluate(CURVES)
    assert len(inks) > 10
    assert min(inks) > 200
    page.set_viewport_size({"width": PAPER, "height": 1000})
    widths = "() => [...document.querySelectorAll('.curve canvas')].map(each => each.getBoundingClientRect().right)"
    assert max(page.evaluate(widths)) <= PAPER
    page.context.close()


def test_rows_far_from_the_window_have_their_tokens_in_print(browser: Browser, page_of, tmp_path: Path):
    run = write_run(tmp_path / "run", steps=1, groups=1, group_size=40, length=60, even=True)
    page = printed(browser, page_of(run))
    assert page.evaluate("() => window.filled") == [60] * 40
    page.context.close()
