"""Collect everything that is known about every token of a step, and one word for what the objective did with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import (
    TEACHER_DIVERGENCE,
    ComposedObjective,
    Objective,
    as_it_is,
    compared_logprobs,
    given,
)
from outdo.algorithms.prefix_tree import prefix_tree
from outdo.extras.record.bounds import bounds, is_unreachable, policy_push
from outdo.types import Batch, Step

CLIP = (
    "free",  # the policy term pushes it, or a teacher pulls it
    "low",  # pushed down at ratio 1, at or beyond a bound: the policy term no longer pushes it down
    "high",  # pushed up at ratio 1, at or beyond a bound: the policy term no longer pushes it up
    "unreachable",  # pushed towards a bound beyond probability 1, if bounds are known; or its rule asks for more
    "neutral",  # Â is 0
    "spared",  # Â is not 0, or was not before the objective left out tokens, but nothing pushes it at ratio 1
    "unscored",  # the reward of its answer failed
    "truncated",  # its answer was truncated, and such answers are not trained on
    "masked",  # not trained on for another reason
    "environment",  # the policy did not choose it: a prompt, a tool's answer, padding
    "untrained",  # the step made no pass
)
"""What the objective did with a token, as measured in the last pass. `TokenRecord.clip` is an index into this."""

FREE, LOW, HIGH, UNREACHABLE, NEUTRAL, SPARED, UNSCORED, TRUNCATED, MASKED, ENVIRONMENT, UNTRAINED = range(len(CLIP))

PASS_FIELDS = ("ratio", "entropy", "policy_push", "kl_pull", "weight", "bound")
"""Fields of a record that need at least one pass."""

CANCELLED_SHARE = 1e-4
"""Relative to the summed absolute pushes: a sum below this is rounding noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A step's tokens: each field is [B, T] float32 on the CPU, log-probabilities in nats, NaN if not known.

    Values of the trainer are known only for trained tokens, values of the engine for all tokens that the policy chose.
    """

    old_logprobs: Tensor  # log π_old
    new_logprobs: Tensor  # log πθ after the step's last update; NaN in rows that were not measured
    ref_logprobs: Tensor | None  # log π_ref
    rollout_logprobs: Tensor  # log π as the engine reported it
    teacher_logprobs: Tensor | None = None  # log π_T; of several teachers their weighted mean; NaN without one
    teacher_divergence: Tensor | None = None  # D_T, in the last pass, if the objective has it; NaN without a teacher
    values: Tensor | None  # V of the tokens before this one
    advantages: Tensor | None  # Â
    targets: Tensor | None  # log τ, if the objective sets targets
    clip: Tensor  # int8, index into CLIP
    ratio: Tensor  # πθ / π_old of the token in the last pass
    entropy: Tensor  # nats, in the last pass
    policy_push: Tensor  # derivative of the policy term with respect to log πθ, summed over the passes
    kl_pull: Tensor  # the same of all other terms: the pull of the reference
    net_push: Tensor  # all terms, summed over the group's answers with this token in this context: see `net_pushes`
    share: Tensor  # 1 / the number of these answers; 0 for tokens that are not trained
    weight: Tensor  # `policy_push` of the first pass alone: how fast the token is pushed
    bound: Tensor  # where the objective stops pushing: how far; see `bounds`, and `token_record` for its rows


def token_record(step: Step, objective: Objective, new_logprobs: Tensor | None) -> TokenRecord:
    """Return what `step` did to its tokens under `objective`.

    `new_logprobs` [B, T] is log πθ after the step, NaN in rows that were not measured; None if no row was. Bounds are
    computed for the same rows, or for all rows if there are none, because they take more time than everything else.
    Bounds that are targets are known for all rows.
    """
    batch = step.batch
    passes = [update.tokens for update in step.updates if update.tokens]  # empty: no token, or only the critic learnt
    chosen = batch.turn >= 0
    state = torch.full(chosen.shape, UNTRAINED, dtype=torch.int8)
    measured: dict[str, Tensor] = {}
    if passes:
        if batch.old_logprobs is None:  # one pass with one optimiser step: π_old is what it measured
            batch = batch.with_(old_logprobs=passes[0]["logprobs"])
        start = policy_push(objective, batch, given(batch.old_logprobs, "old_logprobs"))
        measured = _pass_measurements(passes) | {"bound": _bounds(objective, batch, start, new_logprobs)}
        at_ratio_1 = policy_push(objective, batch, given(compared_logprobs(objective, batch), "rollout_logprobs"))
        state = _clip_states(objective, batch, at_ratio_1, passes[-1], measured["bound"])

    def trained_only(values: Tensor) -> Tensor:
        """Set the values outside the trained tokens to NaN."""
        return values.float().where(batch.loss_mask, torch.nan)

    def optional(values: Tensor | None) -> Tensor | None:
        return None if values is None else trained_only(values)

    def taught_only(values: Tensor | None) -> Tensor | None:
        """Set the values of rows without a teacher to NaN, too: a teacher has not read them."""
        return None if values is None else trained_only(values).where(_has_teacher(batch)[:, None], torch.nan)

    unknown = torch.full(chosen.shape, torch.nan)
    total_push = measured["policy_push"] + measured["kl_pull"] if measured else torch.zeros(chosen.shape)
    net_push, share = net_pushes(batch, total_push)
    return TokenRecord(
        old_logprobs=trained_only(unknown if batch.old_logprobs is None else batch.old_logprobs),
        new_logprobs=trained_only(unknown if new_logprobs is None else new_logprobs),
        ref_logprobs=optional(batch.ref_logprobs),
        teacher_logprobs=taught_only(batch.teacher_logprobs),
        teacher_divergence=taught_only(passes[-1].get(TEACHER_DIVERGENCE) if passes else None),
        rollout_logprobs=batch.rollout_logprobs.float().where(chosen, torch.nan),
        values=optional(batch.values),
        advantages=optional(batch.advantages),
        targets=optional(batch.targets),
        clip=state.where(batch.loss_mask, _untrained_reasons(batch, chosen)),
        net_push=trained_only(net_push),
        share=share,
        **{name: trained_only(measured.get(name, unknown)) for name in PASS_FIELDS},
    )


def _has_teacher(batch: Batch) -> Tensor:
    """Return which rows a teacher has read [B]: all of them, if the batch has no weights of teachers."""
    weights = [*batch.teacher_weights.values()]
    return torch.stack(weights).any(0) if weights else torch.ones(len(batch), dtype=torch.bool)


def _bounds(objective: Objective, batch: Batch, start: Tensor, new_logprobs: Tensor | None) -> Tensor:
    """Return the bounds of the measured rows, NaN in the others. [B, T]"""
    if batch.targets is not None:
        return bounds(objective, batch, start)
    measured_rows = batch.loss_mask.any(1) if new_logprobs is None else new_logprobs.isfinite().any(1)
    rows = measured_rows.nonzero().squeeze(1)
    bound = torch.full(start.shape, torch.nan)
    if len(rows):
        part = batch.rows(rows)  # [b, t]
        width = part.token_ids.shape[1]
        bound[rows, :width] = bounds(objective, part, start[rows, :width]).float()
    return bound


def net_pushes(batch: Batch, push: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the pushes on the same probability; return the sum, and 1 / the number of answers in it. [B, T] each

    Answers of a group with the same beginning have the same tokens in the same contexts: they push the same
    probability, a good answer up and a bad one down. The policy can only follow the sum. A sum that is only rounding
    noise is set to 0: the pushes cancel.
    """
    mask = batch.loss_mask
    _, node = prefix_tree(batch)
    _, token, completions = node[mask].unique(return_inverse=True, return_counts=True)  # N distinct tokens
    values = push[mask].double()
    summed = torch.zeros(len(completions), dtype=torch.float64).index_add(0, token, values)
    size = torch.zeros(len(completions), dtype=torch.float64).index_add(0, token, values.abs())
    summed = summed.where(summed.abs() > CANCELLED_SHARE * size, 0.0)
    nothing = torch.zeros(mask.shape)
    return (
        nothing.masked_scatter(mask, summed[token].float()),
        nothing.masked_scatter(mask, (1 / completions)[token].float()),
    )


