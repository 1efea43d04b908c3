"""The data types of outdo: prompt, completion, rollout, group, batch, step. Read this file first.

Shapes: P prompts, G group size, B sequences, T padded length. Log-probabilities are in nats. `Float[Tensor, "B T"]` is
a tensor of floats with the shape [B, T]; the letters are checked in outdo's tests and cost nothing in normal use.
**Index t of every [B, T] tensor is about token t**: `old_logprobs[b, t]` is the log-probability of `token_ids[b, t]`
given the tokens before it. Index 0 has no token before it and is never trained.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from outdo.utils.batching import (
    counted,
    floats,
    pack_by_tokens,
    pad_routes,
    pad_rows,
    plain_fields,
    previous_columns,
    reward_fields,
    token_fields,
    tokens_read,
)
from outdo.utils.outcome import has_spread
from outdo.utils.rng import Stream


class FinishReason(StrEnum):
    """Why a completion ended."""

    stop = "stop"  # the policy sampled an end-of-sequence token, or a stop string appeared
    length = "length"  # the token limit or the end of the model's context was reached: the answer is truncated
    turns = "turns"  # the limit of turns was reached, and the environment would have gone on
    abort = "abort"  # the engine abandoned the request, or the environment failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question as the policy reads it. It is tokenised once, and training uses exactly these ids."""

    id: str  # unique within its dataset
    text: str | Sequence[Mapping[str, Any]]  # the question: a string, or chat messages
    token_ids: tuple[int, ...]
    answer: Any = None  # the reference answer for the reward; None where there is none
    columns: Mapping[str, Any] = field(default_factory=dict)  # the other columns of the row, for the reward

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(f"the prompt {self.id!r} has no tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to an engine for one completion."""

    token_ids: tuple[int, ...]  # all tokens before the completion
    stream: Stream
    position: int = 0  # random numbers of the stream that earlier turns of the episode have used
    max_tokens: int
    prompt_length: int | None = None  # of these tokens, those before the first turn of the episode; None: all
    episode: Stream | None = None  # names the episode: an engine may keep what it has read of it for the next turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The tokens that an engine sampled for one request."""

    token_ids: tuple[int, ...]  # the sampled tokens, including the end-of-sequence token
    logprobs: tuple[float, ...]  # of each token, at the sampling temperature, over the whole vocabulary
    finish_reason: FinishReason
    policy_version: int  # number of optimiser steps before the sampling, of the last token
    versions: tuple[int, ...] | None = None  # the same for each token, if the answer went on across updates
    routes: Tensor | None = field(default=None, compare=False, repr=False)  # see `Batch.routes`; of prompt and answer
    tokens_read: int | None = field(default=None, compare=False)  # that the model computed for it; None: not known

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} tokens, but {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One finished episode of a prompt, with its reward."""

    token_ids: tuple[int, ...]  # after the prompt: sampled tokens, and tokens that an environment inserted
    loss_mask: tuple[bool, ...]  # True where the policy sampled the token
    logprobs: tuple[float, ...]  # by the engine; 0 where the policy did not sample the token
    text: str  # the text that the reward function read
    reward: float  # finite; 0 where `status` is not "ok"
    right: bool | None = None  # the verdict of `outdo.rewards.right`; None: not defined, or the reward gave none
    status: str = "ok"  # ok · not_applicable · failed · timed_out · non_finite · unavailable · no_baseline
    reward_parts: Mapping[str, float | None] = field(default_factory=dict)
    finish_reason: FinishReason
    policy_version: int  # number of optimiser steps before the sampling, of the last token
    versions: tuple[int, ...] | None = None  # the same for each token, if the answer went on across updates
    temperature: float = 1.0  # sampling and training both use softmax(logits / temperature)
    token_rewards: tuple[float, ...] | None = None  # where an environment rewards single steps; their sum is `reward`
    routes: Tensor | None = field(default=None, compare=False, repr=False)  # see `Batch.routes`; of prompt and answer
    counts: Mapping[str, int] = field(default_factory=dict)  # of events in its environment, such as "tools/calls"
    tool_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict, compare=False)  # by tool, of each call
    forks: tuple[tuple[int, int], ...] = ()  # of several conversations: see `Batch.previous`; (column, the one before)

    def __post_init__(self) -> None:
        if self.token_rewards is not None and len(self.token_rewards) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens, but {len(self.token_rewards)} rewards per token")
        if not len(self.token_ids) == len(self.loss_mask) == len(self.logprobs) == len(self.versions or self.token_ids):
            raise ValueError(
                f"{len(self.token_ids)} tokens, but {len(self.loss_mask)} mask entries, {len(self.logprobs)} "
                f"log-probabilities and {len(self.versions or self.token_ids)} versions"
            )

    @property
    def scored(self) -> bool:
        """Whether the reward counts. Otherwise the rollout is in no mean, no standard deviation and no loss."""
        return self.status == "ok"

    @property
    def truncated(self) -> bool:
        """Whether the answer did not end by itself."""
        return self.finish_reason is not FinishReason.stop


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Group:
    """The G rollouts of one prompt. Group-relative advantages compare them with each other."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    baseline: float | None = None  # reward of the greedy answer, for advantages that subtract it

    def __repr__(self) -> str:
        """Return a line without the tokens: what a notebook shows."""
        rewards = ", ".join(f"{each.reward:.4g}" if each.scored else each.status for each in self.rollouts)
        return f"Group(prompt {self.prompt.id!r}, {len(self.rollouts)} rollouts, rewards [{rewards}])"

    @property
    def informative(self) -> bool:
        """Whether any two scored rewards, including the baseline, differ: only then has the group a gradient."""
        return has_spread((rollout.reward for rollout in self.rollouts if rollout.scored), self.baseline)


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
    """Counts of one optimiser step: the denominators of every mean. Micro-batches keep those of the whole step.

    Rows without a trained token count only in `rows`.
    """

    rows: int  # all rows
    sequences: int  # rows with at least one trained token
    tokens: int  # trained tokens
    groups: int  # groups with at least one trained token
    padded_length: int  # T of the whole step


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Batch:
    """B rollouts as tensors, right-padded: [prompt | completion | padding] in every row. Immutable; see `with_`."""

    token_ids: Int[Tensor, "B T"]
    attention_mask: Bool[Tensor, "B T"]  # False on padding
    loss_mask: Bool[Tensor, "B T"]  # True on tokens that the policy sampled, in scored rollouts
    turn: Int[Tensor, "B T"]  # the turn of the policy that sampled the token, from 0; -1 where it sampled none
    previous: Int[Tensor, "B T"] | None = None  # column of the token that t follows, -1: of none; None: always t - 1
    prompt_lengths: Int[Tensor, "B"]
    group: Int[Tensor, "B"]  # equal for the rollouts of one prompt; rows of a group are neighbours
    rewards: Float[Tensor, "B"]  # never NaN; 0 where not scored
    scored: Bool[Tensor, "B"]
    truncated: Bool[Tensor, "B"]  # the answer did not end by itself
    right: Bool[Tensor, "B"] | None = None  # the answer is right; None where that is not defined
    baselines: Float[Tensor, "B"] | None = None  # reward of the greedy answer; 0 where not scored
    reward_parts: Mapping[str, Float[Tensor, "B"]] = field(default_factory=dict)  # NaN where a part gave no value
    rollout_logprobs: Float[Tensor, "B T"]  # log π as the engine reported it
    temperature: Float[Tensor, "B"]  # log-probabilities are those of logits / temperature
    routes: Int[Tensor, "B T R K"] | None = None  # the K experts that each of R routers chose for a token; -1: unknown
    totals: Totals
    old_logprobs: Float[Tensor, "B T"] | None = None  # log π_old, by the trainer, before this step's updates
    old_entropy: Float[Tensor, "B T"] | None = None  # nats, of π_old's whole next-token distribution
    old_collision: Float[Tensor, "B T"] | None = None  # Σ_v π_old(v)² over the same distribution
    ref_logprobs: Float[Tensor, "B T"] | None = None  # log π_ref
    values: Float[Tensor, "B T"] | None = None  # V of the prefix before token t
    end_values: Float[Tensor, "B"] | None = None  # V after the last token of a truncated answer; 0 elsewhere
    returns: Float[Tensor, "B T"] | None = None  # the critic's regression target
    token_rewards: Float[Tensor, "B T"] | None = None  # instead of `rewards`, where rewards are per token
    advantages: Float[Tensor, "B T"] | None = None  # Â
    targets: Float[Tensor, "B T"] | None = None  # log target probabilities, where an objective sets them
    prepared: Mapping[str, Shaped[Tensor, "B T"]] = field(default_factory=dict)  # data of an objective's own

    @classmethod
    def from_groups(cls, groups: Sequence[Group]) -> "Batch":
        """Stack rollouts into rows, group by group. Without groups the batch has no rows."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        fields = token_fields(
            [group.prompt.token_ids for group in groups for _ in group.rollouts],
            [rollout.token_ids for rollout in rollouts],
            [rollout.loss_mask for rollout in rollouts],
            [number for number, group in enumerate(groups) for _ in group.rollouts],
        )
        starts = fields["prompt_lengths"].tolist()
        fields |= reward_fields(groups, starts)
        fields["loss_mask"] &= fields["scored"][:, None]
        return cls(
            **fields,
            totals=_count(fields["loss_mask"], fields["group"]),
            rollout_logprobs=pad_rows([rollout.logprobs for rollout in rollouts], torch.float32, starts),
            routes=pad_routes([rollout.routes for rollout in rollouts], fields["token_ids"].shape[1]),
            previous=previous_columns([rollout.forks for rollout in rollouts], fields["token_ids"].shape[1]),
        )

    @classmethod
    def of_tokens(
        cls,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        *,
        masks: Sequence[Sequence[bool]] | None = None,
        group: Sequence[int] | None = None,
        temperature: Sequence[float] | None = None,
    ) -> "Batch":
        """Make a batch of token ids alone, one row for each prompt and its completion.

        The tokens of a completion are trained where its mask is True; all of them without `masks`. `rewards` and
        `rollout_logprobs` are 0. Without `group` every row is a group of its own, without `temperature` it is 1. Raises
        `ValueError` for a prompt without tokens.
        """
        if empty := [str(row) for row, prompt in enumerate(prompts) if not len(prompt)]:
            raise ValueError(f"prompts without tokens: {', '.join(empty)}")
        masks = [[True] * len(completion) for completion in completions] if masks is None else masks
        tokens = token_fields(prompts, completions, masks, range(len(prompts)) if group is None else group)
        rows = len(prompts)
        return cls(
            **tokens,
            totals=_count(tokens["loss_mask"], tokens["group"]),
            rewards=torch.zeros(rows),
            scored=torch.ones(rows, dtype=torch.bool),
            truncated=torch.zeros(rows, dtype=torch.bool),
            rollout_logprobs=torch.zeros(tokens["token_ids"].shape),
            temperature=torch.ones(rows) if temperature is None else floats(temperature),
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
        tensors = {"token_ids": token_ids, "old_logprobs": old_logprobs, "ref_logprobs": ref_logprobs}
        tensors |= {"rollout_logprobs": rollout_logprobs, "group": group, "rewards": rewards}
        fields = plain_fields("Batch.of", mask, advantages, tensors)
        return cls(**fields, totals=_count(mask, fields["group"]))

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        """Return a line without the tensors: what a notebook shows."""
        rows, length = self.token_ids.shape
        return f"Batch({rows} rows, padded to {length} tokens, {self.totals.tokens} to train on)"

    def with_(self, **changes: Any) -> "Batch":
        """Return the same batch with some fields replaced."""
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same batch on another device."""
        return self._each(lambda value: value.to(device))

    def rows(self, index: Tensor) -> "Batch":
        """Return some rows without the columns that are padding in all of them. `totals` stay those of the whole."""
        width = max(1, int(self.attention_mask[index].sum(1).max()))
        return self._each(lambda value: value[index, :width] if value.dim() > 1 else value[index])

    def minibatches(self, n: int) -> list["Batch"]:
        """Split into at most `n` parts of whole groups, one optimiser step each. Every part counts its own totals."""
        ids = self.group.unique_consecutive()
        parts = [part for part in ids.tensor_split(n) if len(part)]
        return [self.rows(torch.isin(self.group, part).nonzero().squeeze(1)).recounted() for part in parts]

    def recounted(self) -> "Batch":
        """Return the same batch with new totals: after a split into optimiser steps, or a change of `loss_mask`."""
        return self.with_(totals=_count(self.loss_mask, self.group))

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

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the same batch with every tensor changed."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        tensors = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
        parts = {name: change(part) for name, part in self.reward_parts.items()}
        prepared = {name: change(value) for name, value in self.prepared.items()}
        return self.with_(reward_parts=parts, prepared=prepared, **tensors)


def _count(loss_mask: Bool[Tensor, "B T"], group: Int[Tensor, "B"]) -> Totals:
    return Totals(**counted(loss_mask, group))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """The policy's current log-probabilities of a batch's tokens, with their gradient."""

    logprobs: Float[Tensor, "B T"]  # log πθ; 0 where `loss_mask` is False
    entropy: Float[Tensor, "B T"] | None = None  # nats, of the whole next-token distribution; if an objective needs it


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The value of an objective and its parts: scalars. Their sums over the micro-batches are those of the step."""

    policy: Float[Tensor, ""]  # Σ w · c · S, maximised
    divergence: Float[Tensor, ""]  # β · Σ w · D, subtracted
    entropy: Float[Tensor, ""]  # η · Σ w · H, added
    loss: Float[Tensor, ""]  # -(policy - divergence + entropy), minimised


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Update:
    """The result of one pass over a batch."""

    metrics: Mapping[str, float]
    tokens: Mapping[str, Shaped[Tensor, "B T"]]  # detached, on the CPU; see `Policy.update`

    def __repr__(self) -> str:
        return f"Update(loss {self.metrics.get('loss', float('nan')):.4g}, tokens: {', '.join(self.tokens)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Step:
    """All data of a training step; `train` yields one after each step."""

    index: int  # 1, 2, ...
    sampled: Sampled  # the groups, and metrics of how they were sampled
    batch: Batch
    updates: Sequence[Update]  # one per pass; none where there was no token to train on
    stopped: str = "maximum"  # why the passes ended: all were made, or the name of a stopping rule

    def __repr__(self) -> str:
        """Return a line without tokens and tensors: what a notebook shows. `outdo.show` shows the tokens."""
        rewards = self.batch.rewards[self.batch.scored]
        mean = f"mean reward {rewards.mean():.3f}" if len(rewards) else "no reward"
        groups, rollouts, passes = len(self.groups), len(self.batch), len(self.updates)
        return f"Step {self.index}: {groups} groups, {rollouts} rollouts, {mean}, {passes} passes; outdo.show(step)"

    @property
    def groups(self) -> Sequence[Group]:
        """The groups that were sampled."""
        return self.sampled.groups

    @property
    def update(self) -> Update | None:
        """The last pass."""
        return self.updates[-1] if self.updates else None
