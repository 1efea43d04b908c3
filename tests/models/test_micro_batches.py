"""Groups that need no backward pass, and micro-batches that do not fit into memory."""

from collections.abc import Callable

import pytest
import torch
from engine_cases import apart, fresh, ragged
from policy_cases import ADVANTAGE, ALL_TERMS, prepared, updated

from outdo.algorithms.objectives.presets import grpo
from outdo.algorithms.vocabulary_sums import token_collision
from outdo.models.critic import Critic, own_head, own_model
from outdo.models.forward import Forward
from outdo.models.scorer import BatchSizes
from outdo.types import Batch
from outdo.utils.errors import OutdoError
from outdo.utils.world import World

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


def scarce(forward: Forward, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the device of a model run out of memory at more than `most` tokens; the sizes that were tried."""
    tried, whole = [], forward.hidden

    def hidden(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        tried.append(batch.token_ids.numel())
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(batch)

    monkeypatch.setattr(forward, "hidden", hidden)
    return tried


def test_micro_batches_are_halved_until_they_fit_into_memory(monkeypatch):
    policy, batch = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400)), prepared()
    tried = scarce(policy.forward, 60, monkeypatch)
    found, gradient = updated(policy, batch, ALL_TERMS)
    _, expected = updated(fresh(), batch, ALL_TERMS)
    assert apart(gradient, expected) < 1e-5  # nothing of the attempts that failed is in it
    assert policy.batch_sizes.micro_batch_tokens == 50
    assert max(tried) > 60
    tried.clear()
    policy.update(batch, ALL_TERMS)
    assert max(tried) <= 60  # and it stays so
    assert found.metrics["updates/refused"] == 0


@pytest.mark.parametrize(
    "measure",
    [
        lambda policy, batch: [policy.measure(batch, {"collision": token_collision}).sums["collision"]],
        lambda policy, batch: policy.top(batch, 3),
    ],
)
def test_those_of_whole_distributions_are_halved_too(monkeypatch, measure):
    policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400))
    scarce(policy.forward, 60, monkeypatch)
    for found, expected in zip(measure(policy, ragged()), measure(fresh(), ragged()), strict=True):
        torch.testing.assert_close(found, expected)
    assert policy.batch_sizes.micro_batch_tokens == 50


class OneOfTwo(World):
    """A process beside one whose memory does not suffice, once."""

    suffices = False

    def together(self, compute):
        found = super().together(compute)
        if not self.suffices:
            self.suffices = True
            raise MemoryError("replica 1 of 2")
        return found


def test_all_processes_halve_those_of_whole_distributions_together():
    policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400), world=OneOfTwo())
    assert policy.top(ragged(), 3)[0].any()
    assert policy.batch_sizes.micro_batch_tokens == 200


def test_the_halved_micro_batch_size_is_saved_with_the_run(monkeypatch):
    policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400))
    scarce(policy.forward, 60, monkeypatch)
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
    scarce(policy.forward, 0, monkeypatch)
    with pytest.raises(OutdoError, match="not even one row fits into memory"):
        policy.logprobs(ragged())


BOTH = pytest.mark.parametrize("make", [own_model, own_head])


def critic_with(tokens: int, make: Callable[..., Critic]) -> Critic:
    """A critic that asks for micro-batches of so many tokens, and gives each prefix another value."""
    critic = make(fresh(batch_sizes=BatchSizes(micro_batch_tokens=tokens)), clip=None)
    for weight in critic.head.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(1))
    return critic


def taught() -> Batch:
    """A batch from which a critic learns, some answers truncated; the last micro-batches are the largest."""
    batch = prepared()
    batch = batch.rows(batch.attention_mask.sum(1).argsort())
    returns = torch.rand(batch.token_ids.shape, generator=torch.Generator().manual_seed(1))
    truncated = torch.ones(len(batch), dtype=torch.bool)
    return batch.with_(values=torch.zeros_like(returns), returns=returns, truncated=truncated)


def learned(critic: Critic, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, float], torch.Tensor]:
    """The metrics of an update of a critic, and the gradient that its optimiser was handed."""
    gradients, step = [], critic.optimiser.step

    def spy(loss: float) -> dict[str, float]:
        gradients.extend(weight.grad.flatten().clone() for weight in critic.optimiser.weights.values())
        return step(loss)

    monkeypatch.setattr(critic.optimiser, "step", spy)
    return critic.update(batch), torch.cat(gradients)


@BOTH
def test_those_of_a_critic_are_halved_too(make, monkeypatch):
    batch = taught()
    expected, by_all = learned(critic_with(10_000, make), batch, monkeypatch)
    critic = critic_with(400, make)
    tried = scarce(critic.forward, 75, monkeypatch)
    found, gradient = learned(critic, batch, monkeypatch)
    assert tried[:4] == [320, 189, 70, 84]  # the third attempt had computed a micro-batch before it failed
    assert found == pytest.approx(expected, rel=1e-4)
    assert apart(gradient, by_all) < 1e-5  # neither its model nor its head has anything of the attempts that failed
    assert critic.batch_sizes.micro_batch_tokens == 50
    tried.clear()
    critic.update(batch)
    assert max(tried) <= 75


@BOTH
@pytest.mark.parametrize("what", ["values", "end_values"])
def test_a_critic_computes_its_values_in_the_micro_batches_that_fit(make, what, monkeypatch):
    batch = taught()
    expected = getattr(critic_with(10_000, make), what)(batch)
    critic = critic_with(400, make)
    forwards = {"values": critic.forward, "end_values": critic.scoring_after.model_forward}
    scarce(forwards[what], 60, monkeypatch)
    torch.testing.assert_close(getattr(critic, what)(batch), expected)
    assert critic.batch_sizes.micro_batch_tokens == 50


def test_the_halved_micro_batch_size_of_a_critic_is_saved_with_the_run(monkeypatch):
    critic = critic_with(400, own_model)
    scarce(critic.forward, 60, monkeypatch)
    critic.values(taught())
    saved = critic.state()
    again, other = critic_with(400, own_model), critic_with(200, own_model)
    for each in (again, other):
        each.load_state(saved)
    assert again.batch_sizes.micro_batch_tokens == critic.batch_sizes.micro_batch_tokens == 50
    assert again.state()["micro_batch_tokens"] == saved["micro_batch_tokens"] == {"asked": 400, "fitting": 50}
    assert other.batch_sizes.micro_batch_tokens == 200
    older = {name: value for name, value in saved.items() if name != "micro_batch_tokens"}
    other.load_state(older)
    assert other.batch_sizes.micro_batch_tokens == 200
