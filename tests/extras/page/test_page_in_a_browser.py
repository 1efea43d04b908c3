"""The page in a real browser, opened from disk: it shows what was recorded, and a reader can get at all of it."""

import csv
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from browser import PHONE, by_test_id, nearly_equal, number, open_page, watched_page
from playwright.sync_api import Browser, Page, expect
from run_folders import write_small_run

from outdo.algorithms.objectives.presets import grpo
from outdo.extras.page.collect import View
from outdo.extras.page.select import CheckpointComparison
from outdo.extras.record.external import TokenValues, record_step
from outdo.extras.record.parquet import read
from outdo.testing import tiny_model

LAST = 6
"""The step that the page of the small run opens with."""

NOISE = 1e-5
"""Nats by which a token must have moved to have moved."""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(small_run: Path) -> list[Row]:
    """The record of the last step."""
    return read(small_run, LAST).to_pylist()


@pytest.fixture(scope="module")
def opened(browser: Browser, small_page: Path) -> Iterator[Page]:
    """The page of the small run at its last step, drawn once. No test opens another step, or leaves a filter."""
    with watched_page(browser) as page:
        open_page(page, small_page, step=LAST)
        yield page


# -------------------------------------------------------------------------------------------------------- the whole


def test_the_page_opens_from_disk_with_the_run_its_curves_and_its_steps(page: Page, small_page: Path, small_run: Path):
    open_page(page, small_page, step=LAST)
    expect(by_test_id(page, "run-name")).to_have_text(small_run.name)
    for metric in ("reward", "eval/greedy", "moved_as_intended"):
        expect(by_test_id(page, "curve", metric=metric)).to_have_count(1)
    steps = [int(button.get_attribute("data-step") or 0) for button in by_test_id(page, "step-button").all()]
    assert {1, LAST} <= set(steps)
    by_test_id(page, "step-button", step=1).click()
    expect(by_test_id(page, "step-button", step=1)).to_have_attribute("aria-pressed", "true")
    expect(by_test_id(page, "token").first).to_be_visible()


def test_a_phone_shows_the_page_without_horizontal_scrolling(browser: Browser, small_page: Path):
    with watched_page(browser, viewport=PHONE, has_touch=True) as page:
        open_page(page, small_page, step=LAST)
        by_test_id(page, "token").first.tap()
        expect(by_test_id(page, "card")).to_contain_text("Token 1 of")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]


# ----------------------------------------------------------------------------------------------------------- tokens

IN_NATS = {
    "before the step": "old_logprobs", "after the step": "new_logprobs", "engine": "rollout_logprobs",
    "reference": "ref_logprobs", "bound": "bound", "target": "target", "ratio": "ratio", "advantage": "advantages",
    "value": "values", "entropy": "entropy", "policy push": "policy_push", "KL pull": "kl_pull", "weight": "weight",
    "net push": "net_push", "share in net push": "share",
}  # fmt: skip
"""What the card calls a column of the record."""

ROWS_OF_CARD = "card => [...card.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"


def card_of(page: Page) -> dict[str, float | None]:
    """The numbers that the card shows, by their names; the marks before some names left out."""
    return {name.lstrip("○●◇┃◆ "): number(value) for name, value, _ in by_test_id(page, "card").evaluate(ROWS_OF_CARD)}


def of_token(row: Row, index: int) -> dict[str, float | None]:
    """What the card must say of a token, from the record."""
    known = {label: row[name] and row[name][index] for label, name in IN_NATS.items()}
    old, new, bound = known["before the step"], known["after the step"], known["bound"]
    assert old is not None
    assert known["engine"] is not None
    return {
        **known,
        "moved": None if new is None else new - old,
        "gap to bound": None if new is None or bound is None else bound - new,
        "trainer − engine": old - known["engine"],
    }


