"""Advantages of a `Batch`, token by token, and the steps before or after them.

An `Advantage` takes a batch and returns it with `advantages` [B, T] filled in; `chain` joins several steps to one.
Values outside of `loss_mask` are never read, and the advantage there is 0. Rewards per token (`token_rewards`) are used
where they are set, and only on trained tokens; otherwise the reward of a rollout is put on its last trained token, of
several conversations on that of each.
"""

import math
from collections.abc import Mapping
from typing import SupportsFloat

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outdo.algorithms import marks
from outdo.algorithms.advantages.base import Advantage, needed, of_rollouts, per_token, rewards_of
from outdo.algorithms.advantages.group import RewardAdvantage, group_centred, group_standardised, rounding_of_groups
from outdo.algorithms.advantages.returns import (
    generalised_advantages,
    returns_of,
    token_rewards_of,
    whitened,
    without_rounding,
)
from outdo.algorithms.objectives.divergences import Divergence
from outdo.algorithms.requirements import Requires, requirements_of, requires, requires_unless, requires_with
from outdo.algorithms.shapes import TOKENS, check_shape
from outdo.algorithms.unfold import Unfolded
from outdo.types import Batch
from outdo.utils.errors import UserError
from outdo.utils.outcome import RIGHT

# ---------------------------------------------------------------------------------------------- one advantage a rollout


