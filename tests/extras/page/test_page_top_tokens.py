"""The card of a measured token lists the most probable tokens at its place, of the policy and of its teachers."""

import math
from pathlib import Path
from typing import Any

import pyarrow
from browser import by_test_id, open_page
from encoded_pages import unpack
from playwright.sync_api import Page, expect
from run_folders import write_run

from outdo.extras.page.encode import pack
from outdo.extras.record import parquet
from outdo.extras.record.table import TOP

READ = (
    "table => [...table.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.textContent.trim()))"
)


def top(*tokens: tuple[int, str, float]) -> list[dict[str, Any]]:
    """The most probable tokens at one place, from id, text and probability."""
    return [
        {"token_id": number, "piece": piece, "token_bytes": piece.encode(), "logprob": math.log(probability)}
        for number, piece, probability in tokens
    ]


def recorded(folder: Path, before: bool, *, teacher: Any = None) -> Path:
    """A run whose first rollout alone has them, at each of its tokens; `teacher` has those of the teachers."""
    run = write_run(folder, steps=1, groups=1, group_size=3, length=24)
    table = parquet.read(run, 1)
    (first, *_), (piece, *_) = table["token_ids"].to_pylist()[0], table["pieces"].to_pylist()[0]
    count = len(table["token_ids"][0])
    old = top((first, piece, 0.5), (901, " nine", 0.3), (902, "<b>", 0.1))
    new = top((first, piece, 0.75), (901, " nine", 0.2), (903, "\u202e", 0.04))
    for name, values in (("old_top", old if before else None), ("new_top", new), ("teacher_top", teacher)):
        column = pyarrow.array([values and [values] * count, None, None], TOP)
        table = table.append_column(name, column)
    parquet.write(run, 1, table)
    return run


def test_the_card_lists_the_most_probable_tokens_before_and_after(page: Page, page_of, tmp_path: Path):
    open_page(page, page_of(recorded(tmp_path / "run", before=True)))
    by_test_id(page, "token", row=0, index=0).hover()
    shown = by_test_id(page, "alternatives")
    sampled, nine, bold, hidden = shown.evaluate(READ)
    assert sampled[0].startswith("▸")
    assert "(sampled)" in sampled[0]
    assert sampled[1:] == ["50\u00a0%", "75\u00a0%"]
    assert nine == ["·nine", "30\u00a0%", "20\u00a0%"]
    assert bold == ["<b>", "10\u00a0%", "< 4\u00a0%"]
    assert hidden == ["⟨RLO⟩", "< 10\u00a0%", "4\u00a0%"]
    by_test_id(page, "token", row=1, index=0).hover()
    expect(by_test_id(page, "card")).to_be_visible()
    expect(shown).to_have_count(0)


def test_the_card_says_what_the_teacher_would_have_written(page: Page, page_of, tmp_path: Path):
    wanted = top((901, " nine", 0.6), (904, " ten", 0.05))
    open_page(page, page_of(recorded(tmp_path / "run", before=True, teacher=wanted)))
    by_test_id(page, "token", row=0, index=0).hover()
    said = by_test_id(page, "teacher-writes")
    expect(said).to_have_text("The teacher would most likely write ·nine here: 60\u00a0%.")
    rows = {name: cells for name, *cells in by_test_id(page, "alternatives").evaluate(READ)}
    assert rows["·nine"] == ["30\u00a0%", "20\u00a0%", "60\u00a0%"]
    assert rows["<b>"] == ["10\u00a0%", "< 4\u00a0%", "< 5\u00a0%"]
    assert rows["·ten"] == ["< 10\u00a0%", "< 4\u00a0%", "5\u00a0%"]
    by_test_id(page, "token", row=1, index=0).hover()
    expect(said).to_have_count(0)


def test_most_probable_tokens_are_encoded_for_the_rows_that_have_them(tmp_path: Path):
    table = parquet.read(recorded(tmp_path / "run", before=True), 1)
    header, columns = unpack(pack(table.take([1, 0])))
    assert "old_top" not in header["rows"][0]
    assert header["rows"][1]["old_top"] == header["rows"][1]["new_top"] == 0
    words = [header["vocabulary"][int(each)][1] for each in columns["new_top"][:3]]
    assert words[1:] == [" nine", "\u202e"]
    assert [round(math.exp(each), 2) for each in columns["new_top_logprobs"][:3]] == [0.75, 0.2, 0.04]
    assert all(math.isnan(each) for each in columns["new_top_logprobs"][3:5])