def test_a_net_push_of_0_stays_0_on_the_page(page: Page, page_of, tmp_path: Path):
    tokens = TokenValues(
        advantages=[0.9, 0.33, -0.33, -0.9],
        old_logprobs=[[-1.0123, -2.0]] * 4,
        new_logprobs=[[-1.0223, -1.9], [-1.0223, -1.95], [-1.0223, -2.05], [-1.0223, -2.1]],
        ref_logprobs=[[-1.0121, -2.01]] * 4,
    )
    record_step(
        tmp_path / "run",
        step=1,
        tokenizer=tiny_model()[1],
        prompts=["a"] * 4,
        completions=["bc", "bd", "be", "bf"],
        rewards=[1.0, 0.75, 0.25, 0.0],  # as the page sorts them
        tokens=tokens,
        objective=grpo(beta=0.04),
    )
    rows = read(tmp_path / "run", 1).to_pylist()
    assert {row["net_push"][0] for row in rows} == {0.0}
    assert all(row["kl_pull"][0] for row in rows)
    open_page(page, page_of(tmp_path / "run"), step=1)
    shown = by_test_id(page, "token")
    for place, row in enumerate(rows):
        shown.nth(2 * place).hover()
        expect(by_test_id(page, "card")).to_contain_text("its net push is 0")
        card = card_of(page)
        assert card["net push"] == 0
        assert nearly_equal(card["push of others"], -(row["policy_push"][0] + row["kl_pull"][0]))
        shown.nth(2 * place + 1).hover()
        expect(by_test_id(page, "card")).not_to_contain_text("its net push is 0")
        assert card_of(page)["push of others"] == 0


def test_a_probability_near_1_shows_what_is_missing(opened: Page):
    missing = [0.2, 0.005, 4.5e-5, 8e-7, 1e-9]
    texts = opened.evaluate("values => values.map(probability)", [math.log1p(-value) for value in missing])
    assert texts == [f"{text}\u00a0%" for text in ("80", "99.5", "99.9955", "99.99992", "99.9999999")]


def is_right(name: str, shown: float | None, truth: Mapping[str, float | None]) -> bool:
    """Moves have digits of their own, however small; a log-probability near 0 those of the one it is kept beside."""
    beside = 0.0
    if name in ("after the step", "engine", "reference", "bound"):
        beside = truth["before the step"] or 0.0
    elif name == "gap to bound":
        beside = truth["moved"] or 0.0
    return nearly_equal(shown, truth[name], relative_to=beside)


def test_the_card_of_a_token_has_every_number_of_the_record(opened: Page, rows: list[Row]):
    places = [(number, index) for number, row in enumerate(rows) for index in range(len(row["token_ids"]))]
    group = None
    for row, index in sorted(random.Random(0).sample(places, 20)):
        if group != rows[row]["group"]:
            group = rows[row]["group"]
            by_test_id(opened, "group-row", group=group).click()
        by_test_id(opened, "token", row=row, index=index).hover()
        card = by_test_id(opened, "card")
        expect(card).to_contain_text(f"Token {index + 1} of {len(rows[row]['token_ids'])}")
        expect(card).to_contain_text(f"id {rows[row]['token_ids'][index]}")
        expect(card).to_contain_text(rows[row]["clip"][index])
        shown, truth = card_of(opened), of_token(rows[row], index)
        wrong = {name: (shown.get(name), truth[name]) for name in truth if not is_right(name, shown.get(name), truth)}
        assert not wrong, (row, index)


def test_the_keyboard_moves_the_focus_pins_and_unpins(opened: Page):
    card = by_test_id(opened, "card")
    by_test_id(opened, "token").first.click()
    opened.keyboard.press("Enter")  # lets go of what the click pinned
    for key, token in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("Home", 1), ("ArrowDown", 1)):
        opened.keyboard.press(key)
        expect(card).to_contain_text(f"Token {token} of")
    opened.keyboard.press("Enter")
    expect(card).to_contain_text("pinned")
    before = card.inner_text()
    by_test_id(opened, "token").nth(5).hover()
    assert card.inner_text() == before
    opened.keyboard.press("Escape")
    expect(card).not_to_contain_text("Token")


PAINT = """() => [...document.querySelectorAll('[data-test=token]')]
    .map(token => getComputedStyle(token).backgroundColor).join()"""


def test_another_quantity_changes_the_colours_and_the_legend(opened: Page):
    seen = set()
    for quantity in by_test_id(opened, "quantity").locator("option").all():
        by_test_id(opened, "quantity").select_option(quantity.get_attribute("value"))
        expect(by_test_id(opened, "legend")).to_contain_text(quantity.inner_text())
        seen.add(opened.evaluate(PAINT))
    assert len(seen) >= 8


