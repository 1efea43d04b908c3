"""Whatever a step brings, an advantage takes it, or says in a sentence why not: no error has a traceback."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from toys import batch_of, rollout

from outdo.algorithms.advantages import per_token
from outdo.config.names import ADVANTAGES
from outdo.config.recipe import Piece
from outdo.run.assemble.method import instantiate
from outdo.types import Batch, Rollout
from outdo.utils.errors import UserError
from outdo.utils.imports import signature_of

TURNS: dict[str, Any] = {"mask": (True, False, True), "token_rewards": (0.25, 0.0, 0.75)}
UNEVEN: dict[str, Any] = {"mask": (True, True, True), "token_rewards": (0.0, 0.0, 1.0)}
ROLLOUTS: dict[str, list[Rollout]] = {
    "numbers": [rollout(3, 1.0), rollout(2, 0.5), rollout(1, 0.0)],
    "verdicts": [rollout(3, 1.0, right=True), rollout(2, 0.0, right=False), rollout(1, 0.0)],
    "rewards of turns": [rollout(3, 1.0, **TURNS), rollout(3, 1.0, **UNEVEN), rollout(3, 0.0)],
    "turns that are alike": [rollout(3, 1.0, **TURNS), rollout(3, 1.0, **TURNS)],
    "several conversations": [rollout(4, 1.0, forks=((3, 1),)), rollout(4, 0.0)],
    "cut off": [rollout(3, 1.0, finish_reason="length"), rollout(3, 0.0, finish_reason="turns")],
    "no token": [rollout(0, 1.0), rollout(0, 0.0)],
    "no reward": [rollout(3, status="failed"), rollout(2, status="not_applicable")],
    "nothing": [],
}
"""What one group may bring."""


def measured(batch: Batch) -> Batch:
    """The batch with everything that an advantage may require."""
    zeros = torch.zeros_like(batch.rollout_logprobs)
    names, sums = ("values", "old_logprobs", "ref_logprobs", "teacher_logprobs"), ("entropy", "collision")
    row = torch.zeros_like(batch.rewards)
    per_token = dict.fromkeys(names, zeros)
    return batch.with_(**per_token, old_sums=dict.fromkeys(sums, zeros), end_values=row, baselines=row)


@pytest.mark.parametrize("kind", ROLLOUTS)
@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_takes_a_step_or_refuses_it_in_a_sentence(name: str, kind: str) -> None:
    weights = {"exact": 1.0, "environment": 1.0}
    estimator = instantiate(Piece(name=name), ADVANTAGES, {"weights": weights, "k": 2})
    takes_batch = signature_of(ADVANTAGES[name]).parameters[:1] == ("batch",)
    parts = [replace(each, reward_parts={"exact": each.reward, "environment": 0.0}) for each in ROLLOUTS[kind]]
    batch = measured(batch_of(parts, parts[::-1]) if parts else batch_of())
    try:
        found = (estimator if takes_batch else per_token(estimator))(batch)
    except UserError:  # one sentence, which a run shows without a traceback
        return
    assert found.advantages is not None
    assert found.advantages[found.loss_mask].isfinite().all()
