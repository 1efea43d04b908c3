"""A real Chromium for the tests of the page: finding it, starting it, and writing down what it says and asks for."""

import json
import math
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Playwright, expect, sync_playwright

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]
PATIENCE = 600_000
"""Milliseconds after which a test gives up waiting: a busy machine is slow, and that is no fault."""
expect.set_options(timeout=PATIENCE)

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

MISSING = (
    "no Chromium found: the tests of the page in a browser were not run: "
    "install Debian's chromium or `playwright install chromium`"
)


def chromium(playwright: Playwright) -> str | None:
    """The browser to test in: the one named by OUTDO_CHROMIUM, one on the PATH, else Playwright's own; None without."""
    named = os.environ.get("OUTDO_CHROMIUM")
    found = [named] if named else [*map(shutil.which, EXECUTABLES), playwright.chromium.executable_path]
    return next((path for path in found if path and Path(path).exists()), None)


def launch(playwright: Playwright, executable: str) -> Browser:
    return playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """A browser. Without one the test is skipped, and fails where `CI_NEEDS_BROWSER` is 1."""
    with sync_playwright() as playwright:
        executable = chromium(playwright)
        if executable is None:
            (pytest.fail if os.environ.get("CI_NEEDS_BROWSER") == "1" else pytest.skip)(MISSING)
        browser = launch(playwright, executable)
        yield browser
        browser.close()
        _quiet_contexts.clear()


@dataclass
class PageLog:
    """All that a page said and asked for."""

    errors: list[str] = field(default_factory=list)
    """Console errors and warnings, a refusal of the content security policy among them, and uncaught exceptions."""
    requests: list[str] = field(default_factory=list)
    """Where it asked for something, its own document and what it made itself (data:, blob:) left out."""
    dialogs: list[str] = field(default_factory=list)

    def watch(self, page: Page, *, allowed: str = "") -> None:
        """Write down what `page` does from now on. Requests to where `allowed` begins are not written down."""
        page.on("console", lambda message: self._on_console(message.type, message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._on_request(request, allowed))
        page.on("dialog", self._dismiss)

    def _on_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)

    def _on_request(self, request: Any, allowed: str) -> None:
        own = request.is_navigation_request() and request.url.startswith(("file:", "about:"))
        if not (own or request.url.startswith(("data:", "blob:")) or (allowed and request.url.startswith(allowed))):
            self.requests.append(request.url)

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


_quiet_contexts: defaultdict[str, list[BrowserContext]] = defaultdict(list)
"""Contexts of the browser that no test uses, by their settings. Each holds an empty page.

Chromium starts a process for a context, and that process compiles the scripts of a page once.
"""


@contextmanager
def watched_page(browser: Browser, *, viewport: Any = DESKTOP, allowed: str = "", **settings: Any) -> Iterator[Page]:
    """A fresh page that is quiet to its end: no console error, no exception, no dialog, no request but to `allowed`.

    No other open page shares its storage, which is empty. The context of a page that was not quiet is not used again.
    """
    witness = PageLog()
    settings |= {"viewport": viewport, "reduced_motion": "reduce"}
    unused = _quiet_contexts[json.dumps(settings, sort_keys=True)]
    context = unused.pop() if unused else _context_with_a_page(browser, settings)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        witness.watch(page, allowed=allowed)
        yield page
        page.evaluate("() => new Promise(done => setTimeout(done, 0))")  # what is still to be said is said now
        page.evaluate("() => location.protocol === 'about:' || localStorage.clear()")
        page.close()
        assert witness == PageLog(), witness
    except BaseException:
        context.close()
        raise
    context.clear_cookies()
    unused.append(context)


def _context_with_a_page(browser: Browser, settings: Any) -> BrowserContext:
    context = browser.new_context(**settings)
    context.new_page()
    return context


def violations(page: Page, *, without: str = "") -> str:
    """What axe-core finds, in words; "" where it finds nothing. `without` selects elements that it leaves out."""
    results = Axe().run(page, {"exclude": [[without]]} if without else None)
    return results.generate_report() if results.violations_count else ""


def open_page(page: Page, path: Path, *, step: int | None = None) -> None:
    """Open a page from disk, at a step if one is given, and wait until its tokens are drawn."""
    page.goto(path.as_uri() + ("" if step is None else f"#step={step}"))
    by_test_id(page, "token").first.wait_for()


def by_test_id(page: Page | Locator, name: str, **data: object) -> Locator:
    """The elements that the page marks for tests: `hook(page, "token", row=3, index=7)`."""
    return page.locator(f'[data-test="{name}"]' + "".join(f'[data-{key}="{value}"]' for key, value in data.items()))


# --------------------------------------------------------------------------------------------------- what a page holds


def page_data(html: str) -> dict[str, Any]:
    """The data of a page, as the page itself reads it."""
    found = re.search(r'<script type="application/json" id="outdo-data">(.*?)</script', html, re.DOTALL)
    assert found, "no data in the page"
    return json.loads(found[1])


def number(text: str) -> float | None:
    """A number as the page writes it: a true minus sign, a dash where nothing is known."""
    return None if text == "–" else float(text.replace("−", "-").replace(",", "").removesuffix("%"))


def nearly_equal(actual: float | None, expected: float | None, digits: int = 4, *, relative_to: float = 0.0) -> bool:
    """Whether they agree in so many digits, of the number itself or of one that it is kept `beside`.

    The page's file holds a little more than four digits of each number that it keeps.
    """
    if actual is None or expected is None:
        return actual is expected
    return math.isclose(actual, expected, rel_tol=0.6 * 10 ** (1 - digits), abs_tol=1.3e-4 * abs(relative_to))
