"""Sampling ahead of training: which weights sample which batch, each question once, and what a checkpoint holds."""

import json
from dataclasses import replace
from threading import Event, Thread
from types import SimpleNamespace

import pytest
import torch
from engine_cases import fresh, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.data.curriculum import Curriculum
from outdo.data.prompts import Prompts
from outdo.extras.staleness.asynchronous import AsynchronousRollouts
from outdo.extras.staleness.saved_groups import groups_of_state, state_of_groups
from outdo.extras.staleness.versions import staleness
from outdo.rewards import load_reward
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.rollouts.in_turn import InTurn, RunRollouts
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.testing import ScriptedEngine
from outdo.types import FinishReason, Group, Prompt, Rollout, Sampled
from outdo.utils.errors import EngineError, EngineLostError

QUESTIONS = [Prompt(id=str(number), text=f"question {number}", token_ids=tokens(3, number)) for number in range(64)]
IN_ORDER = list(Prompts(QUESTIONS, per_step=2).take(len(QUESTIONS)))
LAST = 8


def rollout(version: int, **others: object) -> Rollout:
    plain = {"token_ids": (5,), "loss_mask": (True,), "logprobs": (-1.0,), "text": "yes", "reward": 1.0}
    return Rollout(**plain, finish_reason=FinishReason.stop, policy_version=version, **others)


class Sampler:
    """Answers each question once, and notes which weights it had for which step. It waits for `held`, if given."""

    def __init__(self, held: Event | None = None) -> None:
        self.held = held
        self.versions: dict[int, int] = {}
        self.weights: dict[int, float] = {}

    def __call__(self, policy, questions, *, step):
        if self.held is not None:
            assert self.held.wait(60)
        self.versions[step] = policy.version
        self.weights[step] = first_weight(policy)
        return [Group(prompt=prompt, rollouts=(rollout(policy.version),)) for prompt in questions]


def first_weight(policy) -> float:
    return float(next(policy.model.parameters()).detach().flatten()[0])


def sampling_ahead(sampler, *, lag, policy=None, questions=None, last=LAST) -> AsynchronousRollouts:
    return AsynchronousRollouts(
        sampler, questions or Prompts(QUESTIONS, per_step=2), policy or fresh(), lag=lag, last=last
    )


@torch.no_grad()
def change_weights(policy, optimiser_steps: int) -> None:
    """Change the weights in place, as the optimiser does."""
    next(policy.model.parameters()).add_(float(optimiser_steps))
    policy.optimiser.steps += optimiser_steps


def questions_of(sampled: Sampled) -> list[Prompt]:
    return [group.prompt for group in sampled.groups]


def closed(ahead: RunRollouts) -> None:
    ahead.stop()
    ahead.join()


@settings(max_examples=8)
@given(lag=st.integers(1, 4), optimiser_steps=st.lists(st.integers(0, 3), min_size=LAST, max_size=LAST))
def test_the_batch_of_a_step_has_the_weights_that_the_lag_says_and_is_never_older(lag, optimiser_steps):
    sampler, policy = Sampler(), fresh()
    ahead = sampling_ahead(sampler, lag=lag, policy=policy)
    versions, weights, asked = [], [], []
    for step, sampled in ahead:
        versions.append(policy.version)  # before the step
        weights.append(first_weight(policy))
        asked += questions_of(sampled)
        source = max(0, step - 1 - lag)
        assert sampler.versions[step] == versions[source]
        assert sampler.weights[step] == weights[source]
        assert {each.policy_version for group in sampled.groups for each in group.rollouts} == {versions[source]}
        assert sampled.metrics.get("staleness/max", 0) <= lag
        if step == LAST:
            break
        change_weights(policy, optimiser_steps[step - 1])
    closed(ahead)
    assert sorted(sampler.versions) == list(range(1, LAST + 1))  # nothing was sampled that no step trains
    assert asked == IN_ORDER[: 2 * LAST]


def test_the_weights_are_a_copy_until_a_busy_engine_takes_them():
    held, policy = Event(), fresh()
    sampler = Sampler(held)
    ahead = sampling_ahead(sampler, lag=2, policy=policy)
    before = first_weight(policy)
    steps = iter(ahead)
    held.set()
    next(steps)
    ahead.wait()
    held.clear()
    change_weights(policy, 1)
    next(steps)  # requests step 4 with these weights, which the engine cannot take yet
    change_weights(policy, 1)
    held.set()
    ahead.wait()
    closed(ahead)
    assert [sampler.versions[step] for step in (1, 2, 3, 4)] == [0, 0, 0, 1]
    assert [sampler.weights[step] - before for step in (1, 2, 3, 4)] == pytest.approx([0, 0, 0, 1])


