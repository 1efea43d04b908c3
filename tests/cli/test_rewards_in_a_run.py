"""Reward functions written for outdo, for TRL and for verl run unchanged in a real training run."""

import json

import pytest
from command_cases import SMALL

REWARDS = '''
import asyncio


def plain(completion, answer):
    """outdo's own way."""
    return len(completion) % 3 == 0


def trl(prompts, completions, answer, **kwargs):
    """TRL's: lists in, a list out, columns by their names; None is not applicable."""
    assert len(prompts) == len(completions) == len(answer)
    return [None if "5" in reference else 0.25 for reference in answer]


async def trl_async(completions, **kwargs):
    await asyncio.sleep(0)
    return [float("1" in completion) for completion in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's."""
    assert data_source == "sums"
    return {"score": 0.5, "acc": ground_truth in solution_str}
'''


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(REWARDS)
    return path


@pytest.fixture(scope="module")
def sourced(sums, tmp_path_factory):
    """The questions with verl's column."""
    path = tmp_path_factory.mktemp("data") / "sourced.jsonl"
    lines = (json.loads(line) for line in sums.read_text().splitlines())
    path.write_text("".join(json.dumps({**row, "data_source": "sums"}) + "\n" for row in lines))
    return path


def settings(model, data, run, rewards):
    small = [each for each in SMALL if not each.startswith("rewards=")]
    return [f"model={model}", f"data.path={data}", f"run={run}", f"rewards={rewards}", *small]


def test_rewards_of_each_kind_add_up_by_their_weights_and_each_is_measured(outdo, model, sourced, rewards, tmp_path):
    weights = {"plain": 2.0, "compute_score": 1.0, "trl_async": 0.5, "trl": 0.0, "format": 0.0}
    listed = [
        f'{{name = "{name if name == "format" else f"{rewards}:{name}"}", weight = {w}}}' for name, w in weights.items()
    ]
    done = outdo("train", *settings(model, sourced, tmp_path / "run", f"[{', '.join(listed)}]"))
    assert (done.status, done.error) == (0, "")
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        parts = {name: step[f"rewards/{name}/mean"] for name in weights}
        assert (parts["compute_score"], parts["trl"]) == (0.5, 0.25)
        assert step["reward"] == pytest.approx(sum(weights[name] * value for name, value in parts.items()))


def test_a_reward_that_mostly_fails_stops_the_run_and_shows_the_first(outdo, model, sourced, tmp_path):
    (tmp_path / "bad.py").write_text("def score(completion, answer):\n    return 1 / (len(answer) - len(answer))\n")
    done = outdo("train", *settings(model, sourced, tmp_path / "run", f"{tmp_path / 'bad.py'}:score"))
    assert done.status == 2  # found before the model was loaded
    assert "ZeroDivisionError" in done.error
