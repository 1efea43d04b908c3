"""Sums over the vocabulary that an objective or an advantage of a user asks for by name."""

from typing import Literal

import pytest
import torch
from engine_cases import apart, fresh
from policy_cases import prepared, updated
from torch import Tensor

import outdo
from outdo.algorithms.objectives.base import ComposedObjective, PlainObjective
from outdo.algorithms.objectives.surrogates import clip
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.algorithms.vocabulary_sums import token_collision, token_entropy
from outdo.models import logprobs as module
from outdo.models.bundle import Models
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.testing import tiny_model
from outdo.types import Batch, Terms, TokenScores


def cubes(logits: Tensor, temperature: Tensor) -> Tensor:
    """Σ_v p_v³"""
    return (logits / temperature[:, None]).softmax(1).pow(3).sum(1)


def squared_logit(logits: Tensor, temperature: Tensor) -> Tensor:
    """Σ_v p_v z_v²"""
    z = logits / temperature[:, None]
    return (z.softmax(1) * z.square()).sum(1)


@outdo.requires(sums={"cubes": cubes, "squared": squared_logit})
def of_vocabulary(scores: TokenScores, batch: Batch) -> Terms:
    """An objective that reads two sums, and the entropy without a gradient."""
    policy = scores.logprobs * batch.advantages - 0.7 * scores.sums["cubes"] + 0.2 * scores.sums["squared"].square()
    gain = (policy * scores.sums["entropy"])[batch.loss_mask].sum() / batch.totals.tokens
    return Terms(policy=gain, divergence=0 * gain, entropy=0 * gain, loss=-gain)


def expected_gradient(policy: Policy, batch: Batch) -> Tensor:
    """The gradient of that objective by autograd through all logits of the model, each row alone, without padding."""
    logprobs, sums = [], {"cubes": [], "squared": [], "entropy": []}
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        trained = batch.loss_mask[row, 1:length]
        ids, temperature = batch.token_ids[row, :length], batch.temperature[row]
        z = (policy.model(input_ids=ids[None]).logits[0, :-1] / temperature)[trained]
        logprobs.append(z.log_softmax(1).gather(1, ids[1:][trained][:, None])[:, 0])
        ones = torch.ones(len(z), dtype=z.dtype)
        sums["cubes"].append(cubes(z, ones))
        sums["squared"].append(squared_logit(z, ones))
        sums["entropy"].append(-(z.softmax(1) * z.log_softmax(1)).sum(1).detach())

    def placed(values: list[Tensor]) -> Tensor:
        return torch.zeros(batch.token_ids.shape, dtype=torch.float64).masked_scatter(
            batch.loss_mask, torch.cat(values)
        )

    scores = TokenScores(logprobs=placed(logprobs), sums={name: placed(values) for name, values in sums.items()})
    loss = of_vocabulary(scores, batch).loss
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(policy.model.parameters()))])


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("arch", ["qwen3", "gemma2"])  # a linear head; one whose logits are capped
@pytest.mark.parametrize(("layout", "budget"), [("shared", 40), ("shared", 10_000), ("padded", 100)])
def test_a_sum_of_ones_own_trains_as_by_autograd_through_all_logits(
    arch: str, layout: Literal["shared", "padded"], budget: int
):
    sizes = BatchSizes(micro_batch_tokens=budget, chunk=7)

    def policy() -> Policy:
        model, tokenizer = tiny_model(arch=arch)
        return Policy(model.double(), tokenizer, attention=layout, batch_sizes=sizes)

    batch = prepared(policy=policy())
    trained = policy()
    assert (trained.forward.layout, trained.forward.plain_head) == (layout, arch == "qwen3")
    update, gradient = updated(trained, batch, PlainObjective(of_vocabulary))
    assert apart(gradient, expected_gradient(policy(), batch)) < 1e-10
    assert update.metrics["grad_norm"] > 0


def test_sums_of_the_old_policy_are_in_the_batch_that_an_advantage_gets():
    policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=40))
    required = Requires(old_sums={"cubes": cubes, "entropy": token_entropy})
    batch = Models(policy=policy).score(prepared(), required, passes=1)
    assert set(batch.old_sums) == {"cubes", "entropy"}
    scores = fresh().scores(batch, required.old_sums)
    for name, values in scores.sums.items():
        torch.testing.assert_close(batch.old_sums[name], values.detach(), rtol=1e-5, atol=1e-5)
        assert (values != 0)[batch.loss_mask].all(), name
        assert not values[~batch.loss_mask].any(), name


def test_the_sums_of_two_pieces_are_joined_and_one_name_means_one_sum():
    bonus = ComposedObjective(surrogate=clip(low=0.1, high=0.1), entropy_bonus=0.1).requires
    assert (bonus | requirements_of(of_vocabulary)).sums == {
        "entropy": token_entropy,
        "cubes": cubes,
        "squared": squared_logit,
    }
    with pytest.raises(ValueError, match="different sums over the vocabulary by the name 'cubes'"):
        Requires(sums={"cubes": cubes}) | Requires(sums={"cubes": squared_logit})
    with pytest.raises(ValueError, match=r"sums\[\"entropy\"\], a metric of every run, is `token_entropy`"):
        Requires(sums={"entropy": token_collision})


def test_the_logits_of_a_sum_need_no_more_memory_where_the_vocabulary_is_larger(monkeypatch: pytest.MonkeyPatch):
    tokens, largest = 30, []

    def watched(logits: Tensor, temperature: Tensor) -> Tensor:
        largest.append(logits.numel())
        return token_collision(logits, temperature)

    monkeypatch.setattr(module, "SUM_BYTES", {"cpu": 2**16, "cuda": 2**16})
    for words in (512, 4096, 16_384):
        head = torch.nn.Linear(4, words)
        largest.clear()
        module.chunked_scores(
            head, torch.randn(tokens, 4), torch.zeros(tokens, dtype=torch.int64), torch.ones(tokens), sums=[watched]
        )
        assert 0.9 * 2**14 < max(largest) <= 2**14
