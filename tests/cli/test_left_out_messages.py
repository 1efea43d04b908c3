"""Each command refuses a message that the chat template leaves out, names what it changes, and continues an answer."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_cases import SMALL, Command
from template_cases import CONVERSATIONS, OPENING, TEMPLATES
from transformers import AutoTokenizer

from outdo.extras.record import parquet

LEFT_OUT = "the model's chat template leaves out the system message"


@pytest.fixture
def with_template(chat_model: Path, tmp_path: Path) -> Callable[[str], Path]:
    def made(name: str) -> Path:
        folder = tmp_path / name.replace(" ", "_")
        shutil.copytree(chat_model, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = TEMPLATES[name] + OPENING
        tokenizer.save_pretrained(folder)
        return folder

    return made


def commands(model: Path, data: Path, folder: Path) -> dict[str, tuple[Any, ...]]:
    short = ("--data", data, "--max-tokens", 2, "--device", "cpu")
    recipe = (f"model={model}", f"data.path={data}", f"run={folder / 'run'}", *SMALL, "eval.rows=1")
    return {
        "check": ("check", *recipe),
        "train": ("train", *recipe),
        "eval": ("eval", model, *short, "--rewards", "last_number"),
        "generate": ("generate", model, *short, "--out", folder / "answers.jsonl"),
        "sft": ("sft", model, "--data", data, "--steps", 1, "--device", "cpu", "--out", folder / "tuned"),
    }


def written(rows: list[dict[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("command", ["check", "train", "eval", "generate", "sft"])
def test_a_system_message_that_the_template_leaves_out_is_refused(
    outdo: Command, with_template: Callable[[str], Path], tmp_path: Path, command: str
) -> None:
    rows = [{"prompt": CONVERSATIONS["system"], "answer": str(n), "completion": str(n)} for n in range(4)]
    data = written(rows, tmp_path / "rows.jsonl")
    done = outdo(*commands(with_template("no system"), data, tmp_path)[command])
    assert done.status == 2
    assert LEFT_OUT in " ".join((done.out + done.error).split())
    assert not (tmp_path / "run").exists()


def test_that_of_the_recipe_is_refused_too(
    outdo: Command, with_template: Callable[[str], Path], sums: Path, tmp_path: Path
) -> None:
    arguments = commands(with_template("no system"), sums, tmp_path)["check"]
    done = outdo(*arguments, "data.system=Answer with one number only.")
    assert done.status == 2
    assert LEFT_OUT in " ".join((done.out + done.error).split())


@pytest.mark.parametrize("command", ["check", "eval", "generate"])
def test_thinking_that_the_template_leaves_out_is_named(
    outdo: Command, with_template: Callable[[str], Path], tmp_path: Path, command: str
) -> None:
    rows = [{"prompt": CONVERSATIONS["thinking" if n else "history"], "answer": str(n)} for n in range(4)]
    data = written(rows, tmp_path / "rows.jsonl")
    done = outdo(*commands(with_template("drops thinking"), data, tmp_path)[command])
    assert done.status == 0, done.error
    expected = "the chat template leaves out the thinking of earlier turns: in 3 of 4 prompts looked at, as in that of"
    assert expected in " ".join((done.out + done.error).split())


def test_the_beginning_of_an_answer_is_continued_in_training(
    outdo: Command, with_template: Callable[[str], Path], tmp_path: Path
) -> None:
    rows = [{"prompt": CONVERSATIONS["prefill"], "answer": str(n)} for n in range(4)]
    data = written(rows, tmp_path / "rows.jsonl")
    arguments = commands(with_template("own system"), data, tmp_path)["train"]
    done = outdo(*arguments, "steps=1", "--verbose")
    assert done.status == 0, done.error
    assert "have the beginning of the answer, 'Let me see. <think>\\n' in question 1" in done.out
    assert "begins prompts without a system message with a text of its own: <|system|>You are helpful." in done.out
    prompts = parquet.read(tmp_path / "run", 1).column("prompt").to_pylist()
    assert all(prompt.endswith("<|assistant|>Let me see. <think>\n") for prompt in prompts)
