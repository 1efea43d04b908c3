"""`examples/small_models`: its data are what they say, its models can read and write them, and its recipes learn."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kill_cases import assert_same, killed_and_resumed, newest
from run_cases import Command, outdo_, steps_done, wait_until

from examples.small_models import calculator, guessing, programs
from outdo.config.file import load
from outdo.extras.episodes.template import Template
from outdo.extras.episodes.tools import ToolBox
from outdo.extras.quickstart.model import build, small_tokenizer
from outdo.models.prompt_encoding import encode_prompt
from outdo.types import Prompt

FOLDER = Path(__file__).parents[2] / "examples/small_models"
TASKS = {"calculator": calculator, "guessing": guessing, "programs": programs}


def tokenizer_of(name: str) -> Any:
    tokenizer = small_tokenizer(TASKS[name].TOKENS)
    if "<assistant>" in TASKS[name].TOKENS:
        tokenizer.chat_template = (FOLDER / "template.jinja").read_text()
    return tokenizer


def texts(row: Any) -> Iterator[str]:
    yield from (row[name] for name in ("prompt", "completion") if name in row)
    for message in row.get("messages", []):
        yield message["content"]
        yield from (json.dumps(call["function"]) for call in message.get("tool_calls", []))


@pytest.mark.parametrize("name", TASKS)
def test_all_that_is_said_in_a_task_is_read_without_an_unknown_token_and_fits_the_model(name: str) -> None:
    tokenizer, rows = tokenizer_of(name), TASKS[name].rows(0)
    for row in [*rows["demonstrations"][:200], *rows["questions"][:50], *rows["held_out"][:50]]:
        for text in texts(row):
            ids = tokenizer.encode(text)
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == text.replace(" ", "")
    longest = max(len(tokenizer.encode("".join(texts(row)))) for row in rows["demonstrations"])
    assert longest + 20 <= 64


@pytest.mark.parametrize("name", TASKS)
def test_data_follow_from_the_seed_and_held_out_questions_do_not_and_are_never_trained_on(name: str) -> None:
    first, again, other = (TASKS[name].rows(seed) for seed in (0, 0, 1))
    assert first == again
    assert first["questions"] != other["questions"]
    assert first["demonstrations"] != other["demonstrations"]
    assert first["held_out"] == other["held_out"]
    trained, held_out = ({row["prompt"] for row in first[kind]} for kind in ("questions", "held_out"))
    assert not trained & held_out or name == "guessing"  # whose questions are all the same


@pytest.mark.parametrize("name", TASKS)
def test_a_recipe_is_accepted_and_evaluates_on_all_held_out_questions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER.parents[1])
    recipe = load(FOLDER / f"{name}.toml")
    assert recipe.eval.rows == len(TASKS[name].rows(0)["held_out"])


@pytest.mark.parametrize(("name", "tools"), [("calculator", [calculator.calc]), ("guessing", [])])
def test_the_chat_template_gives_the_tokens_of_an_episode_exactly(name: str, tools: list[Any]) -> None:
    tokenizer = tokenizer_of(name)
    template = Template(tokenizer, end_ids={tokenizer.eos_token_id}, tools=ToolBox(tools).schemas)
    template.check()
    properties = template.properties
    assert properties.keeps_prefix or not tools
    assert properties.independent


def test_a_call_as_the_teacher_writes_it_is_read_back() -> None:
    tokenizer = tokenizer_of("calculator")
    template = Template(tokenizer, end_ids={tokenizer.eos_token_id}, tools=ToolBox([calculator.calc]).schemas)
    row = calculator.demonstration(calculator.Product(34, 28), Random(3), guesses=0, mistyped=0)
    question, turn, result, answer = row["messages"]
    assert (result["content"], answer["content"]) == ("952", "#952")
    prompt = encode_prompt(tokenizer, [question], tools=row["tools"])
    whole = encode_prompt(tokenizer, [question, turn, result], tools=row["tools"])
    sampled = whole[len(prompt) : whole.index(tokenizer.eos_token_id, len(prompt)) + 1]
    parsed = template.parse(sampled, prompt)
    (call,) = parsed.message["tool_calls"]
    assert call["function"] == {"name": "calc", "arguments": {"expression": "34*28"}}
    assert whole == [*prompt, *sampled, *template.following(sampled, [result])]


# ---------------------------------------------------------------------------------------------------------- calculator


@pytest.mark.parametrize("expression", ["", "3*", "3**9", "2*3*4", "9999999999*1", "__import__('os')", "٣*٣"])
def test_the_tool_computes_with_two_numbers_and_refuses_everything_else(expression: str) -> None:
    assert [calculator.calc(text) for text in ("34*28", "5-12", "999999999+1")] == ["952", "-7", "1000000000"]
    with pytest.raises(ValueError, match="expected two numbers"):
        calculator.calc(expression)


# ------------------------------------------------------------------------------------------------------------ guessing


def game(secret: int) -> guessing.Game:
    new = guessing.Game()
    new.begin(Prompt(id="1", text="1-7", token_ids=(1,), answer=str(secret)))
    return new


def test_a_guess_costs_more_if_an_earlier_hint_excludes_it() -> None:
    played = game(5)
    replies = [played.reply({"content": text}) for text in ("2", "2", "7", "7", "eleven", "6")]
    assert [reply.messages[0]["content"] for reply in replies] == [
        "higher", "higher", "lower", "lower", "higher", "lower"
    ]  # fmt: skip
    assert [reply.reward for reply in replies] == [-0.1, -0.3, -0.1, -0.3, -0.3, -0.1]
    assert played.final_reward() is False
    assert played.reply({"content": "5"}).done
    assert played.final_reward() is True


# ------------------------------------------------------------------------------------------------------------ programs


def chain(text: str) -> programs.Chain:
    return tuple(programs.Operation(sign, int(number)) for sign, number in zip(text[::2], text[1::2], strict=True))


def printed(program: str, x: int) -> int:
    return eval(program.removeprefix(programs.BEGIN).removesuffix(")"), {"x": x})


def test_a_program_does_the_operations_in_turn() -> None:
    assert programs.program(chain("+3*2-4*5")) == "x=int(input());print(((x+3)*2-4)*5)"
    assert programs.program(chain("+3*2-4*5"), forgotten={3}) == "x=int(input());print((x+3)*2-4*5)"
    assert programs.value(chain("+3*2-4*5"), 1) == 20
    for drawn in programs.chains(300, seed=1):
        assert all(printed(programs.program(drawn), x) == programs.value(drawn, x) for x in (*programs.INPUTS, 0, 3))


# ---------------------------------------------------------------------------------------------------------------- runs

SHORT = ("steps=5", "train.prompts=4", "train.group_size=4", "eval.rows=4", "eval.samples=1", "checkpoint.every=1")
HELD = '''
"""The game, which notes each guess in a file, and waits for ever when the file `limit` has fewer than were noted."""

import threading
from pathlib import Path

import guessing


class Game(guessing.Game):
    def reply(self, message):
        with open("guesses", "a") as file:
            file.write(".")
        limit = Path("limit")
        if limit.exists() and Path("guesses").stat().st_size > int(limit.read_text()):
            Path("waiting").touch()
            threading.Event().wait()
        return super().reply(message)
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the game, its questions, its recipe and a model without fine-tuning."""
    home = tmp_path_factory.mktemp("small_models")
    folder = home / "runs/small_models/guessing"
    build(folder / "warm", 0, tokens=guessing.TOKENS)
    shutil.copy(FOLDER / "template.jinja", folder / "warm/chat_template.jinja")
    for name, rows in guessing.rows(0).items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:64]))
    shutil.copy(FOLDER / "guessing.py", home)
    shutil.copy(FOLDER / "guessing.toml", home / "recipe.toml")
    return home


