"""The rollouts of a run without a lag: the plain loop bit for bit, and an account of every question."""

import json

from engine_cases import fresh, tokens

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.data.prompts import Prompts
from outdo.extras.staleness.asynchronous import AsynchronousRollouts
from outdo.loop import in_turn, train
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.rewards import load_reward
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.rollouts.in_turn import InTurn
from outdo.run.checkpoints.checkpoint import weights_hash
from outdo.testing import ScriptedEngine
from outdo.types import Prompt, Sampled

QUESTIONS = [Prompt(id=str(number), text=f"question {number}", token_ids=tokens(3, number)) for number in range(64)]
IN_ORDER = list(Prompts(QUESTIONS, per_step=2).take(len(QUESTIONS)))


def scripted(questions: Prompts) -> GroupSampler:
    """Every second answer is right; the answers to every third question are all wrong."""

    def answer(request) -> str:
        return "no" if int(request.stream.prompt_id) % 3 == 0 or request.stream.sample % 2 else "yes"

    def right(completion: str) -> float:
        return float(completion == "yes")

    environment = SingleTurn(load_reward(right))
    return GroupSampler(ScriptedEngine(answer), environment, group_size=2, sampling=SamplingParams(max_tokens=9))


def asked(sampled: Sampled) -> list[str]:
    return [group.prompt.id for group in sampled.groups]


def test_the_rollouts_of_a_run_are_the_plain_loop_bit_for_bit():
    def trained(make) -> str:
        policy = fresh(optimiser=OptimiserSettings(lr=1e-3))
        environment = SingleTurn(load_reward(lambda completion: float(len(completion) % 3)))
        sampling = SamplingParams(max_tokens=6)
        sampler = GroupSampler(BuiltinEngine(policy), environment, group_size=4, sampling=sampling)
        rollouts = make(sampler, Prompts(QUESTIONS, per_step=2), policy)
        models = Models.of(policy, objective := grpo(beta=0.0))
        for step in train(models, rollouts, per_token(group_standardised), objective):
            if step.index == 3:
                break
        return weights_hash(policy.model.state_dict())

    plain = trained(lambda sampler, prompts, policy: in_turn(policy, prompts, sampler))
    assert trained(InTurn) == plain


def test_a_state_goes_on_with_the_questions_after_the_finished_step():
    """Also the state of a step whose successor is sampled already: a signal may have ended its update."""
    prompts = Prompts(QUESTIONS, per_step=2)
    rollouts = InTurn(scripted(prompts), prompts, fresh())
    steps = iter(rollouts)
    found = [asked(next(steps)[1]) for _ in range(4)]
    for after in (3, 4):
        state = json.loads(json.dumps(rollouts.state(after=after)))
        prompts = Prompts(QUESTIONS, per_step=2)
        resumed = InTurn(scripted(prompts), prompts, fresh())
        resumed.load_state(state)
        step, sampled = next(iter(resumed))
        assert step == after + 1
        assert asked(sampled) == (found[3] if after == 3 else [each.id for each in IN_ORDER[8:10]])
        assert resumed.question_counts(after=after) == state["ledger"] == rollouts.question_counts(after=after)


def test_every_question_is_trained_or_dropped():
    prompts = Prompts(QUESTIONS, per_step=4)
    sampler = DynamicSampling(scripted(prompts), prompts, advantage=per_token(group_standardised), rounds=3)
    steps = iter(rollouts := InTurn(sampler, prompts, fresh()))
    trained = sum(len(next(steps)[1].groups) for _ in range(3))
    counts = rollouts.question_counts(after=3)
    assert counts["asked"] == counts["answered"] == prompts.position
    assert counts["trained"] == trained
    assert counts["why"] == {"no_advantage": prompts.position - trained}
    assert counts["dropped"] > 0


def test_a_run_that_sampled_ahead_goes_on_in_turn_and_back():
    """The batches ahead are sampled again."""

    def prompts() -> Prompts:
        return Prompts(QUESTIONS, per_step=2)

    first = AsynchronousRollouts(scripted(source := prompts()), source, fresh(), lag=2, last=9)
    next(iter(first))
    first.wait()
    first.stop()
    first.join()
    turned = InTurn(scripted(source := prompts()), source, fresh())
    turned.load_state(first.state(after=1))
    step, sampled = next(iter(turned))
    assert (step, asked(sampled)) == (2, [each.id for each in IN_ORDER[2:4]])
    back = AsynchronousRollouts(scripted(source := prompts()), source, fresh(), lag=2, last=9)
    back.load_state(turned.state(after=2))
    step, sampled = next(iter(back))
    back.stop()
    back.join()
    assert (step, asked(sampled)) == (3, [each.id for each in IN_ORDER[4:6]])
    assert back.question_counts(after=2)["trained"] == turned.question_counts(after=2)["trained"]
