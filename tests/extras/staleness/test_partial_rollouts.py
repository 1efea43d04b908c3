"""Answers that go on across updates: they are undivided ones, their parts have fixed places, and a state holds them."""

from dataclasses import replace

import pytest
from engine_cases import fresh, requests, shared
from test_asynchronous import IN_ORDER, QUESTIONS, change_weights, closed, saved_and_loaded

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.data.prompts import Prompts
from outdo.extras.staleness.partial_completions import PresampledEngine, continue_completions
from outdo.extras.staleness.partial_rollouts import PartialRollouts
from outdo.extras.staleness.saved_groups import groups_of_state, state_of_groups
from outdo.extras.staleness.versions import token_versions
from outdo.models.completion_text import completion_text
from outdo.rewards import load_reward
from outdo.rollouts.engines.base import PolicySnapshot
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.utils.errors import EngineError

LAST = 7
LENGTH = 10


def in_parts(engine, policy, sampling, asked, limits):
    completions = {}
    for limit in limits:
        completions = continue_completions(engine, policy, sampling, asked, completions, [limit] * len(asked))
    return [completions[each.stream] for each in asked]


@pytest.mark.parametrize(("arch", "limits"), [("qwen3", (1, 2, 11, 12)), ("gpt2", (6, 12))])
def test_with_equal_weights_the_parts_of_an_answer_are_the_undivided_one(arch, limits):
    policy, sampling = shared(arch), SamplingParams(max_tokens=12)
    engine, asked = BuiltinEngine(policy, seed=3), requests(siblings=2)
    whole = engine.generate(asked, sampling)
    found = in_parts(engine, policy, sampling, asked, limits)
    assert [each.token_ids for each in found] == [each.token_ids for each in whole]
    assert [each.finish_reason for each in found] == [each.finish_reason for each in whole]
    assert len({each.finish_reason for each in whole}) > 1 or arch == "gpt2"
    for mine, its in zip(found, whole, strict=True):
        assert mine.logprobs == pytest.approx(its.logprobs, abs=1e-5)
        assert token_versions(mine) == token_versions(its)


def test_parts_end_where_the_undivided_answer_ends_at_a_stop_string_and_at_the_end_of_the_context():
    policy = shared()
    engine, asked = BuiltinEngine(policy, seed=3), requests(siblings=2)
    free = engine.generate(asked, SamplingParams(max_tokens=12))
    pairs = [
        completion_text(engine.tokenizer, each.token_ids[place : place + 2]) for each in free for place in range(3, 8)
    ]
    crossing = next(text for text in pairs if len(text) == 2 and text.isprintable())  # of two tokens
    sampling = SamplingParams(max_tokens=12, stop=(crossing,))
    whole = engine.generate(asked, sampling)
    assert any(len(each.token_ids) < len(before.token_ids) for each, before in zip(whole, free, strict=True))
    for limit in range(1, 12):
        found = in_parts(engine, policy, sampling, asked, (limit, 12))
        assert [each.token_ids for each in found] == [each.token_ids for each in whole], limit
        assert [each.finish_reason for each in found] == [each.finish_reason for each in whole]
    short = BuiltinEngine(fresh(), seed=3)
    short.policy.context = longest = max(len(each.token_ids) for each in asked) + 4
    whole = short.generate(asked, SamplingParams(max_tokens=12))
    found = in_parts(short, short.policy, SamplingParams(max_tokens=12), asked, (4, 8, 12))
    assert [each.token_ids for each in found] == [each.token_ids for each in whole]
    assert max(len(each.token_ids) + len(one.token_ids) for each, one in zip(found, asked, strict=True)) == longest


def test_a_part_of_other_weights_than_the_engine_was_given_is_an_error():
    engine = BuiltinEngine(shared(), seed=3)
    newer = replace_version(engine.policy, 4)
    with pytest.raises(EngineError, match="after 0 optimiser steps, and the policy has had 4"):
        in_parts(engine, newer, SamplingParams(max_tokens=12), requests(), (6, 12))


def replace_version(policy, version):
    return replace(PolicySnapshot.of(policy), version=version)


class Delivered(BuiltinEngine):
    """The engine, which takes each copy without choosing anew how it samples. It counts its calls."""

    calls = 0

    def update_weights(self, policy):
        self.policy = policy

    def generate(self, asked, sampling):
        self.calls += 1
        return super().generate(asked, sampling)


