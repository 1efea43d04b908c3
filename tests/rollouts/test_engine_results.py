"""What an engine returns is checked before it is scored and trained on."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from engine_cases import fresh

from outdo.models.adapter import adapter_config, attach
from outdo.models.policy import Policy
from outdo.rewards.loading import load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import ScriptedEngine, tiny_model
from outdo.types import Completion, FinishReason, Group, Prompt
from outdo.utils.errors import EngineError

SOUND = Completion(token_ids=(9, 8, 0), logprobs=(-1.0, 0.0, -2.0), finish_reason=FinishReason.stop, policy_version=0)
QUESTIONS = [Prompt(id="q7", text="1+1=", token_ids=(5, 6))]


@cache
def policy() -> Policy:
    return fresh()


def sample(engine: ScriptedEngine, trained: Policy | None = None) -> Sequence[Group]:
    environment = SingleTurn(load_reward(lambda completion: 1.0))
    sampler = GroupSampler(engine, environment, group_size=2, sampling=SamplingParams(max_tokens=4))
    return sampler(trained or policy(), QUESTIONS, step=3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logprobs": (-1.0, float("nan"), -2.0)}, r"step 3, question q7: .* the log-probability \[nan\]"),
        ({"logprobs": (-1.0, float("-inf"), -2.0)}, r"the log-probability \[-inf\]"),
        ({"logprobs": (-1.0, 0.5, -2.0)}, r"the log-probability \[0.5\]"),
        ({"token_ids": (9, -1, 0)}, r"step 3, question q7: .* the token \[-1\]"),
        ({"token_ids": (9, 264, 0)}, "question q7: the engine returned the token 264, and the model has 264"),
        ({"token_ids": (9,) * 5, "logprobs": (-1.0,) * 5}, "5 tokens, and at most 4 were requested"),
        ({"policy_version": 1}, "from the weights after 1 optimiser step, and the policy has had 0"),
    ],
)
def test_a_completion_that_cannot_be_right_is_an_error_that_names_the_question(changes, said):
    with pytest.raises(EngineError, match=said):
        sample(ScriptedEngine(lambda request: replace(SOUND, **changes)))


def test_a_missing_completion_is_an_error(monkeypatch):
    monkeypatch.setattr(ScriptedEngine, "generate", lambda engine, requests, sampling: [SOUND])
    with pytest.raises(EngineError, match="the engine returned 1 completion of 2 requests"):
        sample(ScriptedEngine(()))


@pytest.mark.parametrize("name", ["lora", "trainable_tokens"])
def test_a_policy_that_trains_single_tokens_knows_its_vocabulary(name):
    tokens = {"trainable_token_indices": [5]} if name == "lora" else {"token_indices": [5]}
    model, tokenizer = tiny_model()
    attach(model, adapter_config(name, **tokens))
    trained = Policy(model, tokenizer)
    groups = sample(ScriptedEngine(lambda request: SOUND), trained)
    assert [rollout.token_ids for group in groups for rollout in group.rollouts] == [SOUND.token_ids] * 2
    with pytest.raises(EngineError, match="returned the token 264, and the model has 264"):
        sample(ScriptedEngine(lambda request: replace(SOUND, token_ids=(9, 264, 0))), trained)