def test_an_error_in_the_thread_is_raised_at_the_step_that_lacks_answers_and_not_before():
    class Failing(Sampler):
        def __call__(self, policy, questions, *, step):
            if step == 3:
                raise EngineLostError("it has ended")
            return super().__call__(policy, questions, step=step)

    sampler = Failing()
    ahead = sampling_ahead(sampler, lag=2)
    steps = iter(ahead)
    next(steps)
    next(steps)
    with pytest.raises(EngineLostError, match="it has ended"):
        next(steps)
    ahead._queue.put(None)  # a thread that went on would sample first what was requested before
    ahead.join()
    assert sorted(sampler.versions) == [1, 2]  # step 4 would have had the questions of step 3


def test_nothing_is_sampled_while_an_evaluation_has_the_engine():
    began = Event()

    class Beginning(Sampler):
        def __call__(self, policy, questions, *, step):
            began.set()
            return super().__call__(policy, questions, step=step)

    ahead = sampling_ahead(Beginning(), lag=1)
    first = Thread(target=lambda: next(iter(ahead)))

    def evaluation(policy) -> None:
        first.start()
        assert not began.wait(0.5)

    ahead.with_engine(evaluation)
    assert began.wait(600)
    first.join()
    closed(ahead)


@pytest.mark.parametrize("version", [3, 9])
def test_answers_of_weights_that_are_too_old_or_unknown_are_refused_where_they_would_be_trained(version):
    versions = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6}
    group = Group(prompt=QUESTIONS[0], rollouts=(rollout(4), rollout(version)))
    assert staleness([replace(group, rollouts=(rollout(4), rollout(6)))], versions, step=6, lag=1) == {0: 1, 1: 1}
    with pytest.raises(EngineError, match=f"step 6, question 0: .* after {version} optimiser .* are those after 4, 6"):
        staleness([group], versions, step=6, lag=1)


def test_staleness_counts_no_token_that_an_environment_wrote():
    tokens = {"token_ids": (1, 2, 3), "loss_mask": (True, False, True), "logprobs": (0.0,) * 3, "versions": (4, 6, 6)}
    episode = replace(rollout(6), **tokens)
    assert staleness([Group(prompt=QUESTIONS[0], rollouts=(episode,))], {4: 4, 5: 6}, step=6, lag=1) == {0: 1, 1: 1}


# --------------------------------------------------------------------------------------------------------- checkpoints


def saved_and_loaded(state):
    tree, tensors = pack(state)
    return unpack(json.loads(json.dumps(tree)), tensors)


@pytest.mark.parametrize("is_sampled", [True, False], ids=["sampled", "still waiting"])
@pytest.mark.parametrize("lag", [1, 3])
def test_a_state_goes_on_with_the_same_questions_and_the_same_weights(lag, is_sampled):
    held, policy = Event(), fresh()
    held.set()
    before = first_weight(policy)
    ahead = sampling_ahead(Sampler(held), lag=lag, policy=policy)
    for step, _ in ahead:
        if step == 2:
            break
        ahead.wait()
        if not is_sampled:
            held.clear()  # the batch that step 2 requests has to wait
        change_weights(policy, 2)
    if is_sampled:
        ahead.wait()
    change_weights(policy, 2)
    state = saved_and_loaded(ahead.state(after=2))
    held.set()
    closed(ahead)
    assert [each["step"] for each in state["waiting"]] == ([] if is_sampled else [2 + lag])

    sampler = Sampler()
    resumed = sampling_ahead(sampler, lag=lag, policy=policy)
    resumed.load_state(state)
    asked = []
    for step, sampled in resumed:
        asked += questions_of(sampled)
        groups = sampled.groups
        expected = max(0, 2 * (step - 1 - lag))
        assert {each.policy_version for group in groups for each in group.rollouts} == {expected}
        assert sampler.weights.get(step, before + expected) == pytest.approx(before + expected)
        if step == LAST:
            break
        change_weights(policy, 2)
    closed(resumed)
    assert asked == IN_ORDER[4 : 2 * LAST]
    assert not {each["step"] for each in state["sampled"]} & sampler.versions.keys()  # no reward is computed again


@pytest.mark.parametrize("is_sharded", [False, True])
def test_replicas_take_a_state_together_only_where_each_writes_a_part_of_the_weights(monkeypatch, is_sharded):
    """A first replica that writes alone would wait for the others for ever; LoRA divides frozen weights alone."""
    ahead = sampling_ahead(Sampler(), lag=1)
    alone = ahead.state(after=0)
    calls = []
    ahead.first_replica = SimpleNamespace(call=lambda compute: calls.append(1) or compute())
    monkeypatch.setattr(type(ahead.policy.forward), "sharding", object())
    monkeypatch.setattr(ahead.policy.optimiser, "is_sharded", is_sharded)
    assert ahead.state(after=0) == alone
    assert len(calls) == is_sharded


