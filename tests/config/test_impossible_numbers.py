"""Test that a number that no machine can serve is a mistake or a note, and not a crash of a library later."""

import pytest

from outdo.config.file import load
from outdo.config.rules import notes
from outdo.utils.errors import UserError
from outdo.utils.machine import cores

NEEDED = ("model=m", "data.path=d.jsonl")


@pytest.mark.parametrize("setting", ["train.group_size=1000000000000", "train.prompts=99999999999999999999"])
def test_more_answers_in_a_step_than_memory_holds_are_refused_with_their_number(setting: str) -> None:
    with pytest.raises(UserError, match=r"answers of up to sampling\.max_tokens = .* GiB of this machine hold"):
        load(None, [*NEEDED, setting])


def test_more_threads_than_any_machine_starts_are_refused_and_more_than_its_cores_noted() -> None:
    with pytest.raises(UserError, match="threads: expected 1024 or less, found 100000"):
        load(None, [*NEEDED, "threads=100000"])
    of_threads = [note for note in notes(load(None, [*NEEDED, f"threads={cores() + 1}"])) if "threads" in note]
    assert len(of_threads) == 1
    assert not [note for note in notes(load(None, [*NEEDED, f"threads={cores()}"])) if "threads" in note]
