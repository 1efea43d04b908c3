"""`outdo check` counts errors, warnings and notes, and its exit status tells which there are."""

from pathlib import Path

import pytest
import torch
from command_cases import SMALL
from run_cases import outdo_, write_home, write_rows

SOUND = ("rewards=exact", "train.prompts=2", "train.group_size=2", "sampling.max_tokens=8", "data.max_prompt_tokens=16")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_home(tmp_path)
    write_rows(tmp_path / "held_out.jsonl", [{"prompt": f"{a}+5=", "answer": str(a + 5)} for a in range(4)])
    return tmp_path


def counted(said: str) -> str:
    return said.rstrip().splitlines()[-1]


def check(home: Path, *settings: str, status: int = 0) -> str:
    """Return what is printed, its lines joined."""
    return " ".join(outdo_(home, "check", "recipe.toml", *SOUND, *settings, status=status).split())


def test_a_sound_recipe_has_no_errors_and_no_warnings(home):
    said = outdo_(home, "check", "recipe.toml", *SOUND, "--strict")
    assert counted(said).startswith("No errors, no warnings, ")


def test_warnings_are_counted_and_end_a_strict_check_with_status_1(home):
    assert "more than the model's context of 512" in check(home, "sampling.max_tokens=510")
    said = outdo_(home, "check", "recipe.toml", *SOUND, "sampling.max_tokens=510", "--strict", status=1)
    assert counted(said).startswith("No errors, 1 warning, ")


def test_errors_are_counted_and_have_status_2(home):
    missing = "mps" if torch.cuda.is_available() else "cuda"
    said = outdo_(home, "check", "recipe.toml", *SOUND, f"device={missing}", "--strict", status=2)
    assert f"device '{missing}' is not usable here" in " ".join(said.split())
    assert counted(said).startswith("1 error, no warnings, ")
    assert "Memory, estimated" not in said  # estimated with what is wrong


def test_references_that_are_never_rewarded_are_named(home):
    (home / "score.py").write_text(
        "def score(completion, answer):\n    return answer in completion and answer != '4'\n"
    )
    said = check(home, "rewards=score.py:score")
    assert "2 of 12 reference answers score like a wrong one" in said
    assert "these questions are never rewarded: 9 (4), 11 (4)" in said


def test_a_reward_whose_arguments_the_data_lack_is_one_error(home):
    (home / "score.py").write_text("def score(completion, beauty):\n    return 1\n")
    assert "score needs beauty; the data has prompt, answer" in check(home, "rewards=score.py:score", status=2)


@pytest.mark.parametrize("command", ["check", "train"])
def test_a_run_folder_that_is_taken_is_one_of_the_mistakes(outdo, model, sums, tmp_path, command):
    (tmp_path / "recipe.toml").write_text("steps = 3\n")
    (tmp_path / "history.jsonl").touch()
    given = (f"model={model}", f"run={tmp_path}", *SMALL, "eval.rows=0")
    wrong = outdo(command, *given, f"data.path={sums}", "stepz=3")
    assert wrong.status == 2
    assert "stepz: unknown setting" in wrong.error
    assert "holds a run already; `outdo resume" in wrong.error
    missing = outdo(command, *given, "data.path=nowhere.jsonl")
    said = " ".join((missing.out + missing.error).split())
    assert missing.status == 2
    assert "nowhere.jsonl: no such file" in said
    assert "holds a run already; `outdo resume" in said