def _pass_measurements(passes: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the measurements of the passes, each [B, T]."""
    policy = torch.stack([tokens["policy_push"] for tokens in passes]).sum(0)
    whole = torch.stack([tokens["push"] for tokens in passes]).sum(0)
    return {
        "ratio": passes[-1]["log_ratio"].exp(),
        "entropy": passes[-1]["entropy"],
        "policy_push": policy,
        "kl_pull": whole - policy,
        "weight": passes[0]["policy_push"],
    }


def _clip_states(
    objective: Objective, batch: Batch, start: Tensor, last_pass: Mapping[str, Tensor], bound: Tensor
) -> Tensor:
    """Return the first state that holds for each trained token, by its pushes at ratio 1 and in the last pass. [B, T]

    `start` is the push at ratio 1, which is that at π_old unless the objective has `bypass`. A token that its teachers
    pull is pushed, whatever its advantage.
    """
    last = last_pass["policy_push"]
    neutral = torch.zeros_like(batch.loss_mask) if batch.advantages is None else batch.advantages == 0
    if (
        isinstance(objective, ComposedObjective) and objective.batch_transform is not as_it_is
    ):  # it sets Â = 0 to leave tokens out
        neutral = neutral & neutral.where(batch.loss_mask, True).all(1, keepdim=True)
    stopped = (start != 0) & (last.sign() != start.sign())
    pushed = last_pass["push"] != 0 if objective.requires.divergences else last != 0
    return _first_case(
        (stopped & (start < 0), LOW),
        (stopped, HIGH),
        (is_unreachable(bound, batch) & ~(neutral & ~pushed), UNREACHABLE),
        (pushed, FREE),
        (neutral, NEUTRAL),
        (torch.ones_like(pushed), SPARED),
    )


def _untrained_reasons(batch: Batch, chosen: Tensor) -> Tensor:
    """Return the first reason that holds for each token that is not trained on. [B, T]"""
    return _first_case(
        (~chosen, ENVIRONMENT),
        (~batch.scored[:, None], UNSCORED),
        (batch.truncated[:, None] & ~batch.loss_mask.any(1, keepdim=True), TRUNCATED),
        (torch.ones_like(chosen), MASKED),
    )


def _first_case(*cases: tuple[Tensor, int]) -> Tensor:
    """Return the code of the first case that holds. [B, T] int8"""
    shape = torch.broadcast_shapes(*(case.shape for case, _ in cases))
    codes = torch.zeros(shape, dtype=torch.int8)
    for case, code in reversed(cases):
        codes = codes.masked_fill(case, code)
    return codes
