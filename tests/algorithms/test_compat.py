"""The table of `outdo.algorithms.objectives.compat`, by a second implementation of what the peers compute.

TRL's column is compared with TRL itself, in `peers`. The formulas here are written down from the sources of verl,
OpenRLHF and AReaL as they were in 2026; nothing of those libraries is run.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from toys import assert_close, batch_of, evaluate, rollout, with_noise

from outdo.algorithms.objectives import corrections, presets
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.batch_transforms import high_entropy
from outdo.algorithms.objectives.compat import Library, compat
from outdo.algorithms.objectives.divergences import Divergence, absolute, k1, k2
from outdo.algorithms.objectives.ratios import sequence_product
from outdo.algorithms.objectives.surrogates import Clip, clip
from outdo.algorithms.objectives.weights import prompt_mean, sequence_mean, token_mean
from outdo.algorithms.requirements import requires
from outdo.types import Batch

GROUPS = [
    [rollout(4, 1.0), rollout(1, 0.0), rollout(3, 0.5, mask=(True, False, True)), rollout(0, 0.0)],
    [rollout(2, 1.0), rollout(5, 0.0), rollout(3, 0.0)],
]
PEERS: tuple[Library, ...] = ("trl", "verl", "openrlhf", "areal")
OTHERS: tuple[Library, ...] = ("verl", "openrlhf", "areal")


def far_apart() -> tuple[Batch, Tensor]:
    """With tokens 2 and 25 nats away from π_old and from π_ref, both ways, in good rows and in bad ones."""
    batch, logprobs = with_noise(batch_of(*GROUPS))
    assert batch.old_logprobs is not None
    steps = torch.tensor([0.1, 2.0, -0.3, 25.0, -2.0, 0.2, -25.0], dtype=torch.float64)
    columns = torch.arange(logprobs.numel()).view_as(logprobs)
    logprobs = batch.old_logprobs + steps[columns % len(steps)]
    return batch.with_(ref_logprobs=logprobs - steps[(columns * 3 + 1) % len(steps)]), logprobs


# --------------------------------------------------------------------------------------------- what the peers compute

Loss = Callable[[Tensor, Batch], Tensor]


def read(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mask, Â, log π_old and log π_ref."""
    assert batch.advantages is not None
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None
    return batch.loss_mask, batch.advantages, batch.old_logprobs, batch.ref_logprobs


def over_tokens(values: Tensor, mask: Tensor) -> Tensor:
    return values[mask].mean()


def over_answers(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over answers that have a token of their means."""
    return torch.stack([row[chosen].mean() for row, chosen in zip(values, mask, strict=True) if chosen.any()]).mean()


def clipped(limit: float, *, low: float = 0.2, high: float = 0.2, dual: float = math.inf) -> Loss:
    """PPO's clip by token, and a mean over tokens."""

    def loss(logprobs: Tensor, batch: Batch) -> Tensor:
        mask, advantages, old, _ = read(batch)
        ratio = (logprobs - old).clamp(-limit, limit).exp()
        worse = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
        if dual < math.inf:
            worse = worse.where(advantages >= 0, torch.minimum(worse, -advantages * dual))
        return over_tokens(worse, mask)

    return loss


def penalty(estimate: Divergence, *, beta: float, difference: float, value: float) -> Loss:
    """A divergence that is added to the loss, over tokens."""

    def loss(logprobs: Tensor, batch: Batch) -> Tensor:
        mask, _, _, ref = read(batch)
        apart = (logprobs - ref).clamp(-difference, difference)
        return beta * over_tokens(estimate(apart, torch.zeros_like(apart)).clamp(-value, value), mask)

    return loss


def gspo(mean: Callable[[Tensor, Tensor], Tensor], limit: float) -> Loss:
    def loss(logprobs: Tensor, batch: Batch) -> Tensor:
        mask, advantages, old, _ = read(batch)
        apart = (logprobs - old).where(mask, 0.0).clamp(-limit, limit)
        ratio = (apart.sum(1) / mask.sum(1).clamp(min=1)).exp()[:, None]
        return mean(torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - 3e-4, 1 + 4e-4)), mask)

    return loss


def sapo(mean: Callable[[Tensor, Tensor], Tensor], limit: float) -> Loss:
    def loss(logprobs: Tensor, batch: Batch) -> Tensor:
        mask, advantages, old, _ = read(batch)
        ratio = (logprobs - old).clamp(-limit, limit).exp()
        good = (ratio - 1).sigmoid() * 4
        bad = (1.05 * (ratio - 1)).sigmoid() * 4 / 1.05
        return mean(-advantages * torch.where(advantages > 0, good, bad), mask)

    return loss


def both(one: Loss, other: Loss) -> Loss:
    return lambda logprobs, batch: one(logprobs, batch) + other(logprobs, batch)


def plain_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    d = logprobs - ref_logprobs
    return (-d).exp() - 1 + d


