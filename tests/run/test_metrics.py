"""The metrics of a step: right where there are verdicts, and signal as the spread of the rewards of a group."""

import math
from dataclasses import replace

import pytest
import torch
from toys import rollout

from outdo.extras.episodes.episode import COUNTS
from outdo.run.metrics.metrics import step_metrics
from outdo.run.metrics.teachers import teacher_metrics
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Sampled, Step, Update


def group(*rollouts: Rollout, baseline: float | None = None) -> Group:
    return Group(prompt=Prompt(id="7", text="?", token_ids=(1,)), rollouts=rollouts, baseline=baseline)


def metrics(*groups: Group) -> dict[str, float]:
    return step_metrics(Step(index=1, sampled=Sampled(groups=groups), batch=Batch.from_groups(groups), updates=[]))


def test_dense_rewards_have_signal_and_no_right_answer() -> None:
    found = metrics(group(rollout(1, 0.9), rollout(1, 0.8)), group(rollout(1, 3.0), rollout(1, 3.0)))
    assert found["frac_reward_zero_std"] == 0.5
    assert not {"right", "frac_all_right", "frac_all_wrong"} & found.keys()


def test_the_deviation_of_rewards_is_that_of_all_answers_and_apart_from_it_that_within_groups() -> None:
    found = metrics(group(rollout(1, 1.0), rollout(1, 1.0)), group(rollout(1, 0.0), rollout(1, 0.0, status="failed")))
    assert found["reward_std"] == pytest.approx(math.sqrt(1 / 3))
    assert found["reward_group_std"] == 0.0


def test_right_follows_the_verdicts_and_not_the_sum_of_the_rewards() -> None:
    found = metrics(
        group(rollout(1, 1.1, right=False), rollout(1, 0.2, right=True)),
        group(rollout(1, 1.0, right=False), rollout(1, 1.2, right=False)),
        group(rollout(1, 0.1, right=True), rollout(1, 0.0, status="failed")),
    )
    assert found["right"] == pytest.approx(2 / 5)
    assert (found["frac_all_right"], found["frac_all_wrong"]) == pytest.approx((1 / 3, 1 / 3))
    assert found["frac_reward_zero_std"] == pytest.approx(1 / 3)


def test_verdicts_without_a_reward_are_no_right_answers() -> None:
    """All greedy answers of `remax` failed, so that no answer has a reward; the verdicts are kept."""
    found = metrics(group(*[rollout(1, 0.0, right=True, status="no_baseline") for _ in range(2)]))
    assert not {"right", "frac_all_right", "frac_all_wrong"} & found.keys()


def test_groups_whose_rewards_have_no_spread_are_counted_as_trl_counts_them() -> None:
    """A baseline is no reward of the group, and how large rewards are beside their difference does not matter."""
    equal = [
        group(rollout(1, 0.3), rollout(1, 0.1 + 0.2)),  # a rounding error apart
        group(rollout(1, 1.0), rollout(1, 1.0), baseline=0.0),
        group(rollout(1, 0.5, status="failed"), rollout(1, 1.0)),
    ]
    different = [group(rollout(1, 0.5), rollout(1, 1.0)), group(rollout(1, 5000.0), rollout(1, 5000.004))]
    unscored = group(rollout(1, 0.0, status="failed"))
    assert metrics(*equal, *different, unscored)["frac_reward_zero_std"] == pytest.approx(3 / 5)


def test_a_step_writes_the_sample_sizes_of_its_means() -> None:
    found = metrics(
        group(rollout(1, 0.5), rollout(1, 0.0, status="failed"), rollout(1, 1.0)),
        group(rollout(1, 0.0, status="failed")),
    )
    assert {name: found[name] for name in ("num_completions", "num_scored", "num_groups")} == {
        **{"num_completions": 4, "num_scored": 2, "num_groups": 1}
    }


def test_lengths_and_tokens_are_those_that_the_policy_sampled() -> None:
    """Two episodes of four sampled tokens each; in one of them a tool wrote 96 tokens, and it got the higher reward."""
    long, short = (rollout(n + 4, n / 96, mask=(True, True, *[False] * n, True, True)) for n in (96, 6))
    found = metrics(group(long, short))
    lengths = {f"completions/{which}_length": 4.0 for which in ("min", "mean", "max")}
    assert {name: found[name] for name in lengths} == lengths
    assert (found["num_tokens"], found["num_environment_tokens"]) == (8, 102)
    assert "reward_length_correlation" not in found
    assert "num_environment_tokens" not in metrics(group(rollout(4, 1.0)))