def ahead_of(policy, *, lag, rounds=0, calls=None):
    questions = Prompts(QUESTIONS, per_step=2)
    engine = Delivered(policy, seed=3)
    reward = load_reward(lambda completion: float(len(completion) % 3))
    sampling = SamplingParams(max_tokens=LENGTH)
    sampler = GroupSampler(PresampledEngine(engine), SingleTurn(reward), group_size=4, sampling=sampling)
    sampler = (
        DynamicSampling(sampler, questions, advantage=per_token(group_standardised), rounds=rounds)
        if rounds
        else sampler
    )
    return PartialRollouts(sampler, questions, policy, lag=lag, last=LAST), engine


def test_each_part_of_an_answer_has_the_weights_that_the_lag_says():
    lag, policy = 3, fresh()
    ahead, engine = ahead_of(policy, lag=lag)
    asked, versions = [], [0]
    for step, sampled in ahead:
        asked += [group.prompt for group in sampled.groups]
        ages = []
        for group in sampled.groups:
            for rollout in group.rollouts:
                for place, version in enumerate(token_versions(rollout)):
                    part = next(k for k in range(lag) if place < -(-LENGTH * (k + 1) // lag))
                    assert version == versions[max(0, step - 1 - lag + part)]
                    ages.append(step - 1 - max(0, step - 1 - lag + part))
        assert sampled.metrics["staleness/mean"] == pytest.approx(sum(ages) / len(ages))
        assert sampled.metrics["staleness/max"] == max(ages) == min(step - 1, lag)
        if step == LAST:
            break
        change_weights(policy, 2)
        versions.append(policy.version)
    closed(ahead)
    assert asked == IN_ORDER[: 2 * LAST]
    assert engine.calls == LAST  # one for each version of the weights, and one for the first step
    assert ahead.question_counts(after=LAST)["asked"] == ahead.question_counts(after=LAST)["trained"] == 2 * LAST


@pytest.mark.parametrize(("is_sampled", "rounds"), [(True, 2), (False, 0)], ids=["sampled", "still waiting"])
def test_a_state_goes_on_with_unfinished_answers(is_sampled, rounds):
    straight = trained(LAST, rounds=rounds)[0]
    first, policy, ahead = trained(3, rounds=rounds, wait=is_sampled)
    state = saved_and_loaded(ahead.state(after=3))
    assert len(state["begun"]) == 2
    questions = state["ledger"]
    assert questions["asked"] == questions["answered"] + 2 * (len(state["begun"]) + len(state["waiting"]))
    closed(ahead)
    second = trained(LAST, rounds=rounds, policy=policy, state=state)[0]
    assert [*first, *second] == straight
    assert len({version for groups in second for each in groups[0].rollouts for version in token_versions(each)}) > 2


def trained(last, *, rounds, wait=True, policy=None, state=None):
    """The groups of each step up to `last`, with weights that change after each."""
    policy = policy or fresh()
    ahead, _ = ahead_of(policy, lag=3, rounds=rounds)
    if state is not None:
        ahead.load_state(state)
    found = []
    for step, sampled in ahead:
        found.append(list(sampled.groups))
        if step == last:
            if wait:
                ahead.wait()
            else:
                hold(ahead)
            change_weights(policy, 2)
            if last == LAST:
                closed(ahead)
            return found, policy, ahead
        change_weights(policy, 2)
    raise AssertionError


def hold(ahead) -> None:
    """Make the newest batch one that is not sampled yet, as if the thread were slower."""
    ahead.wait()
    newest = max(ahead._batches)
    batch = ahead._batches[newest]
    ahead._batches[newest] = replace_batch(batch, ahead._copied())


def replace_batch(batch, policy):
    return type(batch)(batch.step, policy)


def test_answers_that_go_on_are_saved_with_the_version_of_each_token_and_other_settings_refuse_them():
    _, _, ahead = trained(3, rounds=0)
    state = saved_and_loaded(ahead.state(after=3))
    other, _ = ahead_of(fresh(), lag=2)
    with pytest.raises(ValueError, match="answers are unfinished"):
        other.load_state(state)
    closed(ahead)
    groups = ahead._batches[4].rollouts.result().sampled.groups
    known = {prompt.id: prompt for prompt in QUESTIONS}
    assert any(rollout.versions for group in groups for rollout in group.rollouts)
    assert groups_of_state(saved_and_loaded(state_of_groups(groups, known)), known) == list(groups)
