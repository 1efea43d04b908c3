"""An episode of several turns shows who wrote what, what each turn adds up to, and where conversations begin."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from browser import PHONE, by_test_id, open_page, violations, watched_page
from playwright.sync_api import Browser, Locator, Page, expect
from run_folders import write_run
from test_page_accessibility import SMALL, TARGETS, TOKENS

from outdo.extras.page.select import select_rows
from outdo.extras.record import parquet
from outdo.extras.record.table import FORKS

TURNS = [0] * 5 + [-1] * 4 + [1] * 5 + [-1] + [2] * 9
"""Who wrote each token of the first row. Its last turn is another conversation, which goes on after token 3."""

PARTS = (
    (0, 5, "policy, turn 1"),
    (5, 9, "environment"),
    (9, 14, "policy, turn 2"),
    (14, 15, "environment"),
    (15, 24, "policy, turn 3"),
)


def with_columns(run: Path, **columns: tuple[list[Any], Any]) -> Path:
    """The run with other columns in the record of its first step."""
    table = parquet.read(run, 1)
    for name, (rows, kind) in columns.items():
        place = table.column_names.index(name) if name in table.column_names else len(table.column_names)
        table = table.drop_columns(name) if name in table.column_names else table
        table = table.add_column(place, name, pyarrow.array(rows, kind))
    parquet.write(run, 1, table)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of two rows: an episode of three turns in two conversations, and a single answer."""
    run = write_run(tmp_path_factory.mktemp("run") / "run", steps=1, groups=1, group_size=2, length=24, even=True)
    numbers = pyarrow.list_(pyarrow.float32())
    rewards = [0.0] * 4 + [0.25] + [0.0] * 8 + [-0.5] + [0.0] * 9 + [1.0]
    heard = [turn < 0 for turn in TURNS]
    silent = {
        name: ([[None if hears else each for each, hears in zip(first, heard, strict=True)], second], numbers)
        for name in ("policy_push", "kl_pull", "old_logprobs", "new_logprobs")
        for first, second in [parquet.read(run, 1)[name].to_pylist()]
    }
    return with_columns(
        run,
        **silent,
        turn=([TURNS, [0] * 24], pyarrow.list_(pyarrow.int16())),
        token_rewards=([rewards, None], numbers),
        forks=([[{"token": 14, "after": 2}], None], FORKS),
    )


@pytest.fixture(scope="module")
def path(page_of: Callable[..., Path], run: Path) -> Path:
    return page_of(run)


@pytest.fixture(scope="module")
def opened(browser: Browser, path: Path) -> Iterator[Page]:
    """The page of the two rows, drawn once."""
    with watched_page(browser) as page:
        open_page(page, path)
        yield page


def first_rollout(page: Page) -> Locator:
    return by_test_id(page, "rollout", row=0)


def figures(head: Locator) -> dict[str, float]:
    """The numbers of a turn."""
    return {
        each.get_attribute("data-name") or "": float(each.get_attribute("value") or "nan")
        for each in head.locator("data").all()
    }


def test_each_turn_has_its_speaker_and_the_exact_sums_of_the_record(opened: Page, run: Path):
    row = parquet.read(run, 1).to_pylist()[0]
    heads = by_test_id(first_rollout(opened), "turn")
    expect(heads).to_have_count(len(PARTS))
    for head, (start, end, speaker) in zip(heads.all(), PARTS, strict=True):
        expect(by_test_id(head, "fold")).to_have_text(f"▾{speaker}")
        expect(head).to_contain_text(f"{end - start} token")
        tokens = range(start, end)
        sums = {
            "reward": math.fsum(row["token_rewards"][t] for t in tokens),
            "push": math.fsum(row["policy_push"][t] + row["kl_pull"][t] for t in tokens if TURNS[t] >= 0),
            "moved": math.fsum(row["new_logprobs"][t] - row["old_logprobs"][t] for t in tokens if TURNS[t] >= 0),
        }
        assert figures(head) == (pytest.approx(sums, rel=1e-12) if "policy" in speaker else {})
    expect(by_test_id(by_test_id(opened, "rollout", row=1), "turn")).to_have_count(0)


