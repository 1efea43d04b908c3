"""A browser for the tests of the page, a fresh page for each, and runs and pages that several of them look at.

The browser lives as long as a file of tests, not as long as the session: while it runs, so does Playwright's event
loop, and a test elsewhere that starts its own would be refused.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import opened_browser, watched_page
from playwright.sync_api import Browser, Page
from run_folders import write_small_run

from outdo.extras.page.collect import DEFAULT_VIEW, View
from outdo.extras.page.html import render_page as html
from outdo.extras.page.runs import collect_runs


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page, as wide as a desktop's. A test that uses it fails when anything was wrong in the end."""
    with watched_page(browser) as page:
        yield page


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes the page of one run, or of several, as a file."""

    def write(*runs: Path, shown: View = DEFAULT_VIEW) -> Path:
        path = tmp_path_factory.mktemp("pages") / "report.html"
        path.write_text(html(collect_runs(runs, shown)), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return write_small_run(tmp_path_factory.mktemp("runs") / "small")


@pytest.fixture(scope="session")
def small_page(page_of: Callable[..., Path], small_run: Path) -> Path:
    return page_of(small_run)
