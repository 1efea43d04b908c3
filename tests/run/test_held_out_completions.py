"""The answers of each evaluation are a JSONL file, which is written whole or not at all."""

import pytest

from outdo.run.evaluation import held_out_completions
from outdo.utils.errors import RunFolderError

ANSWER = {"kind": "greedy", "id": "7", "sample": 0, "completion": "5\n\u2028 \ud83d", "reward": float("nan")}


def test_what_was_written_is_read_back(tmp_path):
    held_out_completions.write(held_out_completions.path_of(tmp_path, 40), [ANSWER, ANSWER])
    assert held_out_completions.evaluated_steps(tmp_path) == [40]
    first, second = held_out_completions.read(tmp_path, 40)
    assert first == second == ANSWER | {"reward": None}


def test_a_run_that_continues_drops_the_later_evaluations(tmp_path):
    for step in (0, 20, 40):
        held_out_completions.write(held_out_completions.path_of(tmp_path, step), [ANSWER])
    held_out_completions.drop_after(tmp_path, 20)
    assert held_out_completions.evaluated_steps(tmp_path) == [0, 20]


@pytest.mark.parametrize("content", [b"{", b"[]\n", b'{"kind": "greedy"}\n', b"\xff\n"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = held_out_completions.path_of(tmp_path, 3)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"step_000003\.jsonl: is damaged"):
        held_out_completions.read(tmp_path, 3)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"step_000004\.jsonl: cannot be read: No such file"):
        held_out_completions.read(tmp_path, 4)
