"""Runs whose engine is in actors of Ray: the tokens of one process, and no process of Ray is left however they end."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from kill_cases import assert_same
from run_cases import cold, command_line, family, metrics, outdo_, saved, steps_done, wait_for_end, wait_until
from test_replicated_engines import DIVIDED, SETTINGS, STEPS
from test_replicated_runs import finished, tokens, weights

RAY = 'engine={name = "builtin", processes = 1, place = "ray"}'

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")


@needs_ray
@pytest.mark.long
def test_divided_replicas_beside_an_engine_under_ray_train_as_one_process(home: Path):
    alone, both = home / "ray-alone", home / "ray-both"
    outdo_(home, "train", "recipe.toml", f"run=./{alone.name}", *SETTINGS)
    command = cold(home, "train", "recipe.toml", f"run=./{both.name}", "--verbose", *SETTINGS, *DIVIDED, RAY)
    wait_until(lambda: steps_done(both) >= 2, command)
    started = family(command.pid)
    (actor,) = actors(started)
    os.kill(actor, signal.SIGKILL)
    said, status = finished(command)
    assert status == 0, said
    assert f"engine: processes on cpu of {os.uname().nodename} (Ray), threads of each: 1" in said
    assert said.count("the engine is restarted") == 1
    wait_for_end(started)
    for step in range(1, STEPS + 1):
        assert tokens(alone, step) == tokens(both, step)
    mine = weights(both)
    for key, value in weights(alone).items():
        assert (mine[key] - value).abs().max() <= 3e-6, key
    assert metrics(both)[-1]["engine/restarts"] == 1
    assert all(line["engine/delivery_bytes"] == 4 * 35520 for line in metrics(both))


@needs_ray
@pytest.mark.long
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_of_ray_is_left_when_a_run_ends_and_it_resumes_exactly(
    home: Path, six_steps: Path, tmp_path: Path, ending: int
):
    """Its weights go through files: also of them nothing is left, at the latest when the resumed run ends."""
    run = home / f"ray-ended-{ending}"
    folder = f'engine={{name = "builtin", processes = 1, place = "ray", folder = "{tmp_path}"}}'
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", "steps=6", folder)
    wait_until(lambda: steps_done(run) >= 2 and saved(run), command)  # a step is saved after it is finished
    started = family(command.pid)
    assert len(actors(started)) == 1
    command.send_signal(ending)
    said, status = finished(command)
    assert status == (-9 if ending == signal.SIGKILL else 143), said
    wait_for_end(started)
    assert 1 <= saved(run)[-1] < 6
    assert len(list(tmp_path.iterdir())) == (ending == signal.SIGKILL)
    said, status = finished(cold(home, "resume", str(run)))
    assert status == 0, said
    assert list(tmp_path.iterdir()) == []
    assert_same(run, six_steps)


def actors(processes: list[int]) -> list[int]:
    """Those of some processes that are actors of the engine."""
    return [each for each in processes if b"EngineActor" in command_line(each)]
