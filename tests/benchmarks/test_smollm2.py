"""The tasks of `examples/smollm2`, and the plan of their runs."""

import json
import runpy
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from smollm2 import model_folder
from transformers import AutoTokenizer

from benchmarks.smollm2 import __main__ as program
from benchmarks.smollm2 import run, trl_run, trl_step
from benchmarks.smollm2.plan import RATES, best_rate, planned
from outdo.extras.episodes.template import Template
from outdo.extras.episodes.tools import ToolBox
from outdo.extras.page.bands import read_bands
from outdo.extras.sft.conversations import encode_conversation

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/smollm2"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        patch.setattr(sys, "argv", ["data.py", str(folder)])
        runpy.run_path(str(EXAMPLES / "data.py"), run_name="__main__")
    return folder


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("task", ["instructions", "fifty_tokens", "sums_in_words", "reversed_words", "calculator"])
def test_held_out_questions_are_not_trained_on(data: Path, task: str):
    prompts = {
        name: [row["prompt"] for row in rows(data / task / f"{name}.jsonl")] for name in ("train", "rows", "kinds")
    }
    for each in prompts.values():
        assert len(each) == len(set(each)) >= 30
    assert set(prompts["train"]).isdisjoint(prompts["rows"] + prompts["kinds"])


def test_new_kinds_of_instructions_are_in_one_file_only(data: Path):
    module = runpy.run_path(str(EXAMPLES / "instructions.py"))
    new = set(module["NEW_KINDS"])
    assert len(set(module["KINDS"]) - new) >= 12
    for name, expected in (("train", False), ("rows", False), ("kinds", True)):
        for row in rows(data / "instructions" / f"{name}.jsonl"):
            assert bool(new & {kind for kind, _ in row["instructions"]}) == expected


@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        ("at_most", 3, "A small cat.", "The cat is small."),
        ("at_least", 3, "A small cat", "A cat"),
        ("sentences", 2, "A cat sat. Did it?", "A cat sat. It did"),
        ("lines", 2, "a cat\n\nsat", "a cat sat"),
        ("points", 2, "- a\n- b", "- a\nb"),
        ("object", ["a", "b"], '{"b": 1, "a": 2}', '{"a": 1}'),
        ("contains", "gold", "Gold is a metal.", "Golden"),
        ("avoids", "the", "A cat then sat", "The cat"),
        ("first_word", "gold", '"Gold" it is', "It is gold"),
        ("lower_case", None, "a cat 2", "A cat"),
        ("upper_case", None, "A CAT 2", "12"),
        ("quoted", None, '"A cat."', '"A" cat'),
        ("last_word", "gold", "It is gold.", "gold it is"),
        ("question", None, "Is it a cat?", "It is. Is it?"),
        ("twice", "gold", "Gold, gold", "gold gold gold"),
    ],
)
def test_an_instruction_is_followed_or_not(kind: str, value: Any, good: str, bad: str):
    module = runpy.run_path(str(EXAMPLES / "instructions.py"))
    holds = module["KINDS"][kind].holds
    assert (holds(good, value), holds(bad, value), holds("", value)) == (True, False, False)


def test_the_reward_is_the_share_of_the_instructions_and_short_answers_earn_nothing():
    score = runpy.run_path(str(EXAMPLES / "instructions.py"))["score"]
    instructions = [["lower_case", None], ["contains", "gold"]]
    assert score("two cats saw gold here", "cat", instructions) == 1.0
    assert score("two dogs saw gold Here", "cat", instructions) == 1 / 3
    assert score("a cat of gold", "cat", instructions) == 0.0


def test_the_reward_of_fifty_tokens_falls_with_the_distance():
    module = runpy.run_path(str(EXAMPLES / "fifty_tokens.py"))
    assert [module["score"]("", range(n)) for n in (50, 40, 75, 100, 120)] == [1.0, 0.8, 0.5, 0.0, 0.0]
    assert [module["within_five"]("", range(n)) for n in (44, 45, 55, 56)] == [False, True, True, False]


def test_the_reward_of_reversed_words_is_the_share_of_matching_letters():
    module = runpy.run_path(str(EXAMPLES / "reversed_words.py"))
    assert [module["score"](text, "llams lwo") for text in ("llams lwo\n", "xyz", "llams")] == [1.0, 0.0, 10 / 14]
    assert [module["is_equal"](text, "llams lwo") for text in (" llams lwo", "llams owl")] == [True, False]


@pytest.fixture
def calculator(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "calculator.py"))


@pytest.mark.parametrize("expression", ["2**9", "__import__('os')", "1 / 3", "", "(1", "9*" * 30 + "9"])
def test_the_calculator_computes_sums_and_products_and_nothing_else(calculator: dict[str, Any], expression: str):
    assert calculator["calc"]("3 * (4 + 17) - 2") == "61"
    with pytest.raises((ValueError, SyntaxError)):
        calculator["calc"](expression)