@marks.advantage(compares_group=True)
def length_weighted(batch: Batch) -> Batch:
    """Â_i = r_i - Σ n_j r_j / Σ n_j over the group, n_j the trained tokens; OPO (arXiv 2505.23585).

    This baseline has the least variance if every token's gradient has the same expected square. The paper is exactly
    on-policy: one update per batch, and no KL.
    """
    lengths = batch.loss_mask.sum(1)[batch.scored]  # [scored]

    def estimate(rewards: Float[Tensor, "B"], group: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
        same = group[:, None] == group
        centred = group_centred(rewards, group)  # equal rewards are exactly 0 from here on
        weights = same * lengths
        return centred - (weights * centred).sum(1) / weights.sum(1).clamp(min=1)

    return per_token(estimate)(batch)


@marks.advantage(
    compares_group=True,
    scaled_in_group=True,
    loses_turn_rewards=True,
    not_with_kl_in_reward="uses the parts of the reward, from which the KL is not subtracted",
)
def gdpo(batch: Batch, *, weights: Mapping[str, float] | None = None, eps: float = 1e-4) -> Batch:
    """Standardise every part of the reward by itself, then add them; GDPO (arXiv 2601.05242).

    a_i = Σ_parts weight · (r_i - μ) / (σ + eps) with μ and σ of that part in the group, then Â_i = (a_i - mean) / (std
    + eps) over the rollouts of the batch. So the scale of one part does not hide another. A part that did not apply
    adds 0; parts that cancel give 0, not the rounding of their sum. `weights` are given by the name of the part, and
    are 1 by default. It is TRL's "normalize_then_sum"; verl takes the last mean and deviation over tokens instead.

    Raises `UserError` if the batch has no reward parts, or has rewards per token, or if a part has no weight.
    """
    if batch.token_rewards is not None:
        raise UserError(
            [
                "gdpo compares the parts of the reward of whole answers, and would lose the rewards of single turns or "
                "tokens: let the environment give its reward when the episode has ended (final_reward, group_rewards), "
                "or use turn_to_go; leave out a KL penalty"
            ]
        )
    parts = batch.reward_parts
    if not parts and batch.scored.any():
        raise UserError(["gdpo needs the parts of the reward, and the batch has none"])
    if unknown := sorted(set(parts) - set(parts if weights is None else weights)):
        names = ", ".join(weights or ())
        raise UserError([f"gdpo: no weight for {', '.join(unknown)}; there are weights for {names}"])
    total, sizes = torch.zeros_like(batch.rewards), torch.zeros_like(batch.rewards)  # [B]
    for name, part in parts.items():
        applies = batch.scored & ~part.isnan()
        if applies.any():
            standardised = group_standardised(part[applies], batch.group[applies], eps=eps)
            weighted = (1.0 if weights is None else weights[name]) * standardised
            total[applies] += weighted
            sizes[applies] += weighted.abs()
    if len(batch):
        rounding = rounding_of_groups(sizes, torch.ones_like(batch.scored).expand(len(batch), -1))
        total = total.where(total.abs() > rounding, 0.0)
    whole = batch.with_(rewards=total, group=torch.zeros_like(batch.group))  # the batch as one group
    advantages = per_token(lambda rewards, group: group_standardised(rewards, group, eps=eps))(whole).advantages
    return batch.with_(advantages=advantages)


@marks.advantage(
    not_with_kl_in_reward="compares rewards with a threshold, which few rewards reach after the KL is subtracted"
)
@requires_unless(threshold=Requires(right=True))
def rejection(batch: Batch, *, threshold: float | None = None) -> Batch:
    """Â = 1 for the right answers (`batch.right`); the others are neither trained on nor counted.

    With `threshold`, it is 1 for answers with a reward of at least this much instead, up to rounding.

    With the plain log-likelihood as the objective this is fine-tuning on the model's own good answers: RAFT (arXiv
    2304.06767), the inner loop of STaR and ReST, and the baseline for all other methods.

    Raises `UserError` without `threshold` if it is not defined which answers are right, and ValueError for one that is
    not finite.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"rejection: threshold must be a finite number, not {threshold}")
    if threshold is not None:
        is_right = rewards_of(batch) >= threshold - (1.0 - RIGHT)
    elif batch.right is not None:
        is_right = batch.right
    elif batch.scored.any():
        raise UserError(["rejection: it is not defined which answers are right; set eval.right, or give a threshold"])
    else:
        is_right = torch.zeros_like(batch.scored)
    mask = batch.loss_mask & is_right[:, None]
    return batch.with_(loss_mask=mask, advantages=mask.to(batch.rewards.dtype)).recounted()


# ------------------------------------------------------------------------------------------------ one advantage a token


@marks.advantage()
@requires(values=True)
@requires_with(bootstrap=Requires(end_values=True))
def gae(
    batch: Batch,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    turns: bool = False,
    whiten: bool = True,
    bootstrap: bool = False,
    ddof: int = 1,
) -> Batch:
    """Generalised advantage estimation (arXiv 1506.02438): Â and, for the critic, the returns Â + V.

    Â is whitened over the trained tokens of the batch after the returns are computed, as in verl and OpenRLHF; for
    `ddof` see `whitened`. The value after the last token is 0, as in verl and OpenRLHF; with `bootstrap`, the value
    after a truncated answer is the critic's V of the whole answer, as in AReaL. With `turns`, γ and λ count turns of
    the policy and not its tokens: both are 1 between two tokens of a turn. Each conversation of an episode is a
    trajectory of its own: see `outdo.algorithms.unfold`.

    Raises ValueError with `bootstrap` if the batch has no `end_values`. The loop computes them for
    `functools.partial(gae, bootstrap=True)`.
    """
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise ValueError(f"gae: gamma and lam must be from 0 to 1, not {gamma} and {lam}")
    conversations = Unfolded.of(batch)
    rows = conversations.batch
    rewards, values, mask = token_rewards_of(rows), needed(rows, "values"), rows.loss_mask
    end = _end_values(rows).to(values) if bootstrap else torch.zeros_like(values[:, 0])  # [C]
    turn = rows.turn if turns else None
    advantages = generalised_advantages(rewards, values, mask, end, gamma=gamma, lam=lam, turn=turn)
    returns = (advantages + values).where(mask, 0.0)
    advantages = whitened(advantages, mask, ddof=ddof) if whiten else advantages
    return batch.with_(advantages=conversations.folded(advantages), returns=conversations.folded(returns))


@marks.advantage()
@requires(whole_batch=True)
def reinforce_pp(batch: Batch, *, gamma: float = 1.0, ddof: int = 1) -> Batch:
    """Returns-to-go Σ_{s>=t} γ^{s-t} r_s, whitened over the trained tokens; REINFORCE++ (arXiv 2501.03262).

    The rewards are those per token: with a KL penalty in them, as published (`kl_penalty`), the return of a token
    contains the divergence of all later tokens. verl does the same; OpenRLHF has ddof = 0, see `whitened`.
    """
    return batch.with_(advantages=whitened(returns_of(batch, gamma=gamma), batch.loss_mask, ddof=ddof))


@marks.advantage(compares_group=True, subtracts_baseline=True)
def reinforce_pp_baseline(batch: Batch, *, ddof: int = 1) -> Batch:
    """r_i - μ on every token, whitened over the trained tokens: REINFORCE++-baseline (arXiv 2501.03262).

    The deviation is that of the centred rewards, where a row counts once for each of its tokens; `batch_standardised`
    takes that of the raw rewards. verl does the same; OpenRLHF has ddof = 0, see `whitened`.
    """
    centred = per_token(group_centred)(batch).advantages
    assert centred is not None
    return batch.with_(advantages=whitened(centred, batch.loss_mask, ddof=ddof))


@marks.advantage()
@requires(baselines=True)
def remax(batch: Batch) -> Batch:
    """Return-to-go minus the reward of the greedy answer to the same question; ReMax (arXiv 2310.10505)."""
    if batch.baselines is None:
        raise ValueError("remax needs `baselines`, which the batch does not have")
    advantages = without_rounding(returns_of(batch) - batch.baselines[:, None], batch)
    return batch.with_(advantages=advantages.where(batch.loss_mask, 0.0))


# ------------------------------------------------------------------------------------------------ before and after them


def kl_penalty(estimator: Divergence, *, beta: SupportsFloat) -> Advantage:
    """Make a step before the advantage: r_t ← r_t - beta · k(log π_old, log π_ref), on every trained token.

    `estimator` is a divergence of `outdo.algorithms.objectives.divergences`: k1 as in InstructGPT and REINFORCE++. As a
    reward it is computed for the policy that sampled, and its derivative is that of the policy gradient: unlike in the
    loss, k1 is right here, and k3 is not. TRL's RLOO subtracts the sum from the rollout's reward, before the baseline,
    as the advantages of whole rollouts do here; for OpenRLHF's order, after the baseline, see `baseline_first`.
    """

    @requires(reference=True, old_logprobs=True)
    def penalise(batch: Batch) -> Batch:
        divergence = estimator(needed(batch, "old_logprobs"), needed(batch, "ref_logprobs"))
        sizes = dict(zip("BT", batch.loss_mask.shape, strict=True))
        divergence = check_shape(divergence, TOKENS, "divergence", estimator, sizes)
        penalised = token_rewards_of(batch) - float(beta) * divergence
        return batch.with_(token_rewards=penalised.where(batch.loss_mask, 0.0))

    return penalise


def baseline_first(advantage: RewardAdvantage) -> Advantage:
    """Make a step before `kl_penalty`: the reward of a rollout becomes its advantage, on its last trained token.

    `chain(baseline_first(leave_one_out), kl_penalty(k1, beta=0.05), to_go)` subtracts the divergence after the
    baseline, as OpenRLHF does: Â_t is the advantage minus β Σ_{s>=t} k_s, and the divergences of the other answers are
    in no mean and no deviation. `rewards` stay as they are; the advantages are in `token_rewards`.
    """

    required = requirements_of(advantage)

    @requires(required)
    def replace_rewards(batch: Batch) -> Batch:
        rows = of_rollouts(advantage, batch, by_verdict=required.right)
        return batch.with_(token_rewards=token_rewards_of(batch.with_(rewards=rows, token_rewards=None)))

    return replace_rewards


def to_go(batch: Batch) -> Batch:
    """Â_t = Σ_{s>=t} r_s: the sum of the rewards from this token on, not whitened."""
    return batch.with_(advantages=returns_of(batch))


def without_truncated(batch: Batch) -> Batch:
    """Leave out truncated answers, as a step after the advantage; DAPO's overlong filtering.

    They are removed from `loss_mask` and from the totals, but have counted in μ and σ, as in TRL, where they also stay
    in the number of rows.

    Raises ValueError before the advantage, where it would change the μ and σ of advantages that use lengths.
    """
    if batch.advantages is None:
        raise ValueError("without_truncated comes after the advantage: truncated answers count in its means")
    mask = batch.loss_mask & ~batch.truncated[:, None]
    return batch.with_(loss_mask=mask, advantages=batch.advantages.where(mask, 0.0)).recounted()


def _end_values(batch: Batch) -> Float[Tensor, "B"]:
    """Return V after each truncated answer, 0 after the others."""
    if batch.end_values is not None:
        return batch.end_values.where(batch.truncated, 0.0)
    if batch.loss_mask.any():
        raise ValueError(
            "gae: bootstrap needs `end_values`, which the batch does not have; pass `functools.partial(gae, "
            "bootstrap=True)` to the loop, or compute them with `critic.end_values(batch)`"
        )
    return torch.zeros_like(batch.rewards)
