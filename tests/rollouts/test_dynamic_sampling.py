"""Dynamic sampling replaces uninformative groups within the step; and the baseline of the greedy answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from zlib import crc32

import pytest
import torch
from engine_cases import fresh, tokens

from outdo.algorithms.advantages import Advantage, gae, gdpo, group_standardised, per_token, reinforce_pp, remax
from outdo.algorithms.advantages.signal import groups_with_signal
from outdo.algorithms.objectives.presets import grpo
from outdo.data.prompts import Prompts
from outdo.loop import in_turn, train
from outdo.models.bundle import Models
from outdo.rewards import load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.run.metrics.metrics import step_metrics
from outdo.testing import ScriptedEngine
from outdo.types import Batch, Completion, Prompt, Request, Sampled
from outdo.utils.errors import RewardError

SAMPLING = SamplingParams(max_tokens=12)
QUESTIONS = [Prompt(id=str(n), text=f"question {n}", token_ids=tokens(3, n), answer="yes") for n in range(12)]
POLICY = fresh()
ADVANTAGE = per_token(group_standardised)


class Recording(ScriptedEngine):
    """A scripted engine that remembers the sampling of every call."""

    def __init__(self, script: Callable[[Request], str]) -> None:
        super().__init__(script)
        self.sampled: list[SamplingParams] = []

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        self.sampled.append(sampling)
        return super().generate(requests, sampling)


def mixed_for(*ids: str) -> Callable[[Request], str]:
    """Half of the answers to these questions are right; those to all others are wrong."""
    return lambda request: "yes" if request.stream.prompt_id in ids and request.stream.sample % 2 else "no"


def right(completion: str, answer: str) -> float | None:
    return {"none": None}.get(completion, float(completion == answer))


def group_sampler(
    script: Callable[[Request], str], reward: Callable[..., object] = right, **settings: object
) -> GroupSampler:
    return GroupSampler(Recording(script), SingleTurn(load_reward(reward)), group_size=2, sampling=SAMPLING, **settings)


def dynamic(
    script: Callable[[Request], str], *, rounds: int = 2, **settings: object
) -> tuple[DynamicSampling, Prompts]:
    """Three questions a step, in the file's order."""
    prompts = Prompts(QUESTIONS, per_step=3, shuffle=False)
    sampler = group_sampler(script, **settings)
    return DynamicSampling(sampler, prompts, advantage=ADVANTAGE, rounds=rounds), prompts


def ids(sampled: Sampled) -> list[str]:
    return [group.prompt.id for group in sampled.groups]


# --------------------------------------------------------------------------------------------------- dynamic sampling


def test_uninformative_groups_are_replaced_by_as_many_further_questions_until_none_is_missing():
    sampler, prompts = dynamic(mixed_for("1", "4", "5"), rounds=9)
    assert ids(sampler(POLICY, next(iter(prompts)), step=7)) == ["1", "4", "5"]
    requests = {
        (each.stream.purpose, each.stream.step, each.stream.prompt_id) for each in sampler.sampler.engine.requests
    }
    first = {("train", 7, "0"), ("train", 7, "1"), ("train", 7, "2")}
    assert requests == first | {("train/refill-1", 7, "3"), ("train/refill-1", 7, "4"), ("train/refill-2", 7, "5")}
    assert [prompt.id for prompt in next(iter(prompts))] == ["6", "7", "8"]


def test_after_the_last_round_the_step_continues_with_fewer_groups_and_counts_them():
    sampler, prompts = dynamic(mixed_for("1"), rounds=2)
    sampled = sampler(POLICY, next(iter(prompts)), step=1)
    assert ids(sampled) == ["1"]
    assert prompts.position == 7  # three, and twice the two that were missing
    lengths = [len(sampler.sampler.engine.tokenizer.encode(text)) + 1 for text in ("yes", "no")]
    assert sampled.metrics == {
        "dynamic_sampling/rounds": 2.0,
        "dynamic_sampling/dropped": 6.0,
        "dynamic_sampling/missing": 2.0,
        "dynamic_sampling/dropped_tokens": 6 * 2 * lengths[1],
        "dynamic_sampling/reward": pytest.approx(1 / 14),
        "dynamic_sampling/rewards/right/mean": pytest.approx(1 / 14),
    }


