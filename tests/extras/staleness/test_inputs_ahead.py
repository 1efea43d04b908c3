"""A run that samples ahead is killed, and goes on with what the questions of its waiting groups bring beside tokens."""

import os
import signal
import time
from pathlib import Path

import pytest
from ahead_cases import ENGINE, sampled_by
from moods import write_reading_home
from run_cases import PATIENCE, Command, outdo_

from outdo.extras.record.parquet import read

STEPS = 4
SETTINGS = (
    *("data.inputs=states.py:states", "train.max_staleness=2", f"steps={STEPS}", "eval.every=0"),
    *("cluster.replicas=1", "train.group_size=2"),
)


def killed_while_it_samples(home: Path, engine: str) -> None:
    """Begin a run whose engine hangs at the last step, and kill it there, when a checkpoint has groups that wait."""
    hanging = f'engine={{name = "engine.py:Copying", hangs = {STEPS}{engine}}}'
    command = Command(home, "train", "recipe.toml", "run=./killed", hanging, *SETTINGS)
    deadline = time.monotonic() + PATIENCE
    while STEPS not in {step for step, _ in sampled_by(home)}:
        assert command.running, command.said
        assert time.monotonic() < deadline, command.said
        time.sleep(0.1)
    assert list((home / "killed" / "checkpoints").iterdir())
    os.kill(command.pid, signal.SIGKILL)
    command.wait()


@pytest.mark.parametrize("engine", ["", ", partial_rollouts = true"], ids=["whole answers", "partial rollouts"])
def test_a_killed_run_goes_on_with_the_inputs_of_its_questions(tmp_path: Path, engine: str) -> None:
    home = write_reading_home(tmp_path)
    (home / "engine.py").write_text(ENGINE)
    whole = f'engine={{name = "engine.py:Copying", hangs = {STEPS}{engine}}}'
    killed_while_it_samples(home, engine)
    (home / "mended").touch()
    outdo_(home, "resume", "killed")
    outdo_(home, "train", "recipe.toml", "run=./whole", whole, *SETTINGS)
    for step in range(1, STEPS + 1):
        resumed, uninterrupted = (read(home / run, step).to_pylist() for run in ("killed", "whole"))
        assert [row["token_ids"] for row in resumed] == [row["token_ids"] for row in uninterrupted]
        for row in uninterrupted:
            apart = [abs(old - new) for old, new in zip(row["rollout_logprobs"], row["old_logprobs"], strict=True)]
            assert step > 1 or max(apart) < 1e-4  # later steps are sampled from older weights