def test_calls_of_tools_are_counted_and_compared() -> None:
    def episode(calls: int, **failed: int) -> Rollout:
        counts = dict.fromkeys(COUNTS, 0) | {f"tools/{kind}": count for kind, count in failed.items()}
        return replace(rollout(1, float(calls)), counts=counts | {"tools/calls": calls})

    found = metrics(group(episode(3, unparsed=1, raised=1), episode(1, unknown=1)), group(episode(1)))
    assert {name: found[name] for name in ("tools/calls", "tools/fewest_calls", "tools/most_calls")} == {
        **{"tools/calls": 5, "tools/fewest_calls": 1, "tools/most_calls": 3}
    }
    assert (found["tools/unparsed_ratio"], found["tools/failed_ratio"]) == (1 / 5, 2 / 5)
    assert found["reward_calls_correlation"] == pytest.approx(1)
    assert "tools/failed_ratio" not in metrics(group(episode(0)))
    assert "tools/most_calls" not in metrics(group(rollout(1, 1.0)))


def test_the_calls_and_seconds_of_each_tool_are_added_up() -> None:
    episodes = [{"add": (0.5, 0.25), "find": ()}, {"add": (1.0,), "find": ()}]
    found = metrics(group(*(replace(rollout(1, 1.0), tool_seconds=each) for each in episodes)))
    assert {name: value for name, value in found.items() if name.startswith("tools/")} == {
        **{"tools/calls/add": 3.0, "tools/seconds/add": 1.75, "tools/calls/find": 0.0, "tools/seconds/find": 0.0}
    }


def test_episodes_without_a_turn_left_are_counted() -> None:
    by_itself = rollout(3, 1.0, mask=(True, False, True))
    found = metrics(group(by_itself, replace(by_itself, finish_reason=FinishReason.turns)))
    assert found["completions/turns_ratio"] == 0.5
    assert "completions/turns_ratio" not in metrics(group(rollout(2, 1.0)))


# ------------------------------------------------------------------------------------------------------------ teachers


def liking(*answers: tuple[bool | None, list[float]], demonstrated: bool = False) -> float | None:
    """`teacher/right_minus_wrong` of one question, from the verdict of each answer and δ of its tokens."""
    one = group(*[rollout(len(deltas), float(right or 0), right=right) for right, deltas in answers])
    one = replace(one, demonstrated=demonstrated)
    batch = Batch.from_groups([one])
    old, teacher = torch.zeros(batch.loss_mask.shape), torch.zeros(batch.loss_mask.shape)
    teacher[batch.loss_mask] = torch.tensor([delta for _, deltas in answers for delta in deltas])
    weights = {"teacher": torch.ones(len(batch))}
    batch = batch.with_(old_logprobs=old, teacher_logprobs=teacher, teacher_weights=weights)
    update = Update(metrics={}, tokens={"logprobs": old})
    return teacher_metrics(Step(index=1, sampled=Sampled(groups=[one]), batch=batch, updates=[update]))[
        "teacher/right_minus_wrong"
    ]


def test_a_teacher_likes_right_answers_more_if_their_tokens_are_more_probable_to_it() -> None:
    assert liking((True, [0.5, 0.5]), (False, [-0.5, -0.5])) == pytest.approx(2.0)
    assert liking((True, [-1.0]), (True, [0.0]), (False, [0.5])) == pytest.approx(-1.0)
    assert liking((True, [0.5]), (True, [0.2])) is None
    assert liking((True, [0.5]), (None, [0.2])) is None
    assert liking((True, [0.5]), (False, [-0.5]), demonstrated=True) is None  # the policy did not write them


def test_a_teacher_does_not_like_an_answer_less_because_it_is_longer() -> None:
    assert liking((True, [-0.3] * 40), (False, [-0.3] * 4)) == pytest.approx(0.0, abs=1e-5)
