"""While a run is alive its page follows it, without being loaded again; when the server is gone the page says so."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import by_test_id, watched_page
from playwright.sync_api import Browser, expect
from run_folders import add_step, start_run

from outdo.run.folder.run_folder import RunFolder

STEPS = 8


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Path]:
    """A run that is at its third step, held by this process as a run that trains is."""
    folder = start_run(tmp_path / "growing", steps=STEPS)
    for step in (1, 2, 3):
        add_step(folder, step, steps=STEPS)
    with RunFolder(folder):
        yield folder


@pytest.fixture
def server(growing: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "outdo.cli.main", "inspect", str(growing)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield process
    process.kill()
    process.communicate()


def address(server: subprocess.Popen[str]) -> str:
    """Where the server says that it can be reached."""
    assert server.stdout
    said = ""
    for line in server.stdout:
        said += line
        if found := re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]+", line):
            return found[0]
    raise AssertionError(f"no address in what it said:\n{said}")


def test_the_page_follows_a_growing_run(browser: Browser, growing: Path, server: subprocess.Popen[str]):
    url = address(server)
    with watched_page(browser, allowed=url.partition("?")[0]) as page:
        page.goto(url)
        page.evaluate("() => { window.loadedOnce = true }")
        expect(page.get_by_text("step 3 of 3")).to_be_visible()
        for step in (4, 5):
            add_step(growing, step, steps=STEPS)
            expect(page.get_by_text(f"step 3 of {step}")).to_be_visible(timeout=600_000)
        slider = by_test_id(page, "step-slider").get_by_role("slider")
        slider.fill("4")
        expect(slider).to_have_attribute("aria-valuetext", "step 5")
        expect(by_test_id(page, "token").first).to_be_visible()
        by_test_id(page, "follow-newest").check()
        add_step(growing, 6, steps=STEPS)
        expect(slider).to_have_attribute("aria-valuetext", "step 6")
        assert page.evaluate("() => window.loadedOnce")


def test_a_page_without_its_server_reports_it_and_stays(browser: Browser, server: subprocess.Popen[str]):
    page = browser.new_page()  # not a watched one: Chromium itself writes of a refused connection to the console
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.goto(address(server))
    before = by_test_id(page, "live-state").inner_text()
    server.kill()
    server.wait()
    expect(by_test_id(page, "live-state")).not_to_have_text(before, timeout=600_000)
    assert by_test_id(page, "token").first.is_visible()
    assert not failures
    page.close()
