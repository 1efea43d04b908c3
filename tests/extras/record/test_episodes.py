"""Test the record of episodes of several turns: who wrote which token, and that only the policy's tokens are pushed."""

import math
from pathlib import Path

import pytest
import torch
from episode_cases import add, dialogue, question, tool_tokenizer

from outdo.algorithms.advantages import compute_advantages, group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.algorithms.vocabulary_sums import token_entropy
from outdo.extras.episodes.episode import Reply
from outdo.extras.record.parquet import read
from outdo.extras.record.recorder import Recorder
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import tiny_model
from outdo.types import Batch, Group, Sampled, Step


class Letters:
    """Rewards the letters and digits of each of three turns."""

    def __init__(self) -> None:
        self.left = 3

    def reply(self, message: dict[str, str]) -> Reply:
        self.left -= 1
        told = [{"role": "user", "content": f"{self.left} left."}] if self.left else []
        return Reply(messages=told, reward=sum(map(str.isalnum, message["content"])) / 8)


@pytest.fixture(scope="module")
def step() -> tuple[Policy, Step]:
    """A step on four episodes, whose environment tokens have NaN wherever nothing may be read."""
    policy = Policy(tiny_model()[0], tool_tokenizer(), optimiser=OptimiserSettings(lr=1e-3))
    environment = dialogue(Letters, tools=[add], tokenizer=policy.tokenizer, turn_tokens=8)
    prompts = [question(environment.template)]
    groups: list[Group] = environment.rollouts(
        BuiltinEngine(policy), prompts, 4, SamplingParams(max_tokens=300), step=1, purpose="train"
    )
    objective = grpo(beta=0.0)
    batch = Batch.from_groups(groups)
    scored = policy.measure(batch, {"entropy": token_entropy})
    nothing = torch.tensor(math.nan)
    batch = batch.with_(
        old_logprobs=scored.logprobs.where(batch.loss_mask, nothing),
        rollout_logprobs=batch.rollout_logprobs.where(batch.loss_mask, nothing),
    )
    batch = objective.prepare(compute_advantages(per_token(group_standardised), batch))
    assert batch.advantages is not None
    batch = batch.with_(advantages=batch.advantages.where(batch.loss_mask, nothing))
    update = policy.update(batch, objective)
    return policy, Step(index=1, sampled=Sampled(groups=groups), batch=batch, updates=[update])


def test_push_divergence_and_entropy_of_environment_tokens_are_exactly_0(step: tuple[Policy, Step]) -> None:
    _, made = step
    update = made.update
    assert update is not None
    assert update.metrics["updates/refused"] == 0
    assert made.batch.turn.max() == 2
    for name in ("logprobs", "log_ratio", "entropy", "push", "policy_push", "clipped"):
        outside = update.tokens[name][~made.batch.loss_mask]
        assert (outside == 0).all(), name
    assert (update.tokens["push"][made.batch.loss_mask] != 0).any()


def test_the_record_names_the_turn_of_every_token(step: tuple[Policy, Step], tmp_path: Path) -> None:
    policy, made = step
    Recorder(policy, grpo(beta=0.0), after="all")(made, tmp_path)
    for row, rollout in zip(read(tmp_path, 1).to_pylist(), made.groups[0].rollouts, strict=True):
        assert [turn >= 0 for turn in row["turn"]] == list(rollout.loss_mask)
        assert sorted(set(row["turn"])) == [-1, 0, 1, 2]
        assert [word == "environment" for word in row["clip"]] == [turn < 0 for turn in row["turn"]]
        silent = [t for t, turn in enumerate(row["turn"]) if turn < 0]
        assert all(row[name][t] is None for name in ("policy_push", "entropy", "old_logprobs") for t in silent)