@pytest.mark.release
def test_a_game_that_is_killed_between_two_guesses_is_played_again_bit_for_bit(home: Path) -> None:
    (home / "held.py").write_text(HELD)
    game = (*SHORT, "environment={name = 'held.py:Game', turns = 4, timeout = 600}")
    outdo_(home, "train", "recipe.toml", "run=./one-go", *game)
    (home / "limit").write_text(str((home / "guesses").stat().st_size // 2))
    (home / "guesses").unlink()
    command = Command(home, "train", "recipe.toml", "run=./held", *game)
    wait_until((home / "waiting").exists, command)
    # The game waits in its own process; the checkpoint of the step before is still being written in a thread.
    wait_until(lambda: newest(home / "held") == steps_done(home / "held") > 0, command)
    command.process.kill()
    assert command.wait() == -signal.SIGKILL, command.said
    (home / "limit").unlink()
    outdo_(home, "resume", "held")
    assert_same(home / "held", home / "one-go")


LEARNT = {"calculator": (0.3, 0.85), "guessing": (0.45, 0.6), "programs": (0.3, 0.9)}
"""The share of right sampled answers: at most before, and at least after."""


def made(name: str, home: Path) -> Path:
    """Make a task in a folder, as its README says; return its recipe."""
    (home / "examples").mkdir()
    shutil.copytree(FOLDER, home / "examples/small_models")
    subprocess.run([sys.executable, "examples/small_models/make.py", name], cwd=home, check=True)
    return home / f"examples/small_models/{name}.toml"


@pytest.mark.release
@pytest.mark.long
@pytest.mark.parametrize("name", LEARNT)
def test_a_task_is_learnt_and_the_run_can_be_killed_and_resumed(name: str, tmp_path: Path) -> None:
    recipe = made(name, tmp_path)
    outdo_(tmp_path, "train", recipe, "run=./run-1")
    summary = json.loads((tmp_path / "run-1" / "summary.json").read_text())
    before, after = LEARNT[name]
    assert summary["sampled_before"] <= before
    assert summary["sampled_after"] >= after
    shutil.copy(recipe, tmp_path / "recipe.toml")
    killed_and_resumed(tmp_path, tmp_path / "killed", 3, "checkpoint.every=5", "steps=20", apart=4)
    outdo_(tmp_path, "train", "recipe.toml", "run=./straight", "checkpoint.every=5", "steps=20")
    assert_same(tmp_path / "killed", tmp_path / "straight")


@pytest.mark.release
@pytest.mark.long
def test_products_are_not_learnt_without_the_tool(tmp_path: Path) -> None:
    outdo_(tmp_path, "train", made("calculator", tmp_path), "run=./run-1", "environment=")
    summary = json.loads((tmp_path / "run-1" / "summary.json").read_text())
    assert summary["sampled_after"] <= 0.4
