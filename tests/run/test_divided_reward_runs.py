"""A run whose reward model is divided and refreshed: that of one process, also if it is killed and resumed."""

import json
import os
import signal
from pathlib import Path

import pytest
from kill_cases import assert_same
from run_cases import cold, outdo_, steps_done, together, wait_until
from run_cases import family as processes_of
from test_replicated_runs import DIVIDED, finished, second_of, tokens, undisturbed, weights

pytestmark = pytest.mark.release

STEPS = 6
LABELS = (
    "import pathlib\n\n\ndef label(completion):\n"
    "    with pathlib.Path('asked.txt').open('a') as file:\n        file.write('x' * bool(completion))\n"
    "    return float(len(set(completion)))\n"
)
JUDGE = '{name = "reward_model", path = "judge", labels = "label.py:label", every = 2, steps = 2, lr = 1e-4}'
SETTINGS = (
    *(f"steps={STEPS}", "eval.every=0", "data.eval_path=", "checkpoint.every=2", "optim.lr=1e-4"),
    *(f'rewards=[{JUDGE}, "exact"]', "reward_limits.workers=1"),
)


@pytest.fixture(scope="module")
def judged(family: Path) -> Path:
    (family / "label.py").write_text(LABELS)
    return family


def metrics(run: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [line[name] for line in lines if name in line]
    assert found, sorted(lines[0])
    return found


def test_a_run_with_a_divided_reward_model_is_that_of_one_process(judged: Path):
    both, asked = (*SETTINGS, "cluster.replicas=2", DIVIDED), judged / "asked.txt"
    outdo_(judged, "train", "recipe.toml", "run=./judged-alone", *SETTINGS)
    of_one = asked.stat().st_size
    whole = undisturbed(judged, "judged-both", both)
    assert asked.stat().st_size == 2 * of_one  # the first replica asks for the labels of all
    alone = judged / "judged-alone"
    for step in range(1, STEPS + 1):
        assert tokens(alone, step) == tokens(whole, step)
    found = weights(whole)
    for key, value in weights(alone).items():
        assert (found[key] - value).abs().max() <= 3e-6, key
    for name in ("reward_model/loss", "reward_model/label", "rewards/reward_model/mean"):
        assert metrics(whole, name) == pytest.approx(metrics(alone, name), rel=1e-4, abs=1e-5), name


@pytest.mark.long
def test_a_run_with_a_divided_reward_model_that_is_killed_resumes_exactly(judged: Path):
    both = (*SETTINGS, "cluster.replicas=2", DIVIDED)
    whole, run = undisturbed(judged, "judged-both", both), judged / "judged-killed"
    command = cold(judged, "train", "recipe.toml", f"run=./{run.name}", *both)
    wait_until(lambda: steps_done(run) >= 3, command)
    os.kill(second_of(processes_of(command.pid)), signal.SIGKILL)
    said, status = finished(command)
    assert status == 75, said
    together(judged, "resume", run)
    assert_same(run, whole)


def test_an_adapter_with_a_divided_reward_model_is_saved_and_resumed(judged: Path):
    adapter = 'train.adapter={name = "lora", rank = 4, alpha = 8}'
    run, both = judged / "judged-adapter", (*SETTINGS, "cluster.replicas=2", DIVIDED, adapter)
    together(judged, "train", "recipe.toml", f"run=./{run.name}", *both, "steps=2")
    outdo_(judged, "resume", run, "steps=3", "cluster.replicas=1", "cluster.shard=false")
    assert steps_done(run) == 3
