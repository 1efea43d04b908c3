"""Dynamic sampling: what teaches nothing is replaced within the step; and the baseline of the likeliest answer."""

from collections.abc import Callable, Sequence
from itertools import islice
from zlib import crc32

import pytest
import torch
from engine_cases import fresh, tokens

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.data.prompts import Prompts
from outdo.loop import train
from outdo.models.bundle import Models
from outdo.rewards import load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling, informative
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import ScriptedEngine
from outdo.types import Batch, Completion, Group, Prompt, Request
from outdo.utils.errors import RewardError

SAMPLING = SamplingParams(max_tokens=12)
QUESTIONS = [Prompt(id=str(n), text=f"question {n}", token_ids=tokens(3, n), answer="yes") for n in range(12)]
POLICY = fresh()


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


def rollouts(script: Callable[[Request], str], reward: Callable[..., object] = right, **how: object) -> GroupSampler:
    return GroupSampler(Recording(script), SingleTurn(load_reward(reward)), group_size=2, sampling=SAMPLING, **how)


def refill(script: Callable[[Request], str], *, rounds: int = 2, **how: object) -> tuple[DynamicSampling, Prompts]:
    """Three questions a step, in the file's order."""
    prompts = Prompts(QUESTIONS, per_step=3, shuffle=False)
    return DynamicSampling(rollouts(script, **how), prompts, rounds=rounds), prompts


def ids(groups: Sequence[Group]) -> list[str]:
    return [group.prompt.id for group in groups]


# -------------------------------------------------------------------------------------------------------------- refill


def test_a_step_that_teaches_throughout_is_left_as_it_is():
    ask, prompts = refill(mixed_for("0", "1", "2"))
    assert ids(ask(POLICY, next(iter(prompts)), step=1)) == ["0", "1", "2"]
    assert {request.stream.purpose for request in ask.rollouts.engine.requests} == {"train"}
    assert prompts.position == 3
    assert (ask.metrics["refill/rounds"], ask.metrics["refill/dropped"], ask.metrics["refill/missing"]) == (0, 0, 0)


def test_what_teaches_nothing_is_replaced_by_as_many_further_questions_until_none_is_missing():
    ask, prompts = refill(mixed_for("1", "4", "5"), rounds=9)
    assert ids(ask(POLICY, next(iter(prompts)), step=7)) == ["1", "4", "5"]
    asked = {(each.stream.purpose, each.stream.step, each.stream.prompt_id) for each in ask.rollouts.engine.requests}
    first = {("train", 7, "0"), ("train", 7, "1"), ("train", 7, "2")}
    assert asked == first | {("train/refill-1", 7, "3"), ("train/refill-1", 7, "4"), ("train/refill-2", 7, "5")}
    assert [prompt.id for prompt in next(iter(prompts))] == ["6", "7", "8"]


def test_after_the_last_round_the_step_goes_on_with_what_there_is_and_says_so():
    ask, prompts = refill(mixed_for("1"), rounds=2)
    assert ids(ask(POLICY, next(iter(prompts)), step=1)) == ["1"]
    assert prompts.position == 7  # three, and twice the two that were missing
    lengths = [len(ask.rollouts.engine.tokenizer.encode(text)) + 1 for text in ("yes", "no")]
    assert ask.metrics == {
        "refill/rounds": 2.0,
        "refill/dropped": 6.0,
        "refill/missing": 2.0,
        "refill/dropped_tokens": 6 * 2 * lengths[1],
        "refill/reward": pytest.approx(1 / 14),
    }


def test_a_step_in_which_nothing_teaches_is_a_step_that_updates_nothing():
    policy = fresh()
    ask, prompts = refill(mixed_for(), rounds=1)
    step = next(train(Models(policy), prompts, ask, per_token(group_standardised), grpo(beta=0)))
    assert (step.groups, step.updates, policy.version) == ([], [], 0)
    assert (ask.metrics["refill/missing"], ask.metrics["refill/reward"]) == (3.0, 0.0)


def test_no_random_numbers_are_used_twice_even_where_few_questions_come_again_and_again():
    prompts = Prompts(QUESTIONS[:2], per_step=3, shuffle=False)
    ask = DynamicSampling(rollouts(mixed_for(), greedy_baseline=True), prompts, rounds=3)
    for step, questions in enumerate(islice(prompts, 2), 1):
        ask(POLICY, questions, step=step)
    streams = [request.stream for request in ask.rollouts.engine.requests]
    assert len(streams) == len(set(streams)) == 2 * 4 * 3 * 3  # steps, rounds, questions, two answers and a baseline


