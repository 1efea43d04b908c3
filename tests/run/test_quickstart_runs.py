"""Runs of the quickstart's tasks from the command: shortened ones are killed and resumed, and long ones learn."""

import functools
import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kill_cases import assert_same, killed_and_resumed, newest
from run_cases import Command, metrics, outdo_, steps_done, wait_until

from outdo.extras.quickstart import calculator, guessing, programs, settings
from outdo.extras.quickstart.command import TASKS, command, home_of
from outdo.models.optimiser import OptimiserSettings

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


SERVER = """
from mcp.server import MCPServer

from outdo.extras.quickstart.calc import calc

server = MCPServer("calculator", log_level="CRITICAL")
server.add_tool(calc)
server.run()
"""


@pytest.fixture(scope="module")
def home_of_task(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a task, with a run of the command that has few steps and hardly any fine-tuning."""
    folder = tmp_path_factory.mktemp("quickstart")
    return functools.cache(lambda name: prepared(folder, name))


def prepared(folder: Path, name: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "WARM_START_PAIRS", 16)
        patch.setattr(settings, "WARM_START", OptimiserSettings(lr=2e-3))
        for task in (calculator, guessing, programs):
            patch.setattr(task, "QUESTIONS", 64)
        small = TASKS[name].small
        assert small
        patch.setitem(TASKS, name, replace(TASKS[name], small=replace(small, steps=20)))
        assert command(SHORT, task=name, folder=folder) == 0
    home = home_of(folder, name, 0)
    shutil.copy(home / "run-1.toml", home / "recipe.toml")
    return home


@pytest.mark.parametrize("name", [pytest.param("calculator", marks=pytest.mark.long), "guessing", "programs"])
def test_a_run_of_a_task_that_is_killed_and_resumed_equals_an_uninterrupted_one(
    home_of_task: Callable[[str], Path], name: str
) -> None:
    home = home_of_task(name)
    assert metrics(home / "run-1")[-1]["sampling/sampling_logp_difference/max"] < 1e-5
    killed_and_resumed(home, home / "killed", 2, *SHORT, apart=1)
    assert_same(home / "killed", home / "run-1")


def test_a_game_that_is_killed_between_two_guesses_is_played_again_bit_for_bit(
    home_of_task: Callable[[str], Path],
) -> None:
    home = home_of_task("guessing")
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


@pytest.mark.long
def test_a_run_whose_tool_is_on_an_mcp_server_that_is_killed_and_resumed_equals_an_uninterrupted_one(
    home_of_task: Callable[[str], Path],
) -> None:
    pytest.importorskip("mcp")
    home = home_of_task("calculator")
    (home / "server.py").write_text(SERVER)
    tools = f'{{name = "tools", functions = {{name = "mcp", command = ["{sys.executable}", "server.py"]}}, turns = 3}}'
    settings = (*SHORT, f"environment={tools}")
    outdo_(home, "train", "recipe.toml", "run=./with-server", *settings)
    assert sum(line["tools/calls"] for line in metrics(home / "with-server")) > 0
    killed_and_resumed(home, home / "killed-with-server", 3, *settings, apart=1)
    assert_same(home / "killed-with-server", home / "with-server")


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
