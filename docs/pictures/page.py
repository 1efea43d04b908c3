"""Draw the pictures of the page from runs: python docs/pictures/page.py RUN [SEED SEED ...] [--careless RUN]

RUN is a run of `outdo quickstart --task sums`; from it come page_top.png (and page_top_dark.png), page_tokens.png,
page_card.png and page_tree.png. From runs that differ in the seed come page_runs.png and page_seeds.png, and from a run
of `outdo quickstart --careless` page_careless.png and page_careless_dark.png. They are written next to this script.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
from browser import by_test_id, chromium, launch

from outdo.extras.page.html import render_page
from outdo.extras.page.runs import collect_runs

HERE = Path(__file__).parent
WIDTH = 1440
NARROW = 900
"""The width of the pictures in README, which is read in a column."""


def shoot(page: Page, name: str, first: str, height: int, above: int = 12) -> None:
    """Take a picture of the page's whole width, from a little above an element."""
    top = page.locator(first).first.evaluate("each => each.getBoundingClientRect().top + scrollY")
    clip = {"x": 0, "y": max(0, top - above), "width": WIDTH, "height": height}
    page.screenshot(path=HERE / name, full_page=True, clip=clip)  # type: ignore[arg-type]


def open_run(page: Page, runs: list[Path], place: str = "") -> None:
    """Open the page of runs, at a place as its address names it, with every curve drawn."""
    with tempfile.NamedTemporaryFile(suffix=".html") as file:
        Path(file.name).write_text(render_page(collect_runs(runs)), encoding="utf-8")
        page.goto("about:blank")
        page.goto(Path(file.name).as_uri() + place)
        by_test_id(page, "token").first.wait_for()
        by_test_id(page, "paired").wait_for()
        page.wait_for_timeout(2000)  # until the browser had time for the curves that are far from its window


def of_sums(page: Page, run: Path) -> None:
    """Draw tokens, a token's card and the forks of a question."""
    open_run(page, [run])
    open_run(page, [run], "#step=1&group=1&by=moved")
    shoot(page, "page_tokens.png", "#rollouts", 740, above=-20)
    open_run(page, [run], "#step=1&group=1&rollout=0&token=16&by=moved")
    shoot(page, "page_card.png", ".bench", 620)
    shoot(page, "page_tree.png", "#tree", 770, above=-20)


def of_seeds(page: Page, runs: list[Path]) -> None:
    """Draw the table and the curves of several runs."""
    open_run(page, runs)
    page.screenshot(path=HERE / "page_runs.png")
    shoot(page, "page_seeds.png", ".key", 470)


def of_careless(page: Page, run: Path, name: str) -> None:
    """Draw what the page of a hack says first."""
    open_run(page, [run])
    top, end = (page.locator(each).first.bounding_box() for each in ("#curves h2", ".tiles"))
    assert top
    assert end
    clip = {"x": 0, "y": top["y"] - 12, "width": NARROW, "height": end["y"] + end["height"] - top["y"] + 12}
    page.screenshot(path=HERE / name, full_page=True, clip=clip)  # type: ignore[arg-type]


def main() -> None:
    """Draw the pictures of the runs that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="of quickstart --task sums")
    parser.add_argument("seeds", type=Path, nargs="*")
    parser.add_argument("--careless", type=Path, help="run of quickstart --careless")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        executable = chromium(playwright)
        assert executable
        browser = launch(playwright, executable)
        if given.run:
            for theme, name in (("light", "page_top.png"), ("dark", "page_top_dark.png")):
                page = browser.new_page(viewport={"width": WIDTH, "height": 905}, color_scheme=theme)  # type: ignore[arg-type]
                open_run(page, [given.run])
                page.screenshot(path=HERE / name)
        page = browser.new_page(viewport={"width": WIDTH, "height": 905}, color_scheme="light")
        for draw, runs in ((of_sums, given.run), (of_seeds, given.seeds)):
            if runs:
                draw(page, runs)
        for theme, name in (("light", "page_careless.png"), ("dark", "page_careless_dark.png")):
            if given.careless:
                size: Any = {"width": NARROW, "height": 905}
                page = browser.new_page(viewport=size, color_scheme=theme, device_scale_factor=2)  # type: ignore[arg-type]
                of_careless(page, given.careless, name)
        browser.close()


if __name__ == "__main__":
    main()
