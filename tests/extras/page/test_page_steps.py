"""All steps can be opened, by slider and by key; long completions show their beginning and their end."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import by_test_id, open_page, watched_page
from playwright.sync_api import Browser, Page, expect
from run_folders import write_run

from outdo.extras.page.collect import View


@pytest.fixture(scope="module")
def opened(browser: Browser, small_page: Path) -> Iterator[Page]:
    """The page of the small run, drawn once; the first test finds it as it opens."""
    with watched_page(browser) as page:
        open_page(page, small_page)
        yield page


def test_the_page_opens_at_the_step_that_moved_most(opened: Page):
    pressed = opened.locator('[data-test="step-button"][aria-pressed="true"]')
    expect(pressed).to_contain_text("moved most")


def test_the_slider_and_the_keys_open_steps_and_groups(opened: Page):
    slider = by_test_id(opened, "step-slider").get_by_role("slider")
    slider.fill("0")
    expect(slider).to_have_attribute("aria-valuetext", "step 1")
    opened.keyboard.press("Shift+N")
    expect(slider).to_have_attribute("aria-valuetext", "step 2")
    opened.keyboard.press("Shift+P")
    opened.keyboard.press("Shift+P")
    expect(slider).to_have_attribute("aria-valuetext", "step 1")
    title = opened.get_by_role("heading", name=re.compile("What happened to the tokens of group"))
    before = title.inner_text()
    opened.keyboard.press("n")
    expect(title).not_to_have_text(before)
    opened.keyboard.press("p")
    expect(title).to_have_text(before)
    by_test_id(opened, "search").fill("nN")  # keys in a text field are text
    expect(slider).to_have_attribute("aria-valuetext", "step 1")


def test_a_long_completion_shows_its_end_and_how_much_is_left_out(
    page: Page, page_of: Callable[..., Path], tmp_path: Path
):
    run = write_run(tmp_path / "run", steps=1, groups=1, group_size=4, length=3000, even=True)
    open_page(page, page_of(run, shown=View(steps=[1], size=20_000)))
    cells = by_test_id(page, "rollout").first.locator("[data-index]")
    assert 30 < cells.count() < 3000
    expect(cells.last).to_have_text("<|end|>")
    gap = by_test_id(page, "rollout").first.locator("[data-omitted]")
    expect(gap).to_have_count(1)
    left_out = int(re.sub(r"\D", "", gap.get_attribute("data-omitted") or ""))
    assert left_out + cells.count() == 3000
    cells.last.click()
    expect(by_test_id(page, "card")).to_contain_text("Token 3,000 of 3,000")


def test_metrics_are_searched_enlarged_and_saved(opened: Page):
    by_test_id(opened, "search-metrics").fill("entropy")
    expect(by_test_id(opened, "curve")).to_have_count(1)
    by_test_id(opened, "enlarge").click()
    dialog = by_test_id(opened, "enlarged")
    dialog.get_by_text("Values as a table").click()
    expect(dialog.get_by_role("row")).to_have_count(7)
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    by_test_id(opened, "log-scale").check()
    with opened.expect_download() as download:
        by_test_id(opened, "metrics-csv").click()
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 8  # the names, the evaluation before the first step, six steps
    assert lines[0].startswith("run,step,")
