"""The tasks of the quickstart: their data are what they say, and their models can read and write them."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any, get_args, get_type_hints

import pytest

from outdo.extras.episodes.template import Template
from outdo.extras.episodes.tools import ToolBox
from outdo.extras.quickstart import calculator, guessing, programs
from outdo.extras.quickstart.command import TASKS, command
from outdo.extras.quickstart.model import CHAT_TEMPLATE, small_tokenizer
from outdo.models.prompt_encoding import encode_prompt
from outdo.types import Prompt

SMALL = [name for name, task in TASKS.items() if task.small]


def tokenizer_of(name: str) -> Any:
    small = TASKS[name].small
    assert small
    tokenizer = small_tokenizer(small.tokens)
    tokenizer.chat_template = CHAT_TEMPLATE if small.is_chat else None
    return tokenizer


def texts(row: Any) -> Iterator[str]:
    yield from (row[name] for name in ("prompt", "completion") if name in row)
    for message in row.get("messages", []):
        yield message["content"]
        yield from (json.dumps(call["function"]) for call in message.get("tool_calls", []))


def test_the_command_takes_every_task() -> None:
    assert get_args(get_type_hints(command)["task"]) == tuple(TASKS)


@pytest.mark.parametrize("name", SMALL)
def test_all_that_is_said_in_a_task_is_read_without_an_unknown_token_and_fits_the_model(name: str) -> None:
    tokenizer, data = tokenizer_of(name), TASKS[name].data(0)
    for row in [*data.demonstrations[:200], *data.questions[:50], *data.held_out[:50]]:
        for text in texts(row):
            ids = tokenizer.encode(text)
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == text.replace(" ", "")
    longest = max(len(tokenizer.encode("".join(texts(row)))) for row in data.demonstrations)
    assert longest + 20 <= 64


@pytest.mark.parametrize("name", TASKS)
def test_data_follow_from_the_seed_and_held_out_questions_do_not_and_are_never_trained_on(name: str) -> None:
    first, again, other = (TASKS[name].data(seed) for seed in (0, 0, 1))
    assert first == again
    assert first.questions != other.questions
    assert first.demonstrations != other.demonstrations or name not in SMALL
    assert first.held_out == other.held_out
    trained, held_out = ({row["prompt"] for row in rows} for rows in (first.questions, first.held_out))
    assert not trained & held_out or name == "guessing"  # whose questions are all the same


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
    assert [calculator.calc(each) for each in ("34*28", "5-12", "999999999+1")] == ["952", "-7", "1000000000"]
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
    for each in programs.chains(300, seed=1):
        assert all(printed(programs.program(each), x) == programs.value(each, x) for x in (*programs.INPUTS, 0, 3))