def test_with_another_lag_the_batches_ahead_are_sampled_again():
    ahead = sampling_ahead(Sampler(), lag=3)
    next(iter(ahead))
    ahead.wait()
    again = Sampler()
    resumed = sampling_ahead(again, lag=1)
    resumed.load_state(saved_and_loaded(ahead.state(after=1)))
    closed(ahead)
    assert questions_of(next(iter(resumed))[1]) == IN_ORDER[2:4]
    closed(resumed)
    assert 2 in again.versions


def test_the_counts_have_each_question_in_one_place():
    """Half of the questions give no signal, and some get no reward: dynamic sampling takes others instead."""
    policy = fresh()
    questions = Prompts(QUESTIONS, per_step=4)

    def right(completion: str) -> float | None:
        return {"none": None}.get(completion, float(completion == "yes"))

    def answer(request) -> str:
        number = int(request.stream.prompt_id)
        return "no" if number % 2 else ("yes" if request.stream.sample % 2 else "no")

    sampler = GroupSampler(
        ScriptedEngine(answer), SingleTurn(load_reward(right)), group_size=2, sampling=SamplingParams(max_tokens=9)
    )
    sampler = DynamicSampling(sampler, questions, advantage=per_token(group_standardised), rounds=1)
    ahead = sampling_ahead(sampler, lag=2, policy=policy, questions=questions)
    steps = iter(ahead)
    trained = sum(len(next(steps)[1].groups) for _ in range(2))
    ahead.wait()
    counts = ahead.question_counts(after=2)
    assert counts["asked"] == counts["answered"] == questions.position
    assert counts["trained"] == trained
    assert counts["why"] == {"no_advantage": counts["dropped"]}
    ahead_of_it = [group for step in (3, 4) for group in ahead._batches[step].rollouts.result().sampled.groups]
    assert counts["trained"] + counts["dropped"] + len(ahead_of_it) <= counts["asked"]
    closed(ahead)


def test_groups_are_saved_without_loss():
    known = {prompt.id: prompt for prompt in QUESTIONS}
    full = rollout(
        3,
        right=True,
        reward_parts={"exact": 1.0, "none": None},
        temperature=0.7,
        token_rewards=(1.0,),
        routes=torch.ones(4, 1, 2, dtype=torch.uint8),
        counts={"tools/calls": 2},
    )
    empty = replace(rollout(3, status="failed"), token_ids=(), loss_mask=(), logprobs=(), reward=0.0)
    longer = replace(QUESTIONS[1], text="question 1, and a rule", token_ids=(1, 2, 3, 4))
    groups = [
        Group(prompt=QUESTIONS[0], rollouts=(full, empty), baseline=0.5),
        Group(prompt=longer, rollouts=(replace(rollout(2), forks=((2, 0),)),)),
    ]
    loaded = groups_of_state(saved_and_loaded(state_of_groups(groups, known)), known)
    assert loaded == groups
    assert loaded[0].prompt is QUESTIONS[0]
    assert torch.equal(loaded[0].rollouts[0].routes, full.routes)
    assert groups_of_state(saved_and_loaded(state_of_groups([], known)), known) == []


@pytest.mark.parametrize("lag", [0, 2])
def test_a_curriculum_has_the_levels_that_it_had_and_goes_on_with_them(lag: int):
    def levels() -> Curriculum:
        of_levels = {level: QUESTIONS[16 * level : 16 * level + 16] for level in range(4)}
        return Curriculum(of_levels, window=3, threshold=0.6, per_step=2)

    def begun() -> RunRollouts:
        questions = levels()

        def sample(policy, asked, *, step):
            groups = [
                Group(prompt=prompt, rollouts=(rollout(policy.version, right=int(prompt.id) % 3 > 0),))
                for prompt in asked
            ]
            questions.observe(groups)
            return groups

        if lag == 0:
            sample.engine = BuiltinEngine()
            return InTurn(sample, questions, fresh())
        return sampling_ahead(sample, lag=lag, questions=questions)

    def trained_on(rollouts: RunRollouts, steps: range) -> list[tuple[list[str], float]]:
        found = []
        for _, (_, sampled) in zip(steps, rollouts, strict=False):
            found.append(([group.prompt.id for group in sampled.groups], sampled.metrics["data/level"]))
        return found

    straight, first, resumed = begun(), begun(), begun()
    expected = trained_on(straight, range(1, LAST + 1))
    assert trained_on(first, range(1, 4)) == expected[:3]
    first.wait()
    resumed.load_state(saved_and_loaded(first.state(after=3)))
    assert trained_on(resumed, range(4, LAST + 1)) == expected[3:]
    assert expected[0][1] == 0
    assert expected[-1][1] > 1
    for ahead in (straight, first, resumed):
        closed(ahead)
