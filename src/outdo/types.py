"""The words of outdo as data: question, answer, group, batch, step. Read this file first.

Shapes: P prompts, G group size, B sequences, T padded length. Log-probabilities are in nats.
**Index t of every [B, T] tensor is about token t**: `old_logprobs[b, t]` is the log-probability of `token_ids[b, t]`
given the tokens before it. Index 0 has nothing before it and is never trained.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor

from outdo.utils.batching import pack_by_tokens
from outdo.utils.rng import Stream

RIGHT = 1.0 - 1e-6
"""An answer counts as right when it is rewarded with 1 or more."""


class FinishReason(StrEnum):
    """Why a completion ended."""

    stop = "stop"  # the policy sampled an end-of-sequence token, or a stop string appeared
    length = "length"  # the token limit or the model's context was reached: the answer is truncated
    abort = "abort"  # the engine gave the request up


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question as the policy sees it, tokenised once; these very ids are trained on."""

    id: str  # unique within its dataset
    text: str | Sequence[Mapping[str, Any]]  # what the user wrote: a string, or chat messages
    token_ids: tuple[int, ...]
    answer: Any = None  # what the reward compares with; None where there is nothing to compare
    columns: Mapping[str, Any] = field(default_factory=dict)  # the other columns of the row, for the reward

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(f"the prompt {self.id!r} has no tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion asked of an engine."""

    token_ids: tuple[int, ...]  # everything the policy has read so far
    stream: Stream
    position: int = 0  # random numbers of the stream already used (by earlier turns of the same episode)
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An engine's answer to one request."""

    token_ids: tuple[int, ...]  # what the policy sampled, its end-of-sequence token included
    logprobs: tuple[float, ...]  # of each token, at the sampling temperature, over the whole vocabulary
    finish_reason: FinishReason
    policy_version: int  # optimiser steps the weights had taken

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} tokens, but {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One finished episode of a prompt, scored."""

    token_ids: tuple[int, ...]  # after the prompt: what was sampled and what an environment inserted
    loss_mask: tuple[bool, ...]  # True where the policy chose the token
    logprobs: tuple[float, ...]  # by the engine; 0 where the policy did not choose
    text: str  # what the reward read
    reward: float  # finite; 0 where the status is not "ok"
    status: str = "ok"  # ok · not_applicable · failed · timed_out · non_finite · no_baseline
    reward_parts: Mapping[str, float | None] = field(default_factory=dict)
    finish_reason: FinishReason
    policy_version: int
    temperature: float = 1.0  # the policy sampled from, and is trained as, softmax(logits / temperature)
    token_rewards: tuple[float, ...] | None = None  # where an environment rewards steps: they add up to `reward`

    def __post_init__(self) -> None:
        if self.token_rewards is not None and len(self.token_rewards) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens, but {len(self.token_rewards)} rewards per token")
        if not len(self.token_ids) == len(self.loss_mask) == len(self.logprobs):
            raise ValueError(
                f"{len(self.token_ids)} tokens, but {len(self.loss_mask)} mask entries and {len(self.logprobs)} "
                "log-probabilities"
            )

    @property
    def scored(self) -> bool:
        """Whether `reward` is a reward: otherwise the rollout is in no mean, no deviation and no loss."""
        return self.status == "ok"

    @property
    def right(self) -> bool:
        """Whether the answer earned 1 or more."""
        return self.scored and self.reward >= RIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The G rollouts of one prompt: what group-relative advantages are relative to."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    baseline: float | None = None  # reward of the likeliest answer, where an advantage is relative to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The groups of a step, and metrics of how they were sampled."""

    groups: Sequence[Group]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, result: "Sampled | Sequence[Group]") -> "Sampled":
        """Return what a sampler returned as `Sampled`: a plain list of groups has no metrics."""
        return result if isinstance(result, Sampled) else cls(groups=result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What one optimiser step sees in all: the denominators of every mean. Micro-batches inherit, never recount.

    Rows without a trained token are only in `rows`.
    """

    rows: int  # all of them
    sequences: int  # rows with at least one trained token
    tokens: int  # trained tokens
    groups: int  # groups with at least one trained token
    padded_length: int  # T of the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B rollouts as tensors, right-padded: [prompt | completion | padding] in every row. Immutable; see `with_`.

    Padding is the *meaning* of a batch; how a policy computes it (packed, prompts shared) is its own affair.
    """

    token_ids: Tensor  # [B, T] int64
    attention_mask: Tensor  # [B, T] bool; False on padding
    loss_mask: Tensor  # [B, T] bool; True on tokens the policy chose, of scored rollouts
    prompt_lengths: Tensor  # [B] int64
    group: Tensor  # [B] int64; equal for the rollouts of one prompt; rows of a group are neighbours
    rewards: Tensor  # [B] float32; never NaN; 0 where not scored
    scored: Tensor  # [B] bool
    truncated: Tensor  # [B] bool; the answer did not end by itself
    baselines: Tensor | None = None  # [B] float32; reward of the likeliest answer; 0 where not scored
    reward_parts: Mapping[str, Tensor] = field(default_factory=dict)  # each [B] float32, NaN where a part said nothing
    rollout_logprobs: Tensor  # [B, T] log π as the engine reported it
    temperature: Tensor  # [B] float32; log-probabilities are those of logits / temperature
    totals: Totals
    old_logprobs: Tensor | None = None  # [B, T] log π_old, by the trainer, before this step's updates
    old_entropy: Tensor | None = None  # [B, T] nats, of π_old's whole next-token distribution
    ref_logprobs: Tensor | None = None  # [B, T] log π_ref
    values: Tensor | None = None  # [B, T] V of the prefix before token t
    returns: Tensor | None = None  # [B, T] what V is regressed on
    token_rewards: Tensor | None = None  # [B, T] instead of `rewards`, where rewards come per token
    advantages: Tensor | None = None  # [B, T] Â
    targets: Tensor | None = None  # [B, T] log target probabilities, where an objective sets them
    prepared: Mapping[str, Tensor] = field(default_factory=dict)  # each [B, T]; what an objective keeps for itself

    @classmethod
    def from_groups(cls, groups: Sequence[Group]) -> Self:
        """Stack rollouts into rows, group by group. Of no groups it is a batch of no rows."""
        rows = [
            _Row(number, group.prompt, each, group.baseline)
            for number, group in enumerate(groups)
            for each in group.rollouts
        ]
        token_ids = _padded(rows, "token_ids", torch.int64)
        loss_mask = _padded(rows, "loss_mask", torch.bool)
        group = _column(rows, "group", torch.int64)
        lengths = _column(rows, "length", torch.int64)
        names = sorted({name for row in rows for name in row.rollout.reward_parts})
        by_token = any(row.rollout.token_rewards is not None for row in rows)
        return cls(
            token_ids=token_ids,
            attention_mask=torch.arange(token_ids.shape[1]) < lengths[:, None],
            loss_mask=loss_mask,
            prompt_lengths=_column(rows, "prompt_length", torch.int64),
            group=group,
            rewards=_column(rows, "reward", torch.float32),
            scored=_column(rows, "scored", torch.bool),
            truncated=_column(rows, "truncated", torch.bool),
            baselines=_column(rows, "baseline", torch.float32)
            if all(row.baseline is not None for row in rows)
            else None,
            reward_parts={name: torch.tensor([row.part(name) for row in rows]) for name in names},
            rollout_logprobs=_padded(rows, "logprobs", torch.float32),
            temperature=_column(rows, "temperature", torch.float32),
            token_rewards=_padded(rows, "token_rewards", torch.float32) if by_token else None,
            totals=_count(loss_mask, group),
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def with_(self, **changes: Any) -> Self:
        """The same batch with some fields replaced."""
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return self._each(lambda value: value.to(device))

    def rows(self, index: Tensor) -> Self:
        """Some rows, columns that are padding in all of them cut off; `totals` stay those of the whole."""
        width = max(1, int(self.attention_mask[index].sum(1).max()))
        return self._each(lambda value: value[index, :width] if value.dim() == 2 else value[index])

    def minibatches(self, n: int) -> list[Self]:
        """Split into at most `n` parts of whole groups, one optimiser step each: every part counts its own totals."""
        ids = self.group.unique_consecutive()
        parts = [part for part in ids.tensor_split(n) if len(part)]
        return [self.rows(torch.isin(self.group, part).nonzero().squeeze(1)).recounted() for part in parts]

    def recounted(self) -> Self:
        """The same batch, its totals counted anew: it is a whole of its own, or its `loss_mask` was narrowed."""
        return self.with_(totals=_count(self.loss_mask, self.group))

    def microbatches(self, budget: int, *, whole_groups: bool = True) -> Iterator[Self]:
        """Split into micro-batches of at most `budget` tokens: see `micro_batch_rows`. All inherit `totals`."""
        for rows in self.micro_batch_rows(budget, whole_groups=whole_groups):
            yield self.rows(torch.tensor(rows, device=self.group.device))

    def micro_batch_rows(
        self, budget: int, rows: Sequence[int] | None = None, *, whole_groups: bool
    ) -> list[list[int]]:
        """Split row numbers, all by default, so that each part holds at most `budget` tokens, padding included.

        Whole groups stay together, so that a prompt is computed once; a group that alone exceeds the budget is cut,
        unless `whole_groups` (the objective looks across the rows of a group) forbids it. A row is never cut.
        """
        lengths, groups = self.attention_mask.sum(1).tolist(), self.group.tolist()
        rows = range(len(self)) if rows is None else rows
        return pack_by_tokens(rows, lengths, groups, budget, whole_groups=whole_groups)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same batch with every tensor changed."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        tensors = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
        parts = {name: change(part) for name, part in self.reward_parts.items()}
        prepared = {name: change(value) for name, value in self.prepared.items()}
        return self.with_(reward_parts=parts, prepared=prepared, **tensors)


@dataclass(frozen=True, slots=True)
class _Row:
    """A rollout on its way into a batch, its prompt before it."""

    group: int
    prompt: Prompt
    rollout: Rollout
    baseline: float | None

    @property
    def prompt_length(self) -> int:
        return len(self.prompt.token_ids)

    @property
    def length(self) -> int:
        return self.prompt_length + len(self.rollout.token_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt.token_ids + self.rollout.token_ids

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        chosen = self.rollout.loss_mask if self.scored else (False,) * len(self.rollout.loss_mask)
        return (False,) * self.prompt_length + chosen

    @property
    def logprobs(self) -> tuple[float, ...]:
        return (0.0,) * self.prompt_length + self.rollout.logprobs

    @property
    def token_rewards(self) -> tuple[float, ...]:
        """Those of the rollout; where it has none, its reward on the last token that the policy chose."""
        mask = self.loss_mask[self.prompt_length :]
        last = max((t for t, chosen in enumerate(mask) if chosen), default=None)
        alone = tuple(self.reward if t == last else 0.0 for t in range(len(mask)))
        given = self.rollout.token_rewards if self.scored else None
        return (0.0,) * self.prompt_length + (alone if given is None else given)

    @property
    def scored(self) -> bool:
        return self.rollout.scored

    @property
    def reward(self) -> float:
        return self.rollout.reward if self.scored else 0.0

    @property
    def truncated(self) -> bool:
        return self.rollout.finish_reason is not FinishReason.stop

    @property
    def temperature(self) -> float:
        return self.rollout.temperature

    def part(self, name: str) -> float:
        value = self.rollout.reward_parts.get(name)
        return float("nan") if value is None else value


def _column(rows: Sequence[_Row], name: str, dtype: torch.dtype) -> Tensor:
    """One value of each row, [B]."""
    return torch.tensor([getattr(row, name) for row in rows], dtype=dtype)


def _padded(rows: Sequence[_Row], name: str, dtype: torch.dtype) -> Tensor:
    """The values of each row, zeros to the right of them, [B, T]."""
    if not rows:
        return torch.zeros(0, 1, dtype=dtype)
    values = [getattr(row, name) for row in rows]
    lengths = torch.tensor([len(each) for each in values])
    inside = torch.arange(int(lengths.max())) < lengths[:, None]  # [B, T]
    flat = torch.tensor([*chain.from_iterable(values)], dtype=dtype)  # one tensor: one for each row takes longer
    return torch.zeros(inside.shape, dtype=dtype).masked_scatter(inside, flat)


def _count(loss_mask: Tensor, group: Tensor) -> Totals:
    rows = loss_mask.any(1)
    return Totals(
        rows=len(loss_mask),
        sequences=int(rows.sum()),
        tokens=int(loss_mask.sum()),
        groups=len(group[rows].unique()),
        padded_length=loss_mask.shape[1],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What the policy says of a batch's tokens now; gradients flow through it."""

    logprobs: Tensor  # [B, T] log πθ; 0 where `loss_mask` is False
    entropy: Tensor | None = None  # [B, T] nats, of the whole next-token distribution; where an objective asked for it

    def detach(self) -> Self:
        """The same scores without their graph."""
        return replace(
            self, logprobs=self.logprobs.detach(), entropy=None if self.entropy is None else self.entropy.detach()
        )

    def to(self, device: torch.device | str) -> Self:
        """The same scores on another device."""
        return replace(
            self, logprobs=self.logprobs.to(device), entropy=None if self.entropy is None else self.entropy.to(device)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """An objective's value, split: scalars that add up over the micro-batches of one optimiser step."""

    policy: Tensor  # Σ w · c · S, maximised
    divergence: Tensor  # β · Σ w · D, subtracted
    entropy: Tensor  # η · Σ w · H, added
    loss: Tensor  # -(policy - divergence + entropy), minimised


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one inner pass did."""

    metrics: Mapping[str, float]
    tokens: Mapping[str, Tensor]  # detached, on the CPU, each [B, T]; see `Policy.update`


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Everything a training step saw and did; what `train` yields."""

    index: int  # 1, 2, ...
    sampled: Sampled  # the groups, and metrics of how they were sampled
    batch: Batch
    updates: Sequence[Update]  # one per inner pass; none where there was no token to train on
    stopped: str = "maximum"  # why the inner passes ended: they were all done, or a stopping rule's name

    @property
    def groups(self) -> Sequence[Group]:
        """The groups that were sampled."""
        return self.sampled.groups

    @property
    def update(self) -> Update | None:
        """The last inner pass."""
        return self.updates[-1] if self.updates else None
