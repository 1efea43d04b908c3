"""axe-core, the checker of the field, finds nothing to object to: in either theme, on a desk or a phone, cards open."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import PHONE, by_test_id, open_page, watched_page
from playwright.sync_api import Browser, Page, expect


def violations(page: Page) -> str:
    """What axe-core finds, in words; "" where it finds nothing."""
    results = Axe().run(page)
    return results.generate_report() if results.violations_count else ""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Browser, small_page: Path, theme: str):
    with watched_page(browser, color_scheme=theme) as page:
        open_page(page, small_page)
        by_test_id(page, "token").first.click()
        expect(by_test_id(page, "card")).to_contain_text("pinned")
        expect(by_test_id(page, "branch").first).to_be_visible()
        assert not violations(page)
        page.set_viewport_size(PHONE)
        assert not violations(page)
