"""The metrics of a step: right where there are verdicts, and signal as the spread of the rewards of a group."""

import pytest
from toys import rollout

from outdo.observability.metrics import step_metrics
from outdo.types import Batch, Group, Prompt, Rollout, Sampled, Step


def group(*rollouts: Rollout, baseline: float | None = None) -> Group:
    return Group(prompt=Prompt(id="7", text="?", token_ids=(1,)), rollouts=rollouts, baseline=baseline)


def metrics(*groups: Group) -> dict[str, float]:
    return step_metrics(Step(index=1, sampled=Sampled(groups=groups), batch=Batch.from_groups(groups), updates=[]))


def test_dense_rewards_have_signal_and_no_right_answer() -> None:
    found = metrics(group(rollout(1, 0.9), rollout(1, 0.8)), group(rollout(1, 3.0), rollout(1, 3.0)))
    assert found["frac_reward_zero_std"] == 0.5
    assert not {"right", "frac_all_right", "frac_all_wrong"} & found.keys()


def test_right_follows_the_verdicts_and_not_the_sum_of_the_rewards() -> None:
    found = metrics(
        group(rollout(1, 1.1, right=False), rollout(1, 0.2, right=True)),
        group(rollout(1, 1.0, right=False), rollout(1, 1.2, right=False)),
        group(rollout(1, 0.1, right=True), rollout(1, 0.0, status="failed")),
    )
    assert found["right"] == pytest.approx(2 / 5)
    assert (found["frac_all_right"], found["frac_all_wrong"]) == pytest.approx((1 / 3, 1 / 3))
    assert found["frac_reward_zero_std"] == pytest.approx(1 / 3)


def test_the_share_of_groups_with_signal_is_what_dynamic_sampling_keeps() -> None:
    groups = [
        group(rollout(1, 0.3), rollout(1, 0.1 + 0.2)),  # a rounding error apart
        group(rollout(1, 1.0), rollout(1, 1.0), baseline=0.0),
        group(rollout(1, 0.5, status="failed"), rollout(1, 1.0)),
        group(rollout(1, 0.5), rollout(1, 1.0)),
    ]
    kept = [each for each in groups if each.informative]
    assert metrics(*groups)["frac_reward_zero_std"] == 1 - len(kept) / len(groups) == 0.5


def test_a_step_writes_the_sample_sizes_of_its_means() -> None:
    found = metrics(
        group(rollout(1, 0.5), rollout(1, 0.0, status="failed"), rollout(1, 1.0)),
        group(rollout(1, 0.0, status="failed")),
    )
    assert {name: found[name] for name in ("num_completions", "num_scored", "num_groups")} == {
        **{"num_completions": 4, "num_scored": 2, "num_groups": 1}
    }
