"""Everything that is known of every token of a step, and in one word what the objective did with it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import ComposedObjective, Objective, as_it_is, given
from outdo.algorithms.objectives.target.rules import prefix_tree
from outdo.observability.record.bounds import bounds, out_of_reach, policy_push
from outdo.types import Batch, Step

CLIP = (
    "free",  # the policy term pushes it
    "low",  # pushed down, it is at or beyond its bound: the policy term pushes it down no more
    "high",  # pushed up, it is at or beyond its bound: the policy term pushes it up no more
    "unreachable",  # pushed towards a bound beyond probability 1, where bounds were asked; or its rule asked for more
    "neutral",  # Â is 0
    "spared",  # Â is not 0, or was not before the objective thinned out tokens; yet at π_old nothing pushed it
    "unscored",  # the reward of its answer failed
    "truncated",  # its answer was cut off, and such answers are not trained on
    "masked",  # left out of the training otherwise
    "environment",  # the policy did not choose it: a prompt, a tool's answer, padding
    "untrained",  # no pass was made
)
"""What the objective did with a token, after the last pass as the pass found it. `TokenRecord.clip` counts from 0."""

FREE, LOW, HIGH, UNREACHABLE, NEUTRAL, SPARED, UNSCORED, TRUNCATED, MASKED, ENVIRONMENT, UNTRAINED = range(len(CLIP))

MEASURED = ("ratio", "entropy", "policy_push", "kl_pull", "weight", "bound")
"""Fields of a record that need a pass."""

CANCELLED = 1e-4
"""Of all that is pushed: a sum below this is the noise of adding up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A step's tokens, each field [B, T] float32 on the CPU, log-probabilities in nats; NaN where it is not known.

    What the trainer says is known of trained tokens alone, what the engine says of all that the policy chose.
    """

    old_logprobs: Tensor  # log π_old
    new_logprobs: Tensor  # log πθ after the step's last update; NaN in rows where it was not taken
    ref_logprobs: Tensor | None  # log π_ref
    rollout_logprobs: Tensor  # log π as the engine reported it
    values: Tensor | None  # V of what was read before the token
    advantages: Tensor | None  # Â
    targets: Tensor | None  # log τ, where the objective sets targets
    clip: Tensor  # int8, index into CLIP
    ratio: Tensor  # πθ / π_old of the token as the last pass found it
    entropy: Tensor  # nats, as the last pass found it
    policy_push: Tensor  # the policy term's derivative by log πθ, summed over the passes
    kl_pull: Tensor  # the same of all other terms: the pull of the reference
    net_push: Tensor  # all terms, added over the group's answers that took this token in this context: see `net`
    share: Tensor  # 1 over how many answers that are; 0 where nothing is trained
    weight: Tensor  # `policy_push` of the first pass alone: how fast the token is pushed
    bound: Tensor  # where the objective stops to push: how far; see `bounds`, and `token_record` of which rows


def token_record(step: Step, objective: Objective, new_logprobs: Tensor | None) -> TokenRecord:
    """What `step` did to its tokens under `objective`.

    `new_logprobs` [B, T] is log πθ after the step, NaN in rows where it was not taken; None where it was in no row.
    Bounds are asked for the same rows, or for all where there is none: they take more time than all the rest. Those
    that are targets are known anyway.
    """
    batch = step.batch
    passes = [update.tokens for update in step.updates if update.tokens]  # none: no token, or a critic alone
    chosen = _chosen(batch, step)
    state = torch.full(chosen.shape, UNTRAINED, dtype=torch.int8)
    measured: dict[str, Tensor] = {}
    if passes:
        if batch.old_logprobs is None:  # one pass of one optimiser step: π_old is what it found
            batch = batch.with_(old_logprobs=passes[0]["logprobs"])
        start = policy_push(objective, batch, given(batch.old_logprobs, "old_logprobs"))
        measured = _measured(passes) | {"bound": _bounds(objective, batch, start, new_logprobs)}
        state = _state(objective, batch, start, passes[-1]["policy_push"], measured["bound"])

    def known(values: Tensor) -> Tensor:
        """NaN outside of the trained tokens."""
        return values.float().where(batch.loss_mask, torch.nan)

    def optional(values: Tensor | None) -> Tensor | None:
        return None if values is None else known(values)

    unknown = torch.full(chosen.shape, torch.nan)
    whole = measured["policy_push"] + measured["kl_pull"] if measured else torch.zeros(chosen.shape)
    net_push, share = net(batch, whole)
    return TokenRecord(
        old_logprobs=known(unknown if batch.old_logprobs is None else batch.old_logprobs),
        new_logprobs=known(unknown if new_logprobs is None else new_logprobs),
        ref_logprobs=optional(batch.ref_logprobs),
        rollout_logprobs=batch.rollout_logprobs.float().where(chosen, torch.nan),
        values=optional(batch.values),
        advantages=optional(batch.advantages),
        targets=optional(batch.targets),
        clip=state.where(batch.loss_mask, _left_out(batch, chosen)),
        net_push=known(net_push),
        share=share,
        **{name: known(measured.get(name, unknown)) for name in MEASURED},
    )


def _bounds(objective: Objective, batch: Batch, start: Tensor, new_logprobs: Tensor | None) -> Tensor:
    """Those of the rows they are asked for, NaN in the others. [B, T]"""
    if batch.targets is not None:
        return bounds(objective, batch, start)
    asked = batch.loss_mask.any(1) if new_logprobs is None else new_logprobs.isfinite().any(1)
    rows = asked.nonzero().squeeze(1)
    found = torch.full(start.shape, torch.nan)
    if len(rows):
        part = batch.rows(rows)  # [b, t]
        width = part.token_ids.shape[1]
        found[rows, :width] = bounds(objective, part, start[rows, :width]).float()
    return found


def net(batch: Batch, push: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of the pushes on one probability, and the share that each answer has in it. [B, T] each

    Answers of a group that begin alike take the same tokens in the same contexts: they push one probability, a good
    answer up and a bad one down. The policy can only follow the sum. One that is no more than the noise of adding up
    is 0: the pushes cancel.
    """
    mask = batch.loss_mask
    _, taken = prefix_tree(batch)
    _, token, answers = taken[mask].unique(return_inverse=True, return_counts=True)  # N distinct tokens
    values = push[mask].double()
    summed = torch.zeros(len(answers), dtype=torch.float64).index_add(0, token, values)
    size = torch.zeros(len(answers), dtype=torch.float64).index_add(0, token, values.abs())
    summed = summed.where(summed.abs() > CANCELLED * size, 0.0)
    nothing = torch.zeros(mask.shape)
    return (
        nothing.masked_scatter(mask, summed[token].float()),
        nothing.masked_scatter(mask, (1 / answers)[token].float()),
    )