TREE = """() => {
  const ids = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6, 7]];
  const turns = [{ start: 0, begins: false }, { start: 3, begins: true }];
  const rows = ids.map((tokens, number) => ({ number, tokens, length: 4, omitted: 0, reward: 0, turns }));
  const branches = ({ rows, from, to, children }) => [rows.length, from, to, children.map(branches)];
  return branches(treeOf({ token: (row, index) => row.tokens[index] }, rows));
}"""


def test_the_prefix_tree_has_the_first_conversation_of_each_episode(opened: Page):
    """The tokens 4 and 5 begin other conversations: they do not follow the token 3, and are no branches of it."""
    assert opened.evaluate(TREE) == [3, 0, 2, [[2, 2, 3, []], [1, 2, 3, []]]]


def test_a_further_conversation_begins_with_a_line_that_says_what_it_follows(opened: Page):
    line = by_test_id(opened, "conversation")
    expect(line).to_have_text("conversation 2 of this episode, after token 3 above")
    after = line.evaluate("each => each.nextElementSibling.nextElementSibling.firstElementChild.dataset.index")
    assert after == "14"


def test_a_call_and_its_result_can_be_folded_by_mouse_and_keyboard(opened: Page):
    fold = by_test_id(first_rollout(opened), "fold").nth(1)
    result = by_test_id(opened, "token", row=0, index=5)
    expect(result).to_be_visible()
    fold.click()
    expect(result).to_be_hidden()
    expect(fold).to_have_attribute("aria-expanded", "false")
    expect(by_test_id(opened, "token", row=0, index=4)).to_be_visible()
    by_test_id(opened, "token", row=0, index=4).click()
    opened.keyboard.press("ArrowRight")
    expect(by_test_id(opened, "token", row=0, index=9)).to_be_focused()  # what is folded is passed over
    opened.keyboard.press("ArrowLeft")
    expect(by_test_id(opened, "token", row=0, index=4)).to_be_focused()
    fold.focus()
    opened.keyboard.press("Enter")
    expect(result).to_be_visible()
    by_test_id(opened, "fold-all").check()
    expect(result).to_be_hidden()
    expect(by_test_id(opened, "token", row=0, index=9)).to_be_visible()


def test_a_link_to_a_token_opens_the_part_that_it_is_in(page: Page, page_of, tmp_path: Path):
    run = write_run(tmp_path / "long", steps=1, groups=1, group_size=2, length=320, even=True)
    with_columns(run, turn=([[0] * 10 + [-1] * 300 + [1] * 10, [0] * 320], pyarrow.list_(pyarrow.int16())))
    path = page_of(run)
    open_page(page, path)
    expect(by_test_id(page, "token", row=0, index=20)).to_be_hidden()  # a long result is folded
    expect(by_test_id(page, "fold").nth(1)).to_have_attribute("aria-expanded", "false")
    page.goto("about:blank")
    page.goto(f"{path.as_uri()}#step=1&group=0&rollout=0&token=20")
    expect(by_test_id(page, "token", row=0, index=20)).to_be_visible()


def test_an_episode_without_its_middle_has_the_sums_of_all_its_tokens(run: Path):
    whole = select_rows(run, 1).table["turns"].to_pylist()
    part = select_rows(run, 1, tokens=12).table
    assert part["omitted"].to_pylist() == [18, 18]
    assert part["turns"].to_pylist() == whole


@pytest.mark.release
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_turns_are_accessible_on_a_phone(browser: Browser, path: Path, theme: str):
    with watched_page(browser, viewport=PHONE, has_touch=True, is_mobile=True, color_scheme=theme) as page:
        open_page(page, path)
        by_test_id(page, "fold").first.tap()
        assert not violations(page)
        assert not page.evaluate(SMALL, f"{TARGETS}, {TOKENS}")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
