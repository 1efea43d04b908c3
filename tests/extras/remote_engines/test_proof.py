"""An engine that does not have the policy's weights is stopped before a token of its answers is trained."""

from itertools import islice, repeat

import pytest
import torch
from copied_engines import CopyingEngine, separate
from engine_cases import fresh, tokens

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.extras.remote_engines.proof import FLOAT32, LENGTH, SEQUENCES, Proof, fixed_sequences
from outdo.loop import in_turn, train
from outdo.models.adapter import adapter_config, attach
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rewards import load_reward
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import ScriptedEngine, tiny_model
from outdo.types import Prompt
from outdo.utils.errors import DeliveryError, EngineError

QUESTIONS = [Prompt(id=str(i), text="", token_ids=tokens(4 + i, i), answer="") for i in range(2)]
SETTINGS = OptimiserSettings(lr=1e-2)


def long_or_short(completion: str) -> float:
    return float(len(completion) % 2)


def adapted() -> Policy:
    model, tokenizer = tiny_model()
    attach(model, adapter_config("lora", r=4))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return Policy(model, tokenizer, optimiser=SETTINGS)


def steps(policy: Policy, engine: Engine, count: int) -> None:
    """Train for some steps."""
    sampling = SamplingParams(max_tokens=8)
    sampler = GroupSampler(engine, SingleTurn(load_reward(long_or_short)), group_size=6, sampling=sampling)
    objective, advantage = grpo(beta=0.0), per_token(group_standardised)
    rollouts = in_turn(policy, repeat(QUESTIONS), sampler)
    for _ in islice(train(Models.of(policy, objective), rollouts, advantage, objective), count):
        pass


def test_an_engine_with_the_weights_of_the_policy_is_proved_after_each_update():
    policy = fresh(optimiser=SETTINGS)
    engine = separate(CopyingEngine(policy))
    found = []
    check = engine.proof.check
    engine.proof.check = lambda *how: (check(*how), found.append(engine.proof.last))
    steps(policy, engine, 2)
    assert policy.version == 2
    assert len(found) == 2
    assert max(found) < 1e-5


CAUSES = {
    "no load": "the base model: the adapter is not loaded",
    "same id": "still has the weights after 0 optimiser steps",
    "in place": "only sampled tokens are wrong: the prefix cache",
    "prefix cache": "only sequence 4 is wrong: the prefix cache",
    "wrong tensor": "a part of the weights did not arrive",
}


@pytest.mark.parametrize("fault", CAUSES)
def test_a_stale_engine_is_stopped_before_a_token_is_trained(fault):
    with_adapter = fault in ("no load", "same id")
    policy = adapted() if with_adapter else fresh(optimiser=SETTINGS)
    start = fresh() if fault == "no load" else policy
    engine = separate(CopyingEngine(start, fault))
    updates_before = 0 if fault == "no load" else 1
    with pytest.raises(DeliveryError, match=CAUSES[fault]) as raised:
        steps(policy, engine, 2)
    assert policy.version == updates_before
    assert f"after {updates_before} optimiser step" in str(raised.value)
    assert "nats apart (at most 0.0001" in str(raised.value)


def test_log_probabilities_at_another_temperature_are_recognised():
    policy = fresh()
    with pytest.raises(DeliveryError, match="those at temperature 1, not at the sampling temperature"):
        separate(CopyingEngine(policy, "temperature")).update_weights(policy)


def test_an_engine_that_scores_too_few_tokens_is_refused():
    policy = fresh()
    engine = ScriptedEngine(lambda _: [5], policy.tokenizer)
    engine.score = lambda sequences: [[-1.0]] * len(sequences)
    with pytest.raises(EngineError, match=r"scored .* tokens of test sequences of 64 tokens"):
        Proof(FLOAT32).check(engine, policy)


def test_scores_that_are_not_finite_are_refused():
    policy = fresh()
    engine = CopyingEngine(policy)
    engine.score = lambda sequences: [[float("nan")] * (len(each) - 1) for each in sequences]
    with pytest.raises(DeliveryError, match="nan nats apart"):
        separate(engine).update_weights(policy)


@pytest.mark.parametrize("context", [None, 512, 20])
def test_the_sequences_fit_into_the_context_and_the_vocabulary(context):
    policy = fresh()
    policy.context = context
    sequences = fixed_sequences(policy)
    assert sequences == fixed_sequences(policy)
    assert len({tuple(each) for each in sequences}) == SEQUENCES
    assert {len(each) for each in sequences} == {LENGTH if context != 20 else 12}
    assert all(0 <= token < len(policy.tokenizer) for each in sequences for token in each)


def test_the_test_sequences_of_a_policy_that_trains_single_tokens_are_those_of_its_base():
    policy, (model, tokenizer) = fresh(), tiny_model()
    attach(model, adapter_config("lora", r=2, trainable_token_indices=[7]))
    assert fixed_sequences(Policy(model, tokenizer)) == fixed_sequences(policy)
