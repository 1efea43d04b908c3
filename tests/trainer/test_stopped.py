"""Runs that are asked to stop, that are complete, and that go on for longer."""

import os
import shutil
import signal
import time

import pytest
from run_cases import Command, contents, metrics, outdo_, saved, steps_done, timeless, wait_until, weights

HANGS = """
import time
from pathlib import Path

def score(completion, answer):
    if completion and not completion.isdigit():  # not the answers that are tried before the run
        Path("hanging").touch()
        time.sleep(6000)
    return 0.0
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_after_a_signal_the_step_is_finished_and_saved(home, straight, number):
    run = home / f"stopped-{number}"
    command = Command(home, "train", "recipe.toml", f"run=./{run.name}", "checkpoint.every=20")
    wait_until(lambda: steps_done(run) >= 3, command)
    os.kill(command.pid, number)
    assert command.wait() == 130, command.said
    step = steps_done(run)
    assert 3 <= step < 20
    assert saved(run) == [step]
    assert weights(run) == weights_after(home, step)
    assert f"stopped and saved after step {step}; continue with `outdo resume {run.name}`" in command.said
    outdo_(home, "resume", run.name)
    assert weights(run) == weights(straight)
    assert timeless(run) == timeless(straight)


def weights_after(home, step):
    outdo_(home, "train", "recipe.toml", f"run=./to-{step}-{time.monotonic_ns()}", f"steps={step}")
    return weights(max(home.glob(f"to-{step}-*")))


def test_a_second_signal_ends_at_once(own_home):
    (own_home / "score.py").write_text(HANGS)
    command = Command(own_home, "train", "recipe.toml", "run=./run", "reward_limits.timeout=5000")
    wait_until(lambda: (own_home / "hanging").exists(), command)
    os.kill(command.pid, signal.SIGINT)
    os.kill(command.pid, signal.SIGTERM)  # any of the two is a second one; two equal ones may reach a process as one
    assert command.wait() == 130, command.said
    assert "Traceback" not in command.said


def test_resuming_a_complete_run_changes_nothing(home, six_steps):
    before = contents(six_steps)
    assert "complete: all 6 steps are done" in outdo_(home, "resume", "six")
    assert contents(six_steps) == before


def test_resuming_a_run_that_was_killed_before_its_summary_writes_it(home, six_steps):
    run = shutil.copytree(six_steps, home / "no-summary")
    (run / "summary.json").unlink()
    outdo_(home, "resume", run.name)
    assert (run / "summary.json").read_text().replace(run.name, "six") == (six_steps / "summary.json").read_text()


def test_a_run_resumed_with_more_steps_equals_the_longer_run(home, straight, six_steps):
    run = shutil.copytree(six_steps, home / "longer")
    said = outdo_(home, "resume", run.name, "steps=30")
    assert "resumed after step 6 of 30" in said
    assert "steps: 6 in the saved run, 30 now" in said
    assert weights(run) == weights(straight)
    assert "eval/greedy_reward" in metrics(run)[5]  # the shorter run was evaluated at its end: the only difference
    longer = timeless(run)
    longer[5] = {name: value for name, value in longer[5].items() if not name.startswith("eval/")}
    assert longer == timeless(straight)
