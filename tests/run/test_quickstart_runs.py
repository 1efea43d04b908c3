"""Runs of the quickstart's tasks from the command: a shortened game is killed and resumed, and long ones learn."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from kill_cases import assert_same, killed_and_resumed, newest
from run_cases import Command, outdo_, steps_done, wait_until

from outdo.extras.quickstart import guessing, settings
from outdo.extras.quickstart.command import TASKS, command, home_of
from outdo.models.optimiser import OptimiserSettings

pytestmark = pytest.mark.release

SHORT = ("steps=5", "train.prompts=4", "train.group_size=4", "eval.rows=4", "eval.samples=1", "checkpoint.every=1")
HELD = '''
"""The game, which notes each guess in a file, and waits for ever when the file `limit` has fewer than were noted."""

import threading
from pathlib import Path

from outdo.extras.quickstart import guessing


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
    """The folder of the game, with a run of the command that has few steps and hardly any fine-tuning."""
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "WARM_START_PAIRS", 16)
        patch.setattr(settings, "WARM_START", OptimiserSettings(lr=2e-3))
        patch.setattr(guessing, "QUESTIONS", 64)
        small = TASKS["guessing"].small
        assert small
        patch.setitem(TASKS, "guessing", replace(TASKS["guessing"], small=replace(small, steps=20)))
        assert command(SHORT, task="guessing", folder=folder) == 0
    home = home_of(folder, "guessing", 0)
    shutil.copy(home / "run-1.toml", home / "recipe.toml")
    return home


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


# ------------------------------------------------------------------------------------------------------- what is learnt

LEARNT = {"calculator": (0.3, 0.85), "guessing": (0.45, 0.6), "programs": (0.3, 0.9)}
"""The share of right sampled answers: at most before, and at least after."""


@pytest.mark.long
@pytest.mark.parametrize("name", LEARNT)
def test_a_task_is_learnt_and_the_run_can_be_killed_and_resumed(name: str, tmp_path: Path) -> None:
    outdo_(tmp_path, "quickstart", "--task", name, "--folder", tmp_path)
    home = home_of(tmp_path, name, 0)
    summary = json.loads((home / "run-1" / "summary.json").read_text())
    before, after = LEARNT[name]
    assert summary["sampled_before"] <= before
    assert summary["sampled_after"] >= after
    shutil.copy(home / "run-1.toml", home / "recipe.toml")
    killed_and_resumed(home, home / "killed", 3, "checkpoint.every=5", "steps=20", apart=4)
    outdo_(home, "train", "recipe.toml", "run=./straight", "checkpoint.every=5", "steps=20")
    assert_same(home / "killed", home / "straight")


@pytest.mark.long
def test_products_are_not_learnt_without_the_tool(tmp_path: Path) -> None:
    outdo_(tmp_path, "quickstart", "--task", "calculator", "--folder", tmp_path, "environment=")
    summary = json.loads((home_of(tmp_path, "calculator", 0) / "run-1" / "summary.json").read_text())
    assert summary["sampled_after"] <= 0.4
