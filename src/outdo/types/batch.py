"""A batch: the rollouts of a step as tensors, from which losses are computed, and how it is split.

Shapes: B sequences, T padded length. Log-probabilities are in nats. `Float[Tensor, "B T"]` is a tensor of floats with
the shape [B, T]; the letters are checked in outdo's tests and cost nothing in normal use.
**Index t of every [B, T] tensor is about token t**: `old_logprobs[b, t]` is the log-probability of `token_ids[b, t]`
given the tokens before it. Index 0 has no token before it and is never trained.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from outdo.types.inputs import Inputs, inputs_of_rows
from outdo.types.lessons import Lesson, lessons_of_rows
from outdo.types.plain_tensors import check_tensors
from outdo.types.rollouts import Group, Rollout
from outdo.types.rows import (
    floats,
    pack_by_tokens,
    pad_routes,
    pad_rows,
    previous_columns,
    tokens_read,
    turn_numbers,
)
from outdo.utils.hints import COLUMN, teacher_of
from outdo.utils.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of one optimiser step: the denominators of every mean. Micro-batches keep those of the whole step.

    Rows without a trained token count only in `rows`.
    """

    rows: int  # all rows
    sequences: int  # rows with at least one trained token
    tokens: int  # trained tokens
    environment: int = 0  # tokens of `Batch.environment`
    groups: int  # groups with at least one trained token
    padded_length: int  # T of the whole step

    @classmethod
    def of(
        cls, loss_mask: Bool[Tensor, "B T"], group: Int[Tensor, "B"], environment: Bool[Tensor, "B T"] | None = None
    ) -> "Totals":
        """Count the tokens to train on, and the rows and groups that have any."""
        rows = loss_mask.any(1)
        return cls(
            rows=len(loss_mask),
            sequences=int(rows.sum()),
            tokens=int(loss_mask.sum()),
            groups=len(group[rows].unique()),
            padded_length=loss_mask.shape[1],
            environment=0 if environment is None else int(environment.sum()),
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Batch:
    """B rollouts as tensors, right-padded: [prompt | completion | padding] in every row. Immutable; see `with_`."""

    token_ids: Int[Tensor, "B T"]
    attention_mask: Bool[Tensor, "B T"]  # False on padding
    loss_mask: Bool[Tensor, "B T"]  # True on tokens that the policy sampled, in scored rollouts
    turn: Int[Tensor, "B T"]  # of the policy, in which it sampled the token: 0, 1, ... in the row; -1: it did not
    previous: Int[Tensor, "B T"] | None = None  # column of the token that t follows, -1: of none; None: always t - 1
    prompt_lengths: Int[Tensor, "B"]
    group: Int[Tensor, "B"]  # equal for the rollouts of one prompt; rows of a group are neighbours
    rewards: Float[Tensor, "B"]  # never NaN; 0 where not scored
    scored: Bool[Tensor, "B"]
    truncated: Bool[Tensor, "B"]  # the answer did not end by itself
    right: Bool[Tensor, "B"] | None = None  # the answer is right; None if no answer has a verdict
    has_verdict: Bool[Tensor, "B"] | None = None  # it is known whether the answer is right; None: as `right` is set
    baselines: Float[Tensor, "B"] | None = None  # reward of the greedy answer; 0 where not scored
    reward_parts: Mapping[str, Float[Tensor, "B"]] = field(default_factory=dict)  # NaN where a part gave no value
    rollout_logprobs: Float[Tensor, "B T"]  # log π as the engine reported it
    temperature: Float[Tensor, "B"]  # log-probabilities are those of logits / temperature
    routes: Int[Tensor, "B T R K"] | None = None  # the K experts that each of R routers chose for a token; -1: unknown
    inputs: tuple[Inputs, ...] = ()  # of each row, what the model reads beside its tokens; (): no row has any
    lessons: tuple[Lesson, ...] = ()  # of each row, who teaches it, and with which hint; (): no row has any
    totals: Totals
    environment: Bool[Tensor, "B T"] | None = None  # tokens that an objective reads beside the trained ones
    old_logprobs: Float[Tensor, "B T"] | None = None  # log π_old, by the trainer, before this step's updates
    old_sums: Mapping[str, Float[Tensor, "B T"]] = field(default_factory=dict)  # of π_old over the vocabulary, by name
    ref_logprobs: Float[Tensor, "B T"] | None = None  # log π_ref
    teacher_logprobs: Float[Tensor, "B T"] | None = None  # log π_T; of several teachers of a row, their weighted mean
    teacher_weights: Mapping[str, Float[Tensor, "B"]] = field(default_factory=dict)  # by teacher: see `read_by`
    teacher_states: Mapping[str, Float[Tensor, "B T H"]] = field(default_factory=dict)  # that predict t, by teacher
    values: Float[Tensor, "B T"] | None = None  # V of the prefix before token t
    end_values: Float[Tensor, "B"] | None = None  # V after the last token of a truncated answer; 0 elsewhere
    returns: Float[Tensor, "B T"] | None = None  # the critic's regression target
    token_rewards: Float[Tensor, "B T"] | None = None  # instead of `rewards`; that of an episode ends each conversation
    advantages: Float[Tensor, "B T"] | None = None  # Â
    targets: Float[Tensor, "B T"] | None = None  # log target probabilities, where an objective sets them
    prepared: Mapping[str, Shaped[Tensor, "B T"]] = field(default_factory=dict)  # data of an objective's own

    @classmethod
    def from_groups(cls, groups: Sequence[Group]) -> "Batch":
        """Stack rollouts into rows, group by group. Without groups the batch has no rows."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        batch = cls.of_tokens(
            [group.prompt.token_ids for group in groups for _ in group.rollouts],
            [rollout.token_ids for rollout in rollouts],
            masks=[rollout.loss_mask for rollout in rollouts],
            group=[number for number, group in enumerate(groups) for _ in group.rollouts],
            temperature=[rollout.temperature for rollout in rollouts],
            inputs=[group.prompt.inputs for group in groups for _ in group.rollouts],
        )
        batch = _with_samples(batch, rollouts).with_(lessons=_lessons(groups))
        return _with_rewards(batch, groups).recounted()

    @classmethod
    def of_tokens(
        cls,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        *,
        masks: Sequence[Sequence[bool]] | None = None,
        group: Sequence[int] | None = None,
        temperature: Sequence[float] | None = None,
        inputs: Sequence[Inputs] = (),
    ) -> "Batch":
        """Make a batch of token ids alone, one row for each prompt and its completion.

        The tokens of a completion are trained where its mask is True; all of them without `masks`. `rewards` and
        `rollout_logprobs` are 0. Without `group` every row is a group of its own, without `temperature` it is 1. Raises
        `ValueError` for a prompt without tokens, and for `inputs` (see `types.inputs`) that not all prompts have.
        """
        if empty := [str(row) for row, prompt in enumerate(prompts) if not len(prompt)]:
            raise ValueError(f"prompts without tokens: {', '.join(empty)}")
        masks = [[True] * len(completion) for completion in completions] if masks is None else masks
        starts = [len(prompt) for prompt in prompts]
        rows = [(*prompt, *completion) for prompt, completion in zip(prompts, completions, strict=True)]
        token_ids = pad_rows(rows, torch.int64)
        sampled = pad_rows(masks, torch.bool, starts)
        of_group = torch.tensor(range(len(rows)) if group is None else group, dtype=torch.int64)
        return cls(
            token_ids=token_ids,
            attention_mask=torch.arange(token_ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None],
            loss_mask=sampled,
            turn=turn_numbers(sampled),
            prompt_lengths=torch.tensor(starts, dtype=torch.int64),
            group=of_group,
            totals=Totals.of(sampled, of_group),
            rewards=torch.zeros(len(rows)),
            scored=torch.ones(len(rows), dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
            rollout_logprobs=torch.zeros(token_ids.shape),
            temperature=torch.ones(len(rows)) if temperature is None else floats(temperature),
            inputs=inputs_of_rows(inputs),
        )

    @classmethod
    def of(
        cls,
        *,
        mask: Tensor,  # [B, T] bool: True on the tokens to train on
        advantages: Tensor,  # [B, T], or [B] for the same on each token to train on
        group: Tensor | None = None,  # [B]; None: every row is a group of its own
        token_ids: Tensor | None = None,  # [B, T]; None: no two are equal, from the first trained token of a row
        rewards: Tensor | None = None,  # [B]; None: 0
        old_logprobs: Tensor | None = None,  # [B, T]
        ref_logprobs: Tensor | None = None,  # [B, T]
        rollout_logprobs: Tensor | None = None,  # [B, T]; None: `old_logprobs`, or NaN where these are missing too
    ) -> "Batch":
        """Make a batch of plain tensors, so that any objective can be called on them. `with_` sets all other fields.

        The prompt of a row ends before its first trained token, and padding begins after its last one. Every row is
        scored, no row is truncated, and the temperature is 1. Rows of a group must be neighbours.

        Raises `UserError` with one sentence for each tensor of a wrong shape or dtype.
        """
        check_tensors(
            mask,
            advantages=advantages,
            token_ids=token_ids,
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            rollout_logprobs=rollout_logprobs,
            group=group,
            rewards=rewards,
        )
        column = torch.arange(mask.shape[1], device=mask.device)
        row = torch.arange(len(mask), device=mask.device)
        starts = mask.int().argmax(1)  # the first True of a row; 0 where there is none
        if token_ids is None:
            token_ids = (1 + row[:, None] * mask.shape[1] + column) * (column >= starts[:, None])
        if rollout_logprobs is None:
            rollout_logprobs = advantages.new_full(mask.shape, math.nan) if old_logprobs is None else old_logprobs
        group = row if group is None else group
        return cls(
            token_ids=token_ids,
            attention_mask=column <= (column * mask).amax(1, keepdim=True),
            loss_mask=mask,
            turn=turn_numbers(mask),
            prompt_lengths=starts,
            group=group,
            totals=Totals.of(mask, group),
            rewards=advantages.new_zeros(len(mask)) if rewards is None else rewards,
            scored=torch.ones_like(row, dtype=torch.bool),
            truncated=torch.zeros_like(row, dtype=torch.bool),
            rollout_logprobs=rollout_logprobs,
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            temperature=advantages.new_ones(len(mask)),
            advantages=advantages[:, None] * mask if advantages.dim() == 1 else advantages,
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        """Return a line without the tensors: what a notebook shows."""
        rows, length = self.token_ids.shape
        return f"Batch({counted(rows, 'row')}, padded to {counted(length, 'token')}, {self.totals.tokens} to train on)"

    def with_(self, **changes: Any) -> "Batch":
        """Return the same batch with some fields replaced."""
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same batch on another device."""
        inputs = tuple({name: value.to(device) for name, value in row.items()} for row in self.inputs)
        return self._each(lambda value: value.to(device)).with_(inputs=inputs)

    def rows(self, index: Tensor) -> "Batch":
        """Return some rows without the columns that are padding in all of them. `totals` stay those of the whole."""
        width = max(1, int(self.attention_mask[index].sum(1).max()))
        part = self._each(lambda value: value[index, :width] if value.dim() > 1 else value[index])
        return part.with_(**self._of_rows(index))

    def gathered(self, row: Tensor, columns: Tensor, inside: Tensor) -> "Batch":
        """Return a batch with C new rows: of the row `row[c]` the tokens at `columns[c]`, where `inside`. [C], [C, L]

        Elsewhere all values are 0. The rows have neither routes nor forks; `totals` stay those of the whole.
        """

        def of_rows(value: Tensor) -> Tensor:
            if value.dim() == 1:
                return value[row]
            beyond = (1,) * (value.dim() - 2)
            return value[row[:, None], columns].masked_fill(~inside.view(*inside.shape, *beyond), 0)

        return self.with_(routes=None, previous=None, **self._of_rows(row))._each(of_rows)

    def minibatches(self, n: int) -> list["Batch"]:
        """Split into at most `n` parts of whole groups, one optimiser step each. Every part counts its own totals."""
        ids = self.group.unique_consecutive()
        parts = [part for part in ids.tensor_split(n) if len(part)]
        return [self.rows(torch.isin(self.group, part).nonzero().squeeze(1)).recounted() for part in parts]

    def recounted(self) -> "Batch":
        """Return the same batch with new totals: after a split into optimiser steps, or a change of `loss_mask`."""
        return self.with_(totals=Totals.of(self.loss_mask, self.group, self.environment))

    def microbatches(self, budget: int, *, whole_groups: bool = True) -> Iterator["Batch"]:
        """Split into micro-batches of at most `budget` tokens: see `micro_batch_rows`. All keep the `totals`."""
        for rows in self.micro_batch_rows(budget, whole_groups=whole_groups):
            yield self.rows(torch.tensor(rows, device=self.group.device))

    def micro_batch_rows(
        self, budget: int, rows: Sequence[int] | None = None, *, whole_groups: bool
    ) -> list[list[int]]:
        """Split row numbers, all by default, so that each part holds at most `budget` tokens, padding included.

        Whole groups stay together, so that a prompt is computed once. A group that exceeds the budget by itself is
        split, unless `whole_groups` is set (for an objective that compares the rows of a group). A row is never split.
        """
        lengths, groups = tokens_read(self.attention_mask, self.previous), self.group.tolist()
        rows = range(len(self)) if rows is None else rows
        return pack_by_tokens(rows, lengths, groups, budget, whole_groups=whole_groups)

    def _of_rows(self, index: Tensor) -> dict[str, Any]:
        """Return the fields of some rows that are no tensors."""
        numbers = index.tolist()
        return {
            name: tuple(values[row] for row in numbers) if values else ()
            for name, values in (("inputs", self.inputs), ("lessons", self.lessons))
        }

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the same batch with every tensor changed."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        tensors = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
        tables = {
            name: {key: change(tensor) for key, tensor in getattr(self, name).items()}
            for name in ("reward_parts", "prepared", "old_sums", "teacher_weights", "teacher_states")
        }
        return self.with_(**tables, **tensors)


def _lessons(groups: Sequence[Group]) -> tuple[Lesson, ...]:
    """Return the lesson of each rollout; () if no row names a teacher and no rollout has a hint."""
    rollouts = (rollout for group in groups for rollout in group.rollouts)
    if not any(COLUMN in group.prompt.columns for group in groups) and all(r.teacher_prompt is None for r in rollouts):
        return ()
    return lessons_of_rows(
        [
            Lesson(teacher=teacher_of(group.prompt.columns), prompt=rollout.teacher_prompt)
            for group in groups
            for rollout in group.rollouts
        ]
    )


def _with_samples(batch: Batch, rollouts: Sequence[Rollout]) -> Batch:
    """Return the batch with what the engine reported of its rollouts."""
    width, starts = batch.token_ids.shape[1], batch.prompt_lengths.tolist()
    previous = previous_columns([rollout.forks for rollout in rollouts], width)
    return batch.with_(
        rollout_logprobs=pad_rows([rollout.logprobs for rollout in rollouts], torch.float32, starts),
        routes=pad_routes([rollout.routes for rollout in rollouts], width),
        previous=previous,
        turn=turn_numbers(batch.loss_mask, previous),
    )


def _with_rewards(batch: Batch, groups: Sequence[Group]) -> Batch:
    """Return the batch with the rewards of its rollouts. Those whose reward does not count are not trained."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = torch.tensor([rollout.scored for rollout in rollouts], dtype=torch.bool)
    parts = sorted({name for rollout in rollouts for name in rollout.reward_parts})
    right, has_verdict = _verdicts(rollouts)
    return batch.with_(
        loss_mask=batch.loss_mask & scored[:, None],
        rewards=floats([rollout.reward for rollout in rollouts]).where(scored, 0.0),
        scored=scored,
        truncated=torch.tensor([rollout.truncated for rollout in rollouts], dtype=torch.bool),
        right=right,
        has_verdict=has_verdict,
        baselines=_baselines(groups),
        reward_parts={name: floats([rollout.reward_parts.get(name) for rollout in rollouts]) for name in parts},
        token_rewards=_padded_token_rewards(rollouts, batch.prompt_lengths.tolist()),
    )


def _baselines(groups: Sequence[Group]) -> Tensor | None:
    """Return the baseline of the group of each rollout, [B]; None if a group has none."""
    baselines = [group.baseline for group in groups for _ in group.rollouts]
    return None if None in baselines else floats(baselines)


def _verdicts(rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return which rollouts are right, [B], and which have a verdict at all; None if no rollout has one."""
    if all(rollout.right is None for rollout in rollouts):
        return None, None
    right = torch.tensor([rollout.right is True for rollout in rollouts])
    return right, torch.tensor([rollout.right is not None for rollout in rollouts])


def _padded_token_rewards(rollouts: Sequence[Rollout], starts: Sequence[int]) -> Tensor | None:
    if all(rollout.token_rewards is None for rollout in rollouts):
        return None
    rewards = [_token_rewards(rollout, start) for rollout, start in zip(rollouts, starts, strict=True)]
    return pad_rows(rewards, torch.float32, starts)


def _token_rewards(rollout: Rollout, start: int) -> Sequence[float]:
    """Return the rewards of a rollout's tokens, the first in column `start`.

    Where it has none, the last sampled token of each of its conversations has its reward.
    """
    rewards = [0.0] * len(rollout.token_ids)
    if not rollout.scored:
        return rewards
    if rollout.token_rewards is not None:
        return rollout.token_rewards
    forks = [max(0, column - start) for column, _ in rollout.forks]
    for begin, end in pairwise([0, *forks, len(rewards)]):
        for t in [t for t in range(begin, end) if rollout.loss_mask[t]][-1:]:
            rewards[t] = rollout.reward
    return rewards
