"""Held-out answers before and after: what was fixed, what was broken, and whether that can be chance."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import by_test_id, open_page
from playwright.sync_api import Page, expect
from run_folders import write_small_run

from outdo.observability.page.held_out import held_out_change, mcnemar
from outdo.storage import held_out_answers


def answers(rights: str, *, kind: str = "greedy", reward: float | None = None) -> list[dict]:
    """One answer per letter: r(ight), w(rong), ? (no verdict)."""
    return [
        {
            **{"kind": kind, "id": str(n), "sample": 0, "prompt": f"question {n}", "answer": "5", "status": "ok"},
            "completion": f"it is {letter}",
            "right": {"r": True, "w": False, "?": None}[letter],
            "reward": float(letter == "r") if reward is None else reward * (n + 1),
        }
        for n, letter in enumerate(rights)
    ]


def record(folder: Path, evaluations: dict[int, list[dict]]) -> Path:
    for step, each in evaluations.items():
        held_out_answers.write(held_out_answers.path_of(folder, step), each)
    return folder


def test_mcnemar_is_the_binomial_test_of_the_changed_pairs():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 0) == pytest.approx(2 / 32)
    assert mcnemar(1, 7) == mcnemar(7, 1) == pytest.approx(2 * (1 + 8) / 256)
    assert mcnemar(4, 4) == 1.0
    assert 0 < mcnemar(900, 700) < 1e-6


def test_answers_are_paired_by_question(tmp_path: Path):
    assert held_out_change(tmp_path) is None
    record(
        tmp_path,
        {
            0: answers("wwwrr?"),
            20: answers("rrrrrr"),
            40: [*reversed(answers("rrwwr?")), *answers("w" * 6, kind="sampled")],
        },
    )
    change = held_out_change(tmp_path)
    assert change is not None
    assert {name: change[name] for name in ("first", "last", "by", "questions", "right")} == {
        **{"first": 0, "last": 40, "by": "right", "questions": 5, "right": 3},
    }
    assert (change["fixed"], change["broken"], change["unchanged"]) == (2, 1, 2)
    assert change["p"] == mcnemar(2, 1)
    shown = [(each["id"], each["change"]) for each in change["shown"]]
    assert sorted(shown) == [("0", "fixed"), ("1", "fixed"), ("3", "broken")]
    assert change["shown"][0]["before"] == "it is w"
    assert change["shown"][0]["after"] == "it is r"


def test_without_verdicts_better_rewards_are_counted(tmp_path: Path):
    record(tmp_path, {0: answers("???", reward=0.2), 8: answers("???", reward=0.3)})
    change = held_out_change(tmp_path)
    assert change is not None
    assert (change["by"], change["fixed"], change["broken"], change["right"]) == ("reward", 3, 0, None)


def test_a_damaged_evaluation_is_no_comparison(tmp_path: Path):
    record(tmp_path, {0: answers("w"), 8: answers("r")})
    held_out_answers.path_of(tmp_path, 8).write_text("{")
    assert held_out_change(tmp_path) is None


def test_the_page_shows_both_answers_and_the_test(page: Page, page_of: Callable[..., Path], tmp_path: Path):
    run = record(write_small_run(tmp_path / "run"), {0: answers("wwwwwwwr"), 6: answers("rrrrrrrw")})
    open_page(page, page_of(run))
    section = by_test_id(page, "held-out")
    expect(section).to_contain_text("Of 8 questions, 7 became right, 1 became wrong, 0 did not change.")
    expect(section).to_contain_text("p = 0.07 (McNemar's exact test, n = 8 changed)")
    first = by_test_id(page, "held-out-answer").first
    first.locator("summary").click()
    expect(first).to_contain_text("it is w")
    expect(first).to_contain_text("it is r")
