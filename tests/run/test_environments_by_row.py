"""Runs on questions of several environments: each row names the one in which it is played."""

import json
from pathlib import Path

import pytest
from episode_cases import tool_tokenizer
from run_cases import metrics, outdo_, write_home, write_rows

CODE = '''
from outdo import Reply


def count(text: str) -> int:
    """Count the letters of a text.

    Args:
        text: The text.
    """
    return len(text)


class Game:
    def reply(self, message):
        told = [{"role": "user", "content": "go on"}]
        return Reply(messages=told, reward=sum(map(str.isalnum, message["content"])) / 8)
'''
SEVERAL = (
    'environment={name = "by_row", environments = {counter = {name = "tools", functions = "code.py:count", turns = 2}, '
    'game = {name = "code.py:Game", turns = 3, turn_tokens = 8}}}'
)
SETTINGS = ("sampling.max_tokens=60", "data.max_prompt_tokens=200", "steps=2", "eval.every=2", "train.prompts=3")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a file for each environment, and one without."""
    home = write_home(tmp_path_factory.mktemp("by_row"))
    tool_tokenizer().save_pretrained(home / "model")
    (home / "code.py").write_text(CODE)
    for name in ("counter", "game", "plain"):
        rows = [{"prompt": f"{name} {n}=", "answer": str(n), "environment": name} for n in range(3)]
        write_rows(home / f"{name}.jsonl", [{k: v for k, v in row.items() if v != "plain"} for row in rows])
    write_rows(home / "held_out.jsonl", [json.loads((home / "game.jsonl").read_text().splitlines()[0])])
    return home


def mixed(*names: str) -> tuple[str, str]:
    listed = ", ".join(f'{{path = "{name}.jsonl", weight = 1}}' for name in names or ("counter", "game", "plain"))
    return f"data.path=[{listed}]", SEVERAL


@pytest.mark.release
def test_a_mixture_is_played_by_rows(home: Path) -> None:
    outdo_(home, "train", "recipe.toml", "run=./whole", *mixed(), *SETTINGS)
    for line in metrics(home / "whole"):
        assert line["environments/counter"] == line["environments/game"] == 4
        assert {"environments/counter/reward", "environments/game/reward", "tools/calls"} <= line.keys()
        assert line["num_completions"] == 12
        assert 1 < line["completions/mean_turns"] <= 2


def test_check_says_what_is_played_where(home: Path) -> None:
    said = " ".join(outdo_(home, "check", "recipe.toml", *mixed(), *SETTINGS).split())
    assert 'questions of each, by the column "environment": counter 3, game 3; one answer 3' in said
    assert "environment counter: at most 2 turns; tools: count" in said
    assert "environment game: at most 3 turns; tools: none" in said
    assert said.count("chat template:") == 2  # what applies with tools, and without


def test_an_episode_is_tried_in_the_environment_of_its_row(home: Path) -> None:
    said = outdo_(home, "env", "try", "recipe.toml", *mixed("game"), *SETTINGS)
    assert "environment: game\n" in said
    assert "turn 3, policy" in said
