"""axe-core, the checker of the field, finds nothing to object to: in either theme, on a desk or a phone, cards open.

And every target is large enough to be hit: 24 by 24 CSS pixels (WCAG 2.2, 2.5.8). With a mouse a token is text in a
line, which that rule leaves out; with a finger it is a target as well.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import PHONE, by_test_id, open_page, violations, watched_page
from playwright.sync_api import Browser, Page, expect
from run_folders import write_small_run
from test_held_out import answers, record

pytestmark = pytest.mark.release

TARGETS = "button, a[href], input, select, summary, [role=button], [role=treeitem], [tabindex='0']:not([role=gridcell])"
TOKENS = "[role=gridcell]"
SMALL = """selector => [...document.querySelectorAll(selector)].filter(each => {
    const { width, height } = each.getBoundingClientRect();
    return each.checkVisibility({ visibilityProperty: true }) && width > 0 && Math.min(width, height) < 23.99;
}).map(each => each.outerHTML.slice(0, 150))"""


@pytest.fixture(scope="module")
def pages(page_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of one run, and that of two seeds and another run, all with held-out answers."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        record(write_small_run(folder / name, seed=seed), {0: answers("wwww"), 6: answers("rrw?"[seed:] + "r" * seed)})
        for name, seed in (("a", 0), ("b", 1), ("c", 1))
    ]
    recipe = runs[2] / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("lr = 1e-4", "lr = 2e-4"))
    return {"one run": page_of(runs[0]), "three runs": page_of(*runs)}


def open_everything(page: Page, path: Path) -> None:
    open_page(page, path)
    page.evaluate("() => document.querySelectorAll('details').forEach(each => { each.open = true })")
    expect(by_test_id(page, "paired")).to_be_visible()
    expect(by_test_id(page, "branch").first).to_be_visible()
    by_test_id(page, "token").first.click()
    expect(by_test_id(page, "card")).to_contain_text("pinned")


@pytest.mark.parametrize(
    ("theme", "name"),
    [
        ("light", "three runs"),
        ("dark", "one run"),
        pytest.param("light", "one run", marks=pytest.mark.long),
        pytest.param("dark", "three runs", marks=pytest.mark.long),
    ],
)
def test_axe_finds_no_violation(browser: Browser, pages: dict[str, Path], theme: str, name: str):
    with watched_page(browser, color_scheme=theme) as page:
        open_everything(page, pages[name])
        assert not violations(page)
        page.set_viewport_size(PHONE)
        assert not violations(page)


@pytest.mark.parametrize("name", ["one run", "three runs"])
def test_every_target_is_at_least_24_pixels_wide_and_high(browser: Browser, pages: dict[str, Path], name: str):
    with watched_page(browser) as page:
        open_everything(page, pages[name])
        assert not page.evaluate(SMALL, TARGETS)
    with watched_page(browser, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        open_everything(page, pages[name])
        assert not page.evaluate(SMALL, f"{TARGETS}, {TOKENS}")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]


def test_on_a_phone_the_card_stands_under_its_token(browser: Browser, pages: dict[str, Path]):
    with watched_page(browser, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        open_page(page, pages["one run"])
        for place in (3, 40):
            token = by_test_id(page, "token").nth(place)
            token.tap()
            expect(by_test_id(page, "card")).to_contain_text("pinned")
            expect(by_test_id(page, "card")).to_be_in_viewport(ratio=0.95)
            box, card = token.bounding_box(), by_test_id(page, "card").bounding_box()
            assert box
            assert card
            assert 0 <= card["y"] - (box["y"] + box["height"]) < 24
            assert box["y"] >= 0
