"""A page is small enough to be mailed, and opens before one has looked away."""

import time
from pathlib import Path

import pytest
from browser import by_test_id
from playwright.sync_api import Page
from run_folders import write_long_run, write_wide_run

MEGABYTE = 1_000_000


def seconds_to_open(page: Page, path: Path, ready: str) -> float:
    """Until `ready` is there and drawn; the best of three, since others use this machine as well."""
    best = float("inf")
    for _ in range(3):
        page.goto("about:blank")
        started = time.perf_counter()
        page.goto(path.as_uri())
        by_test_id(page, ready).first.wait_for()
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        best = min(best, time.perf_counter() - started)
    return best


@pytest.mark.parametrize(
    ("write", "ready", "bound"), [(write_wide_run, "token", 2.5), (write_long_run, "curve", 3.0)], ids=["wide", "long"]
)
def test_a_page_opens_fast_and_is_small(page: Page, tmp_path: Path, page_of, write, ready: str, bound: float):
    path = page_of(write(tmp_path / "run"))
    seconds = seconds_to_open(page, path, ready)
    print(f"{write.__name__}: {path.stat().st_size / MEGABYTE:.2f} MB, opened in {seconds:.2f} s")
    assert path.stat().st_size < 1.5 * MEGABYTE
    assert seconds < bound