def _measured(passes: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What the passes say of the tokens, each [B, T]."""
    policy = torch.stack([tokens["policy_push"] for tokens in passes]).sum(0)
    whole = torch.stack([tokens["push"] for tokens in passes]).sum(0)
    return {
        "ratio": passes[-1]["log_ratio"].exp(),
        "entropy": passes[-1]["entropy"],
        "policy_push": policy,
        "kl_pull": whole - policy,
        "weight": passes[0]["policy_push"],
    }


def _state(objective: Objective, batch: Batch, start: Tensor, last: Tensor, bound: Tensor) -> Tensor:
    """Of trained tokens, from the policy push at π_old and in the last pass. [B, T] int8; the first that holds."""
    neutral = torch.zeros_like(batch.loss_mask) if batch.advantages is None else batch.advantages == 0
    if (
        isinstance(objective, ComposedObjective) and objective.batch_transform is not as_it_is
    ):  # it sets Â = 0 to leave tokens out
        neutral = neutral & neutral.where(batch.loss_mask, True).all(1, keepdim=True)
    stopped = (start != 0) & (last * start <= 0)
    pushed = last != 0
    return _first(
        (stopped & (start < 0), LOW),
        (stopped, HIGH),
        (out_of_reach(bound, batch) & ~(neutral & ~pushed), UNREACHABLE),
        (pushed, FREE),
        (neutral, NEUTRAL),
        (torch.ones_like(pushed), SPARED),
    )


def _left_out(batch: Batch, chosen: Tensor) -> Tensor:
    """Of tokens that are not trained on: why. [B, T] int8; the first that holds."""
    return _first(
        (~chosen, ENVIRONMENT),
        (~batch.scored[:, None], UNSCORED),
        (batch.truncated[:, None] & ~batch.loss_mask.any(1, keepdim=True), TRUNCATED),
        (torch.ones_like(chosen), MASKED),
    )


def _chosen(batch: Batch, step: Step) -> Tensor:
    """Tokens that the policy chose, trained or not. [B, T] bool"""
    after_prompt = torch.arange(batch.token_ids.shape[1]) >= batch.prompt_lengths[:, None]
    masks = [rollout.loss_mask for group in step.groups for rollout in group.rollouts]
    flat = torch.tensor([*itertools.chain.from_iterable(masks)], dtype=torch.bool)
    return torch.zeros_like(batch.loss_mask).masked_scatter(batch.attention_mask & after_prompt, flat)


def _first(*cases: tuple[Tensor, int]) -> Tensor:
    """The code of the first case that holds, [B, T] int8."""
    shape = torch.broadcast_shapes(*(case.shape for case, _ in cases))
    codes = torch.zeros(shape, dtype=torch.int8)
    for case, code in reversed(cases):
        codes = codes.masked_fill(case, code)
    return codes
