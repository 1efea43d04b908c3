"""Held-out answers of any two evaluations: what was fixed, what was broken, and whether that can be chance."""

import base64
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import by_test_id, open_page
from playwright.sync_api import Page, expect
from rich.console import Console
from run_folders import write_small_run

from outdo.extras.page.collect import View
from outdo.extras.page.command import InspectArguments, run_inspect
from outdo.extras.page.held_out import compare_evaluations, held_out_data
from outdo.run.display import Display
from outdo.run.evaluation import held_out_completions
from outdo.run.folder import reads
from outdo.utils.errors import RunFolderError, UserError
from outdo.utils.outcome import mcnemar


def answers(rights: str, *, kind: str = "greedy", reward: float | None = None, text: str = "it is") -> list[dict]:
    """One answer per letter: r(ight), w(rong), ? (no verdict)."""
    return [
        {
            **{"kind": kind, "id": str(n), "sample": 0, "prompt": f"question {n}", "answer": "5", "status": "ok"},
            "completion": f"{text} {letter}",
            "right": {"r": True, "w": False, "?": None}[letter],
            "reward": float(letter == "r") if reward is None else reward * (n + 1),
        }
        for n, letter in enumerate(rights)
    ]


def record(folder: Path, evaluations: dict[int, list[dict]]) -> Path:
    for step, each in evaluations.items():
        held_out_completions.write(held_out_completions.path_of(folder, step), each)
    return folder


def content(data: dict[str, Any] | None) -> dict[str, Any]:
    """The content of the blob, as the page reads it."""
    assert data is not None
    return json.loads(gzip.decompress(base64.b64decode(data["blob"])))


def said_by_inspect(run: Path, *points: str, out: Path) -> str:
    console = Console(file=io.StringIO(), width=1000)
    first, last = points
    run_inspect([run], InspectArguments(compare=(first, last), out=out), Display(console))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_answers_are_paired_by_question(tmp_path: Path):
    record(
        tmp_path,
        {
            0: answers("wwwrr?"),
            20: answers("rrrrrr"),
            40: [*reversed(answers("rrwwr?")), *answers("w" * 6, kind="sampled")],
        },
    )
    change = compare_evaluations(tmp_path, 0, 40)
    assert (change.by, change.questions, change.fixed, change.broken, change.unchanged) == ("right", 5, 2, 1, 2)
    assert change.p == mcnemar(2, 1)
    later = compare_evaluations(tmp_path, 20, 40)
    assert (later.questions, later.fixed, later.broken) == (5, 0, 2)


def test_a_damaged_evaluation_is_left_out_of_the_page_and_cannot_be_compared(tmp_path: Path):
    assert held_out_data(tmp_path) is None
    record(tmp_path, {0: answers("w"), 4: answers("w"), 8: answers("r")})
    held_out_completions.path_of(tmp_path, 4).write_text("{")
    data = held_out_data(tmp_path)
    assert data is not None
    assert data["steps"] == [0, 8]
    with pytest.raises(RunFolderError, match=r"step_000004\.jsonl: is damaged"):
        compare_evaluations(tmp_path, 0, 4)