def test_dropped_tokens_are_those_that_the_policy_sampled():
    """The engine's own groups, with all but the first token of each answer as if an environment had written it."""
    sampler, prompts = dynamic(mixed_for(), rounds=1)

    def of_episodes(policy, questions, **how):
        groups = sampler.sampler(policy, questions, **how)
        return [replace(group, rollouts=tuple(map(as_episode, group.rollouts))) for group in groups]

    def as_episode(answer):
        return replace(answer, loss_mask=(True, *[False] * (len(answer.token_ids) - 1)))

    questions = next(iter(prompts))
    sampled = DynamicSampling(of_episodes, prompts, advantage=ADVANTAGE, rounds=1)(POLICY, questions, step=1)
    assert sampled.metrics["dynamic_sampling/dropped"] == 6
    assert sampled.metrics["dynamic_sampling/dropped_tokens"] == 6 * 2


def test_the_means_are_over_all_sampled_answers_and_verdicts():
    """Half of the answers to one of seven questions are right; a reward that has True and False for them says so."""

    def verdict(completion: str, answer: str) -> bool:
        return completion == answer

    sampler, prompts = dynamic(mixed_for("1"), rounds=2, reward=verdict)
    metrics = sampler(POLICY, next(iter(prompts)), step=1).metrics
    names = ("dynamic_sampling/right", "dynamic_sampling/rewards/verdict/mean")
    assert [metrics[name] for name in names] == pytest.approx([1 / 14] * 2)


def test_an_advantage_that_depends_on_more_than_the_group_is_refused():
    prompts = Prompts(QUESTIONS, per_step=3)
    with pytest.raises(ValueError, match="dynamic sampling: the advantage needs values, which sampled groups do not"):
        DynamicSampling(group_sampler(mixed_for()), prompts, advantage=gae, rounds=1)
    with pytest.raises(ValueError, match="also learns from a group whose rewards are all equal"):
        DynamicSampling(group_sampler(mixed_for()), prompts, advantage=reinforce_pp, rounds=1)


def test_a_group_is_dropped_by_what_the_advantage_compares():
    """The two parts of each answer's reward add up to 1: the sums of all groups are equal, and the parts are not."""

    def wrong(completion: str) -> float:
        return float(completion == "no")

    def sampled(advantage: Advantage) -> Sampled:
        prompts = Prompts(QUESTIONS, per_step=3, shuffle=False)
        sampler = group_sampler(mixed_for("1"), [right, wrong])
        return DynamicSampling(sampler, prompts, advantage=advantage, rounds=1)(POLICY, next(iter(prompts)), step=1)

    assert ids(sampled(ADVANTAGE)) == []
    assert ids(sampled(partial(gdpo, weights={"right": 1.0, "wrong": 2.0}))) == ["1"]


def test_a_step_without_an_informative_group_updates_nothing():
    policy = fresh()
    sampler, prompts = dynamic(mixed_for(), rounds=1)
    step = next(train(Models(policy), in_turn(policy, prompts, sampler), per_token(group_standardised), grpo(beta=0)))
    assert (step.groups, step.updates, policy.version) == ([], [], 0)
    metrics = step_metrics(step)
    assert (metrics["dynamic_sampling/missing"], metrics["dynamic_sampling/reward"]) == (3.0, 0.0)


def test_no_random_number_is_used_twice_even_if_few_questions_are_repeated():
    prompts = Prompts(QUESTIONS[:2], per_step=3, shuffle=False)
    sampler = DynamicSampling(group_sampler(mixed_for(), greedy_baseline=True), prompts, advantage=ADVANTAGE, rounds=3)
    for step, questions in enumerate(islice(prompts, 2), 1):
        sampler(POLICY, questions, step=step)
    streams = [request.stream for request in sampler.sampler.engine.requests]
    assert len(streams) == len(set(streams)) == 2 * 4 * 3 * 3  # steps, rounds, questions, two answers and a baseline


