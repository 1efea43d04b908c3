"""A chat template that writes the date writes that of the run's start: after a resume, in an evaluation, in the export.

A day passes between any two looks at the clock.
"""

import json
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command_cases import SMALL, Command
from transformers import AutoTokenizer, PreTrainedTokenizerBase

DATE = "{{ strftime_now('%d %b %Y %f') }}|"
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
Written = Callable[[], set[str]]


@pytest.fixture(scope="module")
def dated(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chat template begins with the date, to the microsecond."""
    folder = tmp_path_factory.mktemp("models") / "dated"
    shutil.copytree(chat_model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = DATE + TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    """The dates that the chat template has written since the last call, while the days pass."""
    days, rendered, apply = count(), list[str](), PreTrainedTokenizerBase.apply_chat_template

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2027, 1, 31, 9, 5, 3) + timedelta(days=next(days))

    def recorded(*arguments: Any, **options: Any) -> Any:
        text = apply(*arguments, **options)
        rendered.append(text)
        return text

    def dates() -> set[str]:
        found = {text.partition("|")[0] for text in rendered if isinstance(text, str)}
        rendered.clear()
        return found

    monkeypatch.setattr("outdo.models.template_header.datetime", Clock)
    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", recorded)
    return dates


def test_a_run_keeps_the_date_of_its_start(
    outdo: Command, dated: Path, sums: Path, tmp_path: Path, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, exported, out = tmp_path / "run", tmp_path / "exported", ("--out", tmp_path / "answers.jsonl")
    data = (f"data.path={sums}", "data.eval_rows=4", "data.template={unread=1}")
    settings = (f"model={dated}", *data, f"run={run}", *SMALL)
    checked = outdo("check", *settings)
    assert "model: its chat template writes the date; the run keeps that of its start" in checked.out
    written()
    trained = outdo("train", *settings, "checkpoint.every=1", "--verbose")
    assert trained.status == 0, trained.error
    assert "date in the chat template: 2027-" in trained.out
    assert 'template = {unread = 1, strftime_now = "2027-' in (run / "recipe.toml").read_text()
    (date,) = {text for text in written() if text.endswith(" 000000")}  # the others are those of the check before it
    monkeypatch.setattr("outdo.cli.chat._lines", lambda _: iter(["1+1=", "2+2="]))
    ask = ("--data", sums, "--rewards", "last_number", "--limit", 2, "--max-tokens", 2, "--device", "cpu")
    for command in (
        ("resume", run, "steps=3"),
        ("train", *settings, "steps=4", "--resume"),
        ("eval", run),
        ("eval", run, "--against", dated),
        ("eval", run, "--template", "{unread = 1}"),
        ("generate", run, "--data", sums, "--limit", 2, *out),
        ("chat", run, "--max-tokens", 2),
        ("export", run, exported),
        ("eval", exported, *ask),
    ):
        done = outdo(*command)
        assert done.status == 0, done.error
        assert written() <= {date}, command
    assert "It writes that date and not today's." in (exported / "README.md").read_text()


@pytest.mark.parametrize("template", [None, "{unread = 1}"])
@pytest.mark.parametrize("command", ["sft", "reward-model"])
def test_a_model_that_is_fine_tuned_keeps_the_date(
    outdo: Command, command: str, template: str | None, dated: Path, tmp_path: Path, written: Written
) -> None:
    rows = [{"prompt": f"{n}?", "chosen": "2", "rejected": "3"} for n in range(9)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = ("--data", tmp_path / "pairs.jsonl", "--steps", 1, "--device", "cpu", "--out", tmp_path / "trained")
    done = outdo(command, dated, *how, *(("--template", template) if template else ()))
    assert done.status == 0, done.error
    assert "; the trained model keeps it" in done.out
    (date,) = written()
    messages = [{"role": "user", "content": "?"}]
    again = AutoTokenizer.from_pretrained(tmp_path / "trained").apply_chat_template(messages, tokenize=False)
    assert again.startswith(f"{date}|")


def test_two_models_are_compared_on_one_date_which_is_noted_or_set(
    outdo: Command, dated: Path, sums: Path, tmp_path: Path, written: Written
) -> None:
    other = tmp_path / "other"
    shutil.copytree(dated, other)
    ask = ("--data", sums, "--rewards", "last_number", "--limit", 2, "--max-tokens", 2, "--device", "cpu")
    done = outdo("eval", dated, "--against", other, *ask)
    assert done.status == 0, done.error
    for model in (dated, other):
        assert (
            f"note: the chat template of {model} writes the date, so that prompts differ from day to day" in done.error
        )
    assert len(written()) == 1
    done = outdo("eval", dated, *ask, "--template", "{strftime_now = 2024-02-29}")
    assert (written(), "writes the date" in done.error) == ({"29 Feb 2024 000000"}, False)
    done = outdo("generate", dated, "--data", sums, "--limit", 1, "--max-tokens", 2, "--out", tmp_path / "a.jsonl")
    assert "writes the date" in done.error
    assert len(written()) == 1
    wrong = outdo("eval", dated, *ask, "--template", "{strftime_now = 'today'}")
    assert "expected a date such as 2026-11-28 for strftime_now" in wrong.error