def test_a_page_has_the_values_of_all_evaluations_and_the_texts_that_fit(tmp_path: Path):
    steps = range(0, 60, 10)
    record(tmp_path, {step: answers("wr" * 50, text=f"{step} " + "0123456789abcdef" * 9) for step in steps})
    record(tmp_path, {50: answers("wr" * 49 + "rr", text="changed")})
    whole = held_out_data(tmp_path)
    found = content(whole)
    assert whole is not None
    assert whole["steps"] == [*steps]
    assert whole["pair"] == [0, 50]
    assert all(len(values) == 100 for values in found["values"])
    assert None not in [text for texts in found["texts"] for text in texts]
    small = held_out_data(tmp_path, size=len(whole["blob"]) // 2)
    assert small is not None
    assert len(small["blob"]) <= len(whole["blob"]) // 2
    found = content(small)
    assert found["values"] == content(whole)["values"]
    changed = found["ids"].index("98")
    assert found["questions"][changed] == ["question 98", "5"]
    assert found["texts"][0][changed].startswith("0 0123")  # the question that changed comes first
    assert None in found["texts"][2]


# ------------------------------------------------------------------------------------------------------- the command


def test_inspect_compares_any_two_evaluations(tmp_path: Path):
    run = record(write_small_run(tmp_path / "run"), {0: answers("wwwr"), 4: answers("rrrw"), 6: answers("rrrr")})
    said = said_by_inspect(run, "start", "step_4", out=tmp_path / "page.html")
    assert (
        "held-out answers before the first step and after step 4: of 4 questions 3 became right, 1 became wrong" in said
    )
    assert "0 did not change; p = 0.62 (McNemar's exact test, n = 4 that changed)" in said
    assert "of 4 questions 1 became right" in said_by_inspect(run, "4", "step_000006", out=tmp_path / "page.html")


def test_rewards_are_compared_by_the_sign_test(tmp_path: Path):
    before, after = answers("????", reward=0.1), answers("????", reward=0.2)
    run = record(write_small_run(tmp_path / "run"), {0: before, 6: after})
    said = said_by_inspect(run, "start", "step_6", out=tmp_path / "page.html")
    assert "4 got a better reward, 0 got a worse one" in said
    assert "(exact sign test, n = 4 that changed)" in said


def test_points_that_cannot_be_compared_are_named_with_those_that_can(tmp_path: Path):
    run = record(write_small_run(tmp_path / "run"), {0: answers("w"), 6: answers("r")})
    (run / "checkpoints/step_000004").mkdir(parents=True)
    with pytest.raises(
        UserError, match="--compare strat: neither an evaluation nor a checkpoint; evaluations: start, step_6; "
    ):
        said_by_inspect(run, "strat", "6", out=tmp_path / "page.html")
    with pytest.raises(UserError, match=r"takes two evaluations or two checkpoints; .*checkpoints: step_4"):
        said_by_inspect(run, "start", "4", out=tmp_path / "page.html")
    with pytest.raises(UserError, match="--compare takes two different points"):
        said_by_inspect(run, "start", "0", out=tmp_path / "page.html")


# ---------------------------------------------------------------------------------------------------------- the page


def test_the_page_shows_both_answers_and_the_test(page: Page, page_of: Callable[..., Path], tmp_path: Path):
    run = record(write_small_run(tmp_path / "run"), {0: answers("wwwwwwwr"), 6: answers("rrrrrrrw")})
    open_page(page, page_of(run))
    section = by_test_id(page, "held-out")
    expect(section).to_contain_text("Of 8 questions: 7 became right, 1 became wrong, 0 did not change.")
    expect(section).to_contain_text("p = 0.07 (McNemar's exact test, n = 8 that changed)")
    first = by_test_id(page, "held-out-answer").first
    first.locator("summary").click()
    expect(first).to_contain_text("it is w")
    expect(first).to_contain_text("it is r")
    page.locator('[data-test="answers-of"][data-kind="broken"]').click()
    expect(by_test_id(page, "held-out-answer")).to_have_count(1)
    expect(by_test_id(page, "held-out-answer")).to_contain_text("question 7")


SENTENCE = "A bridge with a quiet interior is a perfect place for a long walk before the first rain of winter."


def test_a_long_answer_is_listed_by_its_end_if_a_reference_decides(page: Page, page_of, tmp_path: Path):
    before, after = ({**answers(letter)[0], "answer": "winter"} for letter in "wr")
    evaluations = {0: [before], 6: [after | {"completion": SENTENCE}]}
    open_page(page, page_of(record(write_small_run(tmp_path / "run"), evaluations)))
    question = by_test_id(page, "held-out-answer")
    shown = "…place for a long walk before the first rain of winter."
    expect(question.locator("summary")).to_contain_text(f"it is w → {shown}")
    question.locator("summary").click()
    expect(question).to_contain_text(SENTENCE)
    expect(question.get_by_text("Expected:")).to_have_count(1)


def test_any_two_evaluations_can_be_chosen_on_the_page(page: Page, page_of: Callable[..., Path], tmp_path: Path):
    evaluations = {0: answers("wwwww"), 2: answers("rrrww"), 4: answers("wrrrr"), 6: answers("rrrrr")}
    run = record(write_small_run(tmp_path / "run"), evaluations)
    open_page(page, page_of(run, shown=View(evaluations=(2, 4))))
    paired = by_test_id(page, "paired")
    expect(paired).to_contain_text("Of 5 questions: 2 became right, 1 became wrong, 2 did not change.")
    by_test_id(page, "compare-b").select_option(label="before the first step")  # the earlier one always comes first
    expect(paired).to_contain_text("3 became right, 0 became wrong, 2 did not change")
    by_test_id(page, "compare-a").select_option(label="after step 6")
    expect(paired).to_contain_text("5 became right, 0 became wrong, 0 did not change")
    expect(paired).to_contain_text("p = 0.063")


def test_the_page_computes_the_same_test(page: Page, small_page: Path):
    open_page(page, small_page)
    for fixed, broken in ((0, 0), (5, 0), (1, 7), (30, 18), (900, 840)):
        assert page.evaluate(f"() => mcnemar({fixed}, {broken})") == pytest.approx(mcnemar(fixed, broken), rel=1e-9)


def test_the_words_of_a_question_are_shaded_by_how_much_its_answers_read_them(page: Page, page_of, tmp_path: Path):
    run = record(write_small_run(tmp_path / "run"), {0: answers("w"), 6: answers("r")})
    for step, nats in ((0, 20.1), (6, 0.0)):
        read = {"start": 9, "end": 10, "other": "1", "place": "question _", "lost": nats}
        reads.write(run, "held_out", step, [{"id": "0", "question": "question 0", "answers": 1, "reads": [read]}])
    open_page(page, page_of(run))
    by_test_id(page, "held-out-answer").first.locator("summary").click()
    words = by_test_id(page, "read-word")
    expect(words).to_have_count(2)
    expect(words.first).to_have_class("token r8")
    expect(words.first).to_have_text("0 20")
    expect(words.last).to_have_class("token ")


@pytest.mark.parametrize("damaged", ['{"id": 0', '{"id": 0, "question": "question 0", "reads": [{"start": 1}]}'])
def test_a_damaged_file_of_what_answers_read_is_left_out_of_the_page(tmp_path: Path, damaged: str):
    run = record(tmp_path, {0: answers("w"), 6: answers("r")})
    (run / "reads").mkdir()
    (run / "reads/held_out_000006.jsonl").write_text(damaged)
    assert content(held_out_data(run))["reads"] == [[None], [None]]
