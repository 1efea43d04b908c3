"""Groups that need no backward pass, and micro-batches that do not fit into memory."""

import pytest
import torch
from engine_cases import apart, fresh, ragged
from policy_cases import ADVANTAGE, ALL_TERMS, prepared, updated

from outdo.algorithms.objectives.presets import grpo
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.types import Batch
from outdo.utils.errors import OutdoError

# ------------------------------------------------------------------------------------------------------ what is spared


def test_a_group_without_a_push_needs_no_backward_pass(monkeypatch):
    """And the gradient is that of the group that does."""
    policy, batch = fresh(), ADVANTAGE(ragged())
    idle = batch.group != 0
    batch = batch.with_(advantages=batch.advantages.masked_fill(idle[:, None], 0.0))
    seen = []
    whole = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *given: seen.append(given) or whole(*given))
    update, gradient = updated(policy, batch, grpo(beta=0))
    ((values, _),) = seen
    assert values[0].shape[0] == int((~idle).sum())
    assert update.tokens["entropy"][idle][batch.loss_mask[idle]].all()  # measured all the same
    alone = batch.rows((~idle).nonzero().squeeze(1))
    _, expected = updated(fresh(), alone, grpo(beta=0))
    assert apart(gradient / gradient.norm(), expected / expected.norm()) < 1e-5  # it is a mean over more answers


# ------------------------------------------------------------------------------------------------------ out of memory


def scarce(policy: Policy, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the policy's device run out of memory at more than `most` tokens; the sizes that were tried."""
    tried, whole = [], policy.forward.hidden

    def hidden(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        tried.append(batch.token_ids.numel())
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(batch)

    monkeypatch.setattr(policy.forward, "hidden", hidden)
    return tried


def test_micro_batches_are_halved_until_they_fit_into_memory(monkeypatch):
    policy, batch = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400)), prepared()
    tried = scarce(policy, 60, monkeypatch)
    found, gradient = updated(policy, batch, ALL_TERMS)
    _, expected = updated(fresh(), batch, ALL_TERMS)
    assert apart(gradient, expected) < 1e-5  # nothing of the attempts that failed is in it
    assert policy.batch_sizes.micro_batch_tokens == 50
    assert max(tried) > 60
    tried.clear()
    policy.update(batch, ALL_TERMS)
    assert max(tried) <= 60  # and it stays so
    assert found.metrics["updates/refused"] == 0


def test_the_halved_micro_batch_size_is_saved_with_the_run(monkeypatch):
    policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400))
    scarce(policy, 60, monkeypatch)
    policy.logprobs(ragged())
    again = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400))
    again.load_state(policy.state())
    assert again.batch_sizes.micro_batch_tokens == policy.batch_sizes.micro_batch_tokens == 50
    assert again.state()["micro_batch_tokens"] == policy.state()["micro_batch_tokens"]
    other = fresh(batch_sizes=BatchSizes(micro_batch_tokens=200))  # as `outdo resume RUN train.micro_batch_tokens=200`
    other.load_state(policy.state())
    assert other.batch_sizes.micro_batch_tokens == 200


def test_a_row_that_does_not_fit_alone_is_an_error(monkeypatch):
    policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=64))
    scarce(policy, 0, monkeypatch)
    with pytest.raises(OutdoError, match="not even one row fits into memory"):
        policy.logprobs(ragged())
