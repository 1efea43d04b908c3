"""Answers of the data: which questions get them, and what the policy finds of them."""

from collections.abc import Mapping

import pytest
import torch
from engine_cases import fresh

from outdo.rewards import load_reward
from outdo.rollouts.demonstrations import WithDemonstrations
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.types import Group, Prompt

POLICY = fresh()
ANSWER = (70, 71, 72)
QUESTIONS = [Prompt(id=str(n), text=f"question {n}", token_ids=(50 + n, 3, 4)) for n in range(40)]


def sampled(
    answers: Mapping[str, tuple[int, ...]], *, share: float = 1.0, step: int = 1, temperature: float = 1.0
) -> tuple[list[Group], float]:
    """The groups of a step, and the metric."""
    sampling = SamplingParams(max_tokens=4, temperature=temperature)
    reward = load_reward(lambda completion: float(len(completion)))
    sampler = GroupSampler(BuiltinEngine(POLICY), SingleTurn(reward), group_size=2, sampling=sampling)
    demonstrations = WithDemonstrations(sampler, lambda prompt: answers.get(prompt.id), share=share, seed=0)
    result = demonstrations(POLICY, QUESTIONS, step=step)
    return list(result.groups), result.metrics["demonstrations/ratio"]


def test_a_share_of_the_questions_is_demonstrated_and_the_rest_is_sampled():
    answers = {prompt.id: ANSWER for prompt in QUESTIONS}
    groups, ratio = sampled(answers, share=0.5)
    assert [group.prompt for group in groups] == QUESTIONS
    shown = [group for group in groups if group.demonstrated]
    assert 10 <= len(shown) <= 30
    assert ratio == len(shown) / 40
    assert all([rollout.token_ids for rollout in group.rollouts] == [ANSWER] for group in shown)
    assert all(len(group.rollouts) == 2 for group in groups if not group.demonstrated)
    again, _ = sampled(answers, share=0.5)
    assert again == groups
    later, _ = sampled(answers, share=0.5, step=2)
    assert [group.demonstrated for group in later] != [group.demonstrated for group in groups]


def test_a_question_without_a_demonstration_or_with_one_that_is_too_long_is_sampled():
    groups, ratio = sampled({"0": ANSWER, "1": (70, 71, 72, 73, 74), "2": ()})
    assert [group.prompt.id for group in groups if group.demonstrated] == ["0"]
    assert ratio == 1 / 40


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_its_log_probabilities_are_those_of_the_policy_at_the_temperature_of_the_sampling(temperature: float):
    groups, _ = sampled({"0": ANSWER}, temperature=temperature)
    (rollout,) = groups[0].rollouts
    ids = torch.tensor([[*QUESTIONS[0].token_ids, *ANSWER]])
    logits = POLICY.model(input_ids=ids).logits[0, 2:-1] / temperature
    expected = logits.log_softmax(-1).gather(1, torch.tensor(ANSWER)[:, None])[:, 0]
    assert rollout.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
    assert rollout.temperature == temperature
    assert rollout.policy_version == POLICY.version
    assert rollout.reward == len(rollout.text)


def test_a_share_that_is_none_is_refused():
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match="share must be above 0 and at most 1"):
            sampled({}, share=share)