def test_a_resumed_run_equals_an_uninterrupted_run():
    """Only the position in the data is restored."""

    def by_chance(request: Request) -> str:
        return "yes" if crc32(repr(request.stream).encode()) % 3 == 0 else "no"

    def run(prompts: Prompts, sampler: DynamicSampling, start: int, count: int) -> list[tuple[list[str], object]]:
        steps = [sampler(POLICY, questions, step=step) for step, questions in enumerate(islice(prompts, count), start)]
        return [(ids(sampled), sampled.metrics) for sampled in steps]

    def new_run() -> tuple[Prompts, DynamicSampling]:
        prompts = Prompts(QUESTIONS, per_step=3, seed=5)
        return prompts, DynamicSampling(group_sampler(by_chance), prompts, advantage=ADVANTAGE, rounds=2)

    uninterrupted = run(*new_run(), 1, 8)
    assert len({metrics["dynamic_sampling/rounds"] for _, metrics in uninterrupted}) > 1
    for steps in range(8):
        first, second = new_run(), new_run()
        before = run(*first, 1, steps)
        second[0].load_state(first[0].state())
        assert before + run(*second, steps + 1, 8 - steps) == uninterrupted


def test_one_broken_question_in_a_further_round_stops_no_run_but_many_do():
    def broken(completion: str, answer: str, prompt: str) -> float:
        if prompt in faulty:
            raise ValueError
        return right(completion, answer)

    faulty = {"question 3"}
    sampler, prompts = dynamic(mixed_for("0", "1"), rounds=1, reward=broken)
    assert ids(sampler(POLICY, next(iter(prompts)), step=1)) == ["0", "1"]
    faulty |= {f"question {number}" for number in range(1, 12)}
    sampler, prompts = dynamic(mixed_for("0"), rounds=2, reward=broken)
    with pytest.raises(RewardError, match="4 of 6 rewards of this step"):
        sampler(POLICY, next(iter(prompts)), step=1)


# ------------------------------------------------------------------------------------------------------- the baseline


def answers(sampled: str, greedy: str) -> Callable[[Request], str]:
    return lambda request: greedy if request.stream.purpose.endswith("/baseline") else sampled


@pytest.mark.parametrize(("greedy", "baseline"), [("yes", 1.0), ("no", 0.0)])
def test_the_baseline_is_the_reward_of_the_greedy_answer_which_is_not_trained_on(greedy, baseline):
    sampler = group_sampler(answers("yes", greedy), greedy_baseline=True)
    groups = sampler(POLICY, QUESTIONS[:2], step=4)
    assert [sampling.temperature for sampling in sampler.engine.sampled] == [1.0, 0.0]
    assert [each.stream.purpose for each in sampler.engine.requests] == ["train"] * 4 + ["train/baseline"] * 2
    assert [(group.baseline, len(group.rollouts)) for group in groups] == [(baseline, 2)] * 2
    assert Batch.from_groups(groups).baselines.tolist() == [baseline] * 4
    assert groups_with_signal(remax, groups) == [greedy == "no"] * 2


def test_a_group_without_a_baseline_is_counted_and_not_trained_on():
    def script(request: Request) -> str:
        return {"train/baseline": "none" if request.stream.prompt_id == "0" else "no"}.get(
            request.stream.purpose, "yes"
        )

    groups = group_sampler(script, greedy_baseline=True)(POLICY, QUESTIONS[:2], step=1)
    assert [[each.status for each in group.rollouts] for group in groups] == [["no_baseline"] * 2, ["ok"] * 2]
    batch = Batch.from_groups(groups)
    assert batch.scored.tolist() == [False, False, True, True]
    assert not batch.loss_mask[:2].any()
    assert torch.equal(batch.rewards, torch.tensor([0.0, 0.0, 1.0, 1.0]))