def test_a_resumed_run_is_the_run_that_was_not_interrupted():
    """The position in the data is all that is carried over."""

    def by_chance(request: Request) -> str:
        return "yes" if crc32(repr(request.stream).encode()) % 3 == 0 else "no"

    def steps(prompts: Prompts, ask: DynamicSampling, start: int, count: int) -> list[tuple[list[str], object]]:
        batches = enumerate(islice(prompts, count), start)
        return [(ids(ask(POLICY, questions, step=step)), ask.metrics) for step, questions in batches]

    def made() -> tuple[Prompts, DynamicSampling]:
        prompts = Prompts(QUESTIONS, per_step=3, seed=5)
        return prompts, DynamicSampling(rollouts(by_chance), prompts, rounds=2)

    straight = steps(*made(), 1, 8)
    assert len({told["refill/rounds"] for _, told in straight}) > 1
    for interrupted in range(8):
        first, second = made(), made()
        before = steps(*first, 1, interrupted)
        second[0].load_state(first[0].state())
        assert before + steps(*second, interrupted + 1, 8 - interrupted) == straight


def test_an_answer_without_a_reward_makes_no_group_informative():
    def script(request: Request) -> str:
        return "none" if request.stream.sample else "yes"

    ask, prompts = refill(script, rounds=1)
    assert ask(POLICY, next(iter(prompts)), step=1) == []


def test_one_broken_question_in_a_refill_stops_no_run_but_many_do():
    def broken(completion: str, answer: str, prompt: str) -> float:
        if prompt in faulty:
            raise ValueError
        return right(completion, answer)

    faulty = {"question 3"}
    ask, prompts = refill(mixed_for("0", "1"), rounds=1, reward=broken)
    assert ids(ask(POLICY, next(iter(prompts)), step=1)) == ["0", "1"]
    faulty |= {f"question {number}" for number in range(1, 12)}
    ask, prompts = refill(mixed_for("0"), rounds=2, reward=broken)
    with pytest.raises(RewardError, match="4 of 6 rewards of this step"):
        ask(POLICY, next(iter(prompts)), step=1)


def test_without_a_round_there_is_nothing_to_refill():
    with pytest.raises(ValueError, match="rounds must be 1 or more"):
        refill(mixed_for(), rounds=0)


# ------------------------------------------------------------------------------------------------------- the baseline


def says(sampled: str, likeliest: str) -> Callable[[Request], str]:
    return lambda request: likeliest if request.stream.purpose.endswith("/baseline") else sampled


@pytest.mark.parametrize(("likeliest", "baseline"), [("yes", 1.0), ("no", 0.0)])
def test_the_baseline_is_the_reward_of_the_likeliest_answer_which_is_not_trained_on(likeliest, baseline):
    ask = rollouts(says("yes", likeliest), greedy_baseline=True)
    groups = ask(POLICY, QUESTIONS[:2], step=4)
    assert [sampling.temperature for sampling in ask.engine.sampled] == [1.0, 0.0]
    assert [each.stream.purpose for each in ask.engine.requests] == ["train"] * 4 + ["train/baseline"] * 2
    assert [(group.baseline, len(group.rollouts)) for group in groups] == [(baseline, 2)] * 2
    assert Batch.from_groups(groups).baselines.tolist() == [baseline] * 4
    assert [informative(group) for group in groups] == [likeliest == "no"] * 2


def test_without_being_asked_for_there_is_no_baseline():
    ask = rollouts(says("yes", "no"))
    assert [group.baseline for group in ask(POLICY, QUESTIONS[:2], step=1)] == [None, None]
    assert len(ask.engine.requests) == 4


def test_a_group_without_a_baseline_is_counted_and_not_trained_on():
    def script(request: Request) -> str:
        return {"train/baseline": "none" if request.stream.prompt_id == "0" else "no"}.get(
            request.stream.purpose, "yes"
        )

    groups = rollouts(script, greedy_baseline=True)(POLICY, QUESTIONS[:2], step=1)
    assert [[each.verdict for each in group.rollouts] for group in groups] == [["no_baseline"] * 2, ["ok"] * 2]
    batch = Batch.from_groups(groups)
    assert batch.scored.tolist() == [False, False, True, True]
    assert not batch.loss_mask[:2].any()
    assert torch.equal(batch.rewards, torch.tensor([0.0, 0.0, 1.0, 1.0]))


def test_a_verdict_that_was_there_before_is_kept():
    ask = rollouts(says("none", "none"), greedy_baseline=True)
    assert {each.verdict for each in ask(POLICY, QUESTIONS[:1], step=1)[0].rollouts} == {"not_applicable"}
