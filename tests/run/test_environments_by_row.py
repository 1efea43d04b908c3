"""Runs on questions of several environments: each row names the one in which it is played."""

import json
from pathlib import Path

import pytest
from episode_cases import tool_tokenizer
from kill_cases import assert_same, killed_and_resumed
from run_cases import metrics, outdo_, timeless, together, write_home, write_rows
from test_replicated_runs import tokens

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
SETTINGS = ("sampling.max_tokens=60", "data.max_prompt_tokens=200", "steps=4", "eval.every=2", "train.prompts=3")


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


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    """A run on a mixture of the three files."""
    outdo_(home, "train", "recipe.toml", "run=./whole", *mixed(), *SETTINGS)
    return home / "whole"


def mixed(*names: str, environment: str = SEVERAL) -> tuple[str, str]:
    listed = ", ".join(f'{{path = "{name}.jsonl", weight = 1}}' for name in names or ("counter", "game", "plain"))
    return f"data.path=[{listed}]", environment


def test_a_mixture_is_played_by_rows(run: Path) -> None:
    for line in metrics(run):
        assert line["environments/counter"] == line["environments/game"] == 4
        assert {"environments/counter/reward", "environments/game/reward", "tools/calls"} <= line.keys()
        assert line["num_completions"] == 12
        assert 1 < line["completions/mean_turns"] <= 2


@pytest.mark.long
def test_a_run_of_a_mixture_that_is_killed_is_resumed_exactly(run: Path, home: Path) -> None:
    killed_and_resumed(home, home / "killed", 2, *mixed(), *SETTINGS)
    assert_same(home / "killed", run)


@pytest.mark.long
def test_an_episode_has_the_tokens_of_a_run_with_its_environment_alone(home: Path) -> None:
    game = 'environment={name = "code.py:Game", turns = 3, turn_tokens = 8}'
    alone = (*mixed("game", environment=game), *SETTINGS, "steps=1", "train.prompts=3")
    outdo_(home, "train", "recipe.toml", "run=./alone", *alone)
    by_row = (*mixed("game"), *SETTINGS, "steps=1", "train.prompts=3")
    outdo_(home, "train", "recipe.toml", "run=./by_row", *by_row)
    assert tokens(home / "by_row", 1) == tokens(home / "alone", 1)


@pytest.mark.long
def test_two_replicas_play_the_same_episodes(run: Path, home: Path) -> None:
    together(home, "train", "recipe.toml", "run=./both", *mixed(), *SETTINGS, "cluster.replicas=2")
    for step in range(1, 5):
        assert tokens(home / "both", step) == tokens(run, step)
    for mine, its in zip(timeless(home / "both"), timeless(run), strict=True):
        names = [name for name in its if name.startswith("environments/")]
        assert {name: mine[name] for name in names} == pytest.approx({name: its[name] for name in names})


@pytest.mark.long
def test_a_run_that_samples_ahead_and_is_killed_is_resumed_exactly(home: Path) -> None:
    settings = (*mixed(), *SETTINGS, "train.max_staleness=1", 'engine={name = "builtin", processes = 1}')
    outdo_(home, "train", "recipe.toml", "run=./ahead", *settings)
    killed_and_resumed(home, home / "ahead-killed", 2, *settings)
    assert_same(home / "ahead-killed", home / "ahead")


def test_check_says_what_is_played_where(home: Path) -> None:
    said = " ".join(outdo_(home, "check", "recipe.toml", *mixed(), *SETTINGS).split())
    assert 'questions of each, by the column "environment": counter 3, game 3; one answer 3' in said
    assert "environment counter: at most 2 turns; tools: count" in said
    assert "environment game: at most 3 turns; tools: none" in said
    assert said.count("chat template:") == 1


@pytest.mark.long
def test_a_run_is_not_resumed_with_another_environment_of_a_row(run: Path, home: Path) -> None:
    said = outdo_(home, "resume", str(run), "steps=5", "environment.environments.game.turns=2", status=2)
    assert "environment.environments.game.turns: 3 in the saved run, 2 now" in said


def test_an_episode_is_tried_in_the_environment_of_its_row(home: Path) -> None:
    said = outdo_(home, "env", "try", "recipe.toml", *mixed("game"), *SETTINGS)
    assert "environment: game\n" in said
    assert "turn 3, policy" in said