@pytest.mark.parametrize("number", range(5))
def test_the_conversations_call_the_calculator_as_outdo_reads_it(calculator: dict[str, Any], number: int):
    row = calculator["question"](Random(number), list(range(10, 100)), calculator["QUESTIONS"])
    shown = calculator["conversation"](row)
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    tokenizer.chat_template = (EXAMPLES / "tools.jinja").read_text()
    (schema,) = shown["tools"]
    assert schema == ToolBox([calculator["calc"]]).schemas[0]
    template = Template(tokenizer, end_ids=[tokenizer.eos_token_id], tools=[schema])
    template.check()
    question, call, result, answer = shown["messages"]
    ids, learned = encode_conversation(tokenizer, shown["messages"], tools=[schema], end_ids=[tokenizer.eos_token_id])
    prompt = template.prompt([question])
    turn = ids[len(prompt) : learned.index(False, len(prompt))]
    assert ids[: len(prompt)] == prompt
    assert template.parse(turn, prompt).message["tool_calls"] == call["tool_calls"]
    after = prompt + turn + template.following(turn, [result])
    assert tokenizer.decode(ids[len(after) :]) == answer["content"] + "<|im_end|>"
    assert not any(learned[len(prompt) + len(turn) : len(after)])


def test_each_band_can_be_read():
    assert all(read_bands(path) for path in EXAMPLES.glob("*.band.toml"))


def made(name: str, lr: float, reward: float) -> dict[str, Any]:
    return {"name": name, "lr": lr, "curve": {"reward": [9.0] * 20 + [reward] * 10}}


def test_a_learning_rate_is_chosen_from_the_tuning_before_any_seed_runs():
    assert [each.name for each in planned([]) if "/grpo/" in each.name] == [f"tuning/grpo/{lr:g}" for lr in RATES]
    results = [made(f"tuning/grpo/{lr:g}", lr, reward) for lr, reward in zip(RATES, (0.5, 0.6, 0.6), strict=True)]
    assert best_rate("grpo", results[:2]) is None
    assert best_rate("grpo", results) == RATES[1]  # the smaller one of two that are equal
    names = [each.name for each in planned(results)]
    assert len(names) == len(set(names))
    assert names[3:6] == ["instructions/grpo/0", "instructions/grpo/1", "instructions/grpo/2"]
    assert {each.lr for each in planned(results) if each.name.startswith("fifty_tokens")} == {RATES[1]}


def test_an_interrupted_run_is_told_from_one_that_failed_and_its_attempts_are_added(tmp_path: Path):
    folder = tmp_path / "run"
    with pytest.raises(run.InterruptedRunError):
        run.process(["sh", "-c", "kill -TERM $$"], folder, 1)
    with pytest.raises(run.FailedRunError, match="ended with 3"):
        run.process(["sh", "-c", "exit 3"], folder, 1)
    found = run.process(
        [sys.executable, "-c", "import os; assert os.environ['OMP_NUM_THREADS'] == '1'; sum(range(10**7))"], folder, 1
    )
    assert found["processor"].endswith(", 1 thread")
    assert found["peak_bytes"] > 1e6
    assert len(rows(tmp_path / "run.usage.jsonl")) == 3


def test_of_a_step_of_trl_that_was_made_twice_the_last_entry_counts(tmp_path: Path):
    entries = [{"step": step, "seconds": step + attempt} for attempt in (0, 9) for step in (1, 2)]
    logged = [{"step": step, "logged": {"reward": step / 4, "num_tokens": 10 * step}} for step in (1, 2)]
    (tmp_path / "log").write_text("".join(json.dumps(each) + "\n" for each in [*entries, *logged]))
    found = trl_run.line_of(tmp_path / "log")
    assert found["curve"]["seconds"] == [10, 11]
    assert (found["curve"]["reward"], found["tokens"]) == ([0.25, 0.5], 20)


def test_the_rows_of_trl_become_groups_and_are_found_again():
    batch = {
        "prompt_ids": torch.tensor([[0, 5], [6, 7], [0, 5]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1], [0, 1]]),
        "completion_ids": torch.tensor([[8, 0], [8, 9], [9, 9]]),
        "completion_mask": torch.tensor([[1, 0], [1, 1], [1, 1]]),
    }
    prompts, completions = (trl_step.unpadded(batch, name) for name in ("prompt", "completion"))
    assert (prompts, completions) == ([[5], [6, 7], [5]], [[8], [8, 9], [9, 9]])
    groups, order = trl_step.groups_of(prompts, completions, {(8,): 1.0, (8, 9): 0.5, (9, 9): 0.0})
    assert order == [0, 2, 1]
    assert [group.prompt.token_ids for group in groups] == [(5,), (6, 7)]
    assert [[each.reward for each in group.rollouts] for group in groups] == [[1.0, 0.0], [0.5]]


def test_the_beginning_of_names_ends_with_a_word(monkeypatch: pytest.MonkeyPatch):
    done = [{"name": f"tuning/target/{lr:g}", "lr": lr, "curve": {"reward": [0.5]}} for lr in RATES]
    monkeypatch.setattr(program, "results", lambda: done)
    assert program.missing("tuning/target") is None
    for only, first in (("tuning/target_essay", "1e-05"), ("instructions/target", "0"), ("", None)):
        found = program.missing(only)
        assert found is not None
        assert first is None or found.name == f"{only}/{first}"