def test_spaces_line_breaks_and_bytes_of_tokens_are_visible(opened: Page, rows: list[Row]):
    words = {" carry": "·carry", "\n": "⏎", "\t": "→", "": "e2 82", "€": "€"}
    for row, index, piece in _first_of_each(rows, words):
        by_test_id(opened, "group-row", group=rows[row]["group"]).click()
        expect(by_test_id(opened, "token", row=row, index=index)).to_contain_text(words[piece])


def _first_of_each(rows: Sequence[Row], words: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    pieces = {piece: (row, index) for row, each in enumerate(rows) for index, piece in enumerate(each["pieces"])}
    assert set(words) <= set(pieces), "the run has all of them"
    return ((*pieces[piece], piece) for piece in words)


def test_a_link_opens_the_same_position(page: Page, small_page: Path, browser: Browser):
    open_page(page, small_page)
    by_test_id(page, "step-button", step=1).click()
    by_test_id(page, "group-row", group=2).click()
    by_test_id(page, "quantity").select_option("entropy")
    by_test_id(page, "token").nth(7).click()
    card = by_test_id(page, "card").inner_text()
    with watched_page(browser) as other:
        other.goto(page.url)
        expect(by_test_id(other, "card")).to_contain_text("Token 8 of")
        assert by_test_id(other, "card").inner_text() == card
        expect(by_test_id(other, "quantity")).to_have_value("entropy")
        expect(by_test_id(other, "step-button", step=1)).to_have_attribute("aria-pressed", "true")


# ------------------------------------------------------------------------------------------------ sorting, searching


def test_groups_and_rollouts_can_be_sorted(opened: Page, rows: list[Row]):
    by_test_id(opened, "sort-groups").select_option("best")
    cells = by_test_id(opened, "group-row").locator("[data-label='mean reward']").all_inner_texts()
    means = [number(cell) or 0.0 for cell in cells]
    assert means == sorted(means, reverse=True)
    order = opened.locator("#rollouts").get_by_label("Sort by")
    for choice, of in (("reward", lambda row: -(row["reward"] or 0)), ("length", lambda row: -len(row["token_ids"]))):
        order.select_option(choice)
        shown = [rows[int(each.get_attribute("data-row") or 0)] for each in by_test_id(opened, "rollout").all()]
        assert len(shown) == 8
        assert [of(row) for row in shown] == sorted(of(row) for row in shown)


def test_filters_and_search_keep_and_count_matches(opened: Page, rows: list[Row]):
    def is_counted(kept: list[Row]) -> None:
        groups = len({row["group"] for row in kept})
        expect(by_test_id(opened, "search-count")).to_contain_text(
            f"{len(kept)} of {len(rows)} rollouts in {groups} of"
        )
        expect(by_test_id(opened, "group-row")).to_have_count(groups)

    by_test_id(opened, "filter-verdict").select_option("right")
    is_counted([row for row in rows if row["right"]])
    by_test_id(opened, "filter-verdict").select_option("")
    by_test_id(opened, "filter-reward-min").fill("1")
    is_counted([row for row in rows if row["reward"] == 1])
    by_test_id(opened, "filter-reward-min").fill("")
    by_test_id(opened, "filter-reward-max").fill("0")
    is_counted([row for row in rows if row["reward"] == 0])
    by_test_id(opened, "filter-reward-max").fill("")
    by_test_id(opened, "search").fill("word7")
    is_counted([row for row in rows if "word7" in row["text"]])
    by_test_id(opened, "search").fill("")


def test_no_cell_of_a_saved_table_is_a_formula(page: Page, page_of, tmp_path: Path):
    open_page(page, page_of(write_small_run(tmp_path / "=cmd")))
    with page.expect_download() as saving:
        by_test_id(page, "metrics-csv").click()
    with open(saving.value.path(), encoding="utf-8", newline="") as file:
        assert {row["run"] for row in csv.DictReader(file)} == {"'=cmd"}


# ------------------------------------------------------------------------------------------------ forks and movement

Stretch = tuple[int, float | None]


def stretches(rows: Sequence[Row], begin: int = 0) -> tuple[list[Stretch], list[float]]:
    """The prefix tree of completions: how many take each stretch in which none parts, and with what mean reward.

    And of each fork Σ n·|branch mean - fork mean|, the reward that it tells apart.
    """
    ids = [row["token_ids"] for row in rows]
    end = begin
    while len({tuple(each[: end + 1]) for each in ids}) == 1 and end < len(ids[0]):
        end += 1
    here = mean_reward(rows)
    lines: list[Stretch] = [(len(rows), here)]
    if len({tuple(each) for each in ids}) == 1:
        return lines, []
    turns = {tuple(each[end : end + 1]) for each in ids}
    branches = [[row for row in rows if tuple(row["token_ids"][end : end + 1]) == turn] for turn in turns]
    means = [(len(branch), mean_reward(branch)) for branch in branches]
    forks = [sum(n * abs(mean - here) for n, mean in means if mean is not None and here is not None)]
    for branch in branches:
        below, under = stretches(branch, end)
        lines, forks = lines + below, forks + under
    return lines, forks


def mean_reward(rows: Sequence[Row]) -> float | None:
    scored = [row["reward"] for row in rows if row["reward"] is not None]
    return sum(scored) / len(scored) if scored else None


def test_counts_and_rewards_of_the_prefix_tree_match_the_record(opened: Page, rows: list[Row]):
    group = 0
    by_test_id(opened, "group-row", group=group).click()
    lines, forks = stretches([row for row in rows if row["group"] == group])
    assert len(lines) > 8, "the group has branches"
    counts = map(int, by_test_id(opened, "branch").locator(".count").all_inner_texts())
    means = [number(text.strip(" ▲▼")) for text in by_test_id(opened, "branch").locator(".mean").all_inner_texts()]
    assert Counter(zip(counts, means, strict=True)) == Counter((n, mean and round(mean, 3)) for n, mean in lines)
    size = sum(row["group"] == group for row in rows)
    decisive = sorted((told for told in forks if told > 0), reverse=True)[:3]
    marks = [number(mark.strip("◆ ")) for mark in by_test_id(opened, "decisive").all_inner_texts()]
    assert sorted(marks) == pytest.approx(sorted(2 * [told / size for told in decisive]), rel=0.06)


def moves(rows: Sequence[Row]) -> Iterator[tuple[float, str]]:
    """How far each measured and trained token moved and in which rollout, and whether against its push."""
    for row in rows:
        if row["measured"]:
            names = ("old_logprobs", "new_logprobs", "loss_mask", "net_push")
            for old, new, trained, push in zip(*map(row.__getitem__, names), strict=True):
                if trained and abs(new - old) > NOISE:
                    yield new - old, "wrong" if (new - old) * push < 0 else "right"


@pytest.mark.parametrize(("test", "ways"), [("moved-most", {"right", "wrong"}), ("moved-wrong", {"wrong"})])
def test_the_ten_largest_moves_match_the_record(opened: Page, rows: list[Row], test: str, ways: set[str]):
    known = sorted((move for move, way in moves(rows) if way in ways), key=abs, reverse=True)[:10]
    shown = [number(text) for text in by_test_id(opened, test).locator("li .number").all_inner_texts()]
    assert len(shown) == 10
    assert all(nearly_equal(*pair, 3) for pair in zip(shown, known, strict=True)), (shown, known)
    by_test_id(opened, test).locator("li button").first.click()
    expect(by_test_id(opened, "card")).to_contain_text("Token")
    assert card_of(opened)["moved"] == pytest.approx(known[0], rel=1e-3)


def test_the_page_compares_the_same_text_under_two_checkpoints(page: Page, page_of, small_run: Path, rows: list[Row]):
    def rescore(table: pyarrow.Table) -> pyarrow.Table:
        for name, value in (("a_logprobs", -1.0), ("b_logprobs", -0.75)):
            lists = [[value] * len(row) for row in table["token_ids"].to_pylist()]
            table = table.append_column(name, pyarrow.array(lists, pyarrow.list_(pyarrow.float32())))
        return table

    shown = View(comparison=CheckpointComparison(step=4, a="step_20", b="step_80", rescore=rescore))
    open_page(page, page_of(small_run, shown=shown))
    compare = by_test_id(page, "compare")
    expect(compare).to_contain_text("step_20")
    expect(compare).to_contain_text("step_80")
    for cells in compare.locator("tbody tr").all():
        assert number(cells.locator("td").last.inner_text()) == pytest.approx(0.25, rel=1e-2)
    by_test_id(page, "token").first.hover()
    expect(by_test_id(page, "card")).to_contain_text("b − a")
