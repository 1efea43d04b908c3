"""The tasks of the quickstart: their data are what they say, and their models can read and write them."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from outdo.extras.quickstart.command import TASKS, command
from outdo.extras.quickstart.model import small_tokenizer

SMALL = [name for name, task in TASKS.items() if task.small]


def tokenizer_of(name: str) -> Any:
    small = TASKS[name].small
    assert small
    return small_tokenizer(small.tokens)


def texts(row: Any) -> Iterator[str]:
    yield from (row[name] for name in ("prompt", "completion") if name in row)


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
    assert not trained & held_out
