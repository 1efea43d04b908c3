"""Where a prefix tree of a group has only single leaves, the page shows which words go with the reward."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from browser import by_test_id, open_page, watched_page
from playwright.sync_api import Browser, Page, expect
from run_folders import write_run

from outdo.extras.record import parquet

READ = (
    "table => [...table.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.textContent.trim()))"
)


def odds_of(page: Page, rows: list[tuple[str, float]]) -> dict[str, Any]:
    return page.evaluate("rows => wordOdds(rows)", rows)


def test_log_odds_by_hand(opened: Page):
    """`so` is in 3 of 3 high and 1 of 2 low texts: log(3.5 / 0.5) - log(1.5 / 1.5) = log 7."""
    texts = [("so 1 one", 1.0), ("so, so 1", 1.0), ("so 1", 1.0), ("no 1", 0.0), ("so 1 no", 0.0)]
    found = odds_of(opened, texts)
    assert (found["high"], found["low"]) == (3, 2)
    words = {each["word"]: each for each in found["words"]}
    assert set(words) == {"so", ",", "one", "no"}  # 1 is in all texts
    assert (words["so"]["high"], words["so"]["low"]) == (3, 1)
    assert words["so"]["odds"] == pytest.approx(math.log(7))
    assert words["so"]["error"] == pytest.approx(math.sqrt(1 / 3.5 + 1 / 0.5 + 1 / 1.5 + 1 / 1.5))
    assert words["no"]["odds"] == pytest.approx(math.log(0.5 / 3.5) - math.log(2.5 / 0.5))
    assert found["words"][0]["word"] == "no"  # log-odds of -3.6 with an error of 1.7: the farthest from 0


def apart(folder: Path) -> Path:
    """A run whose completions have no token in common, but words: the good ones have `carry`, the bad ones `guess`."""
    run = write_run(folder, steps=1, groups=1, group_size=8, length=12, even=True)
    table = parquet.read(run, 1)
    rewards = [float(n < 4) for n in range(8)]
    words = [f"own{n} | {'carry' if reward else 'guess'} | tens".split("|") for n, reward in enumerate(rewards)]
    pieces = [[*own, *[" x"] * 9] for own in words]
    ids = [[1000 + n, 500 if reward else 501, *range(600, 610)] for n, reward in enumerate(rewards)]
    raw = [[piece.encode() for piece in row] for row in pieces]
    columns = {
        "token_ids": pyarrow.array(ids, pyarrow.list_(pyarrow.int32())),
        "pieces": pyarrow.array(pieces, pyarrow.list_(pyarrow.string())),
        "token_bytes": pyarrow.array(raw, pyarrow.list_(pyarrow.binary())),
        "reward": pyarrow.array(rewards, pyarrow.float64()),
    }
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    parquet.write(run, 1, table)
    return run


@pytest.fixture(scope="module")
def opened(browser: Browser, page_of, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with watched_page(browser) as page:
        open_page(page, page_of(apart(tmp_path_factory.mktemp("runs") / "run")))
        yield page


def test_words_are_shown_instead_of_a_tree_of_single_leaves(opened: Page):
    shown = by_test_id(opened, "word-odds")
    expect(shown).to_be_visible()
    expect(by_test_id(opened, "tree")).to_have_count(0)
    rows = shown.evaluate(READ)
    assert rows[0][:3] == ["carry", "4 of 4", "0 of 4"]
    assert rows[0][3] == "+4.4"  # 2 log 9
    assert rows[0][5] == "more than two errors"
    assert rows[1][:3] == ["own0", "1 of 4", "0 of 4"]
    assert rows[1][5] == "may be chance"
    assert "guess" in [row[0] for row in rows]
    assert "tens" not in [row[0] for row in rows]
    expect(opened.locator("#tree")).to_contain_text("(n = 4) than below it (n = 4)")