def by_autograd(loss: Loss, logprobs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    leaf = logprobs.clone().requires_grad_()
    value = loss(leaf, batch)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


INF = math.inf
K3_OF_VERL = penalty(plain_k3, beta=0.5, difference=20.0, value=10.0)
K3_OF_OPENRLHF = penalty(plain_k3, beta=0.5, difference=INF, value=10.0)
ROWS: list[tuple[Library, str, ComposedObjective, Loss]] = [
    ("verl", "grpo", presets.grpo(beta=0.0), clipped(20.0, dual=3.0)),
    ("openrlhf", "grpo", presets.grpo(beta=0.0), clipped(20.0)),
    ("areal", "grpo", presets.grpo(beta=0.0), clipped(INF)),
    ("verl", "dapo", presets.dapo(), clipped(20.0, high=0.28, dual=3.0)),
    ("openrlhf", "dapo", presets.dapo(), clipped(20.0, high=0.28)),
    ("areal", "dapo", presets.dapo(), clipped(INF, high=0.28)),
    ("verl", "k3", presets.grpo(beta=0.5), both(clipped(20.0, dual=3.0), K3_OF_VERL)),
    ("verl", "k3 of bnpo", presets.bnpo(beta=0.5), both(clipped(20.0, dual=3.0), K3_OF_VERL)),
    ("openrlhf", "k3", presets.grpo(beta=0.5), both(clipped(20.0), K3_OF_OPENRLHF)),
    ("verl", "gspo", presets.gspo(), gspo(over_answers, 20.0)),
    ("openrlhf", "gspo", presets.gspo(), gspo(over_answers, 20.0)),
    ("areal", "gspo", presets.gspo(), gspo(over_tokens, INF)),
    ("verl", "sapo", presets.sapo(), sapo(over_answers, 20.0)),
    ("areal", "sapo", presets.sapo(), sapo(over_tokens, INF)),
]
for estimate in (k1, k2, absolute):
    name, objective = estimate.__name__, replace(presets.grpo(beta=0.5), divergence=estimate)
    free, bound = (penalty(estimate, beta=0.5, difference=INF, value=value) for value in (INF, 10.0))
    ROWS += [
        ("verl", name, objective, both(clipped(20.0, dual=3.0), free)),
        ("openrlhf", name, objective, both(clipped(20.0), bound)),
    ]


@pytest.mark.parametrize(
    ("peer", "objective", "loss"), [(peer, *row) for peer, _, *row in ROWS], ids=[f"{p}-{n}" for p, n, *_ in ROWS]
)
def test_loss_and_gradient_are_those_of_the_peer(peer: Library, objective: ComposedObjective, loss: Loss) -> None:
    batch, logprobs = far_apart()
    assert_close(evaluate(compat(peer, objective), logprobs, batch), by_autograd(loss, logprobs, batch))


@pytest.mark.parametrize("peer", OTHERS)
def test_every_convention_of_the_clip_is_to_be_seen(peer: Library) -> None:
    """The made-up numbers tell each peer from the others and from outdo."""
    batch, logprobs = far_apart()
    seen = {name: evaluate(compat(name, presets.grpo()), logprobs, batch)[0] for name in PEERS}
    seen["outdo"] = evaluate(presets.grpo(), logprobs, batch)[0]
    mine = seen.pop(peer)
    assert all(not torch.isclose(mine, other) for other in seen.values())


# ---------------------------------------------------------------------------------------------- what they leave alone


@pytest.mark.parametrize("peer", PEERS)
def test_what_the_peer_has_no_rule_for_stays(peer: Library) -> None:
    def own(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, batch: Batch) -> Tensor:
        return logprobs * advantages

    objective = ComposedObjective(
        surrogate=own,
        level=sequence_product,
        correction=corrections.truncate(),
        beta=0.5,
        entropy_bonus=0.25,
        batch_transform=high_entropy(),
    )
    done = compat(peer, objective)
    for piece in ("surrogate", "level", "correction", "beta", "entropy_bonus", "batch_transform"):
        assert getattr(done, piece) is getattr(objective, piece)
    assert done.requires == objective.requires


@pytest.mark.parametrize("peer", OTHERS)
def test_a_weight_that_is_no_mean_over_answers_of_means_stays(peer: Library) -> None:
    for weight in (prompt_mean, token_mean, presets.dr_grpo(length=7).weight):
        assert compat(peer, replace(presets.grpo(), weight=weight)).weight is weight


@pytest.mark.parametrize("peer", ["verl", "openrlhf"])
@pytest.mark.parametrize(
    "objective", [presets.gspo(), presets.gspo_token(), presets.sapo(), presets.gmpo(), presets.rloo_clip()]
)
def test_only_the_clip_by_token_becomes_a_mean_over_tokens_with_a_dual_clip(
    peer: Library, objective: ComposedObjective
) -> None:
    done = compat(peer, objective)
    assert done.weight is sequence_mean
    assert done.surrogate is objective.surrogate


@pytest.mark.parametrize("peer", OTHERS)
@pytest.mark.parametrize("distance", [-1000.0, 1000.0])
def test_a_divergence_that_is_limited_overflows_nowhere(peer: Library, distance: float) -> None:
    batch, logprobs = far_apart()
    _, gradient = evaluate(compat(peer, presets.grpo()), logprobs, batch.with_(ref_logprobs=logprobs - distance))
    assert gradient.isfinite().all()


def test_a_dual_clip_that_was_asked_for_stays() -> None:
    asked = replace(presets.grpo(), surrogate=clip(low=0.2, high=0.2, dual=5.0))
    for peer in PEERS:
        surrogate = compat(peer, asked).surrogate
        assert isinstance(surrogate, Clip)
        assert surrogate.dual == 5.0


def test_areal_has_no_divergence_in_the_loss_so_it_stays_as_it_is() -> None:
    for objective in (presets.grpo(), presets.gspo(beta=0.1)):
        done = compat("areal", objective)
        assert (done.divergence, done.kl_ratio) == (objective.divergence, objective.kl_ratio)


@pytest.mark.parametrize("peer", PEERS)
def test_a_divergence_of_ones_own_keeps_what_it_needs(peer: Library) -> None:
    @requires(values=True)
    def own(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        return logprobs - ref_logprobs

    assert compat(peer, replace(presets.grpo(), divergence=own)).requires.values


@pytest.mark.parametrize("peer", PEERS)
def test_asking_twice_is_asking_once(peer: Library) -> None:
    batch, logprobs = far_apart()
    once = compat(peer, presets.grpo())
    assert_close(evaluate(compat(peer, once), logprobs, batch), evaluate(once, logprobs, batch))
