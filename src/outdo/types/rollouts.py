"""What is sampled: a prompt, the completions of it, and rollouts with their rewards, in groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from outdo.types.inputs import Inputs, check_inputs
from outdo.utils.rng import Stream
from outdo.utils.text import counted


class FinishReason(StrEnum):
    """Why a completion ended."""

    stop = "stop"  # the policy sampled an end-of-sequence token, or a stop string appeared
    length = "length"  # the token limit or the end of the model's context was reached: the answer is truncated
    turns = "turns"  # the limit of turns, or one of the environment, was reached, and it would have gone on
    abort = "abort"  # the engine abandoned the request
    error = "error"  # the environment failed: the episode has no reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question as the policy reads it. It is tokenised once, and training uses exactly these ids."""

    id: str  # unique within its dataset
    text: str | Sequence[Mapping[str, Any]]  # the question: a string, or chat messages
    token_ids: tuple[int, ...]
    answer: Any = None  # the reference answer for the reward; None where there is none
    columns: Mapping[str, Any] = field(default_factory=dict)  # the other columns of the row, for the reward
    inputs: Inputs = field(default_factory=dict, compare=False, repr=False)  # beside the tokens: see `types.inputs`

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(f"the prompt {self.id!r} has no tokens")
        check_inputs(self.inputs, f"the prompt {self.id!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to an engine for one completion."""

    token_ids: tuple[int, ...]  # all tokens before the completion
    stream: Stream
    position: int = 0  # random numbers of the stream that earlier turns of the episode have used
    max_tokens: int
    prompt_length: int | None = None  # of these tokens, those before the first turn of the episode; None: all
    episode: Stream | None = None  # names the episode: an engine may keep what it has read of it for the next turn
    inputs: Inputs = field(default_factory=dict, compare=False, repr=False)  # those of the prompt


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
            raise ValueError(f"{counted(len(self.token_ids), 'token')}, but {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One finished episode of a prompt, with its reward."""

    token_ids: tuple[int, ...]  # after the prompt: sampled tokens, and tokens that an environment inserted
    loss_mask: tuple[bool, ...]  # True where the policy sampled the token
    logprobs: tuple[float, ...]  # by the engine; 0 where the policy did not sample the token
    text: str  # the text that the reward function read, of the last turn
    prefill: str = ""  # what the prompt had written already of that turn: see `RewardInput.prefill`
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
    teacher_prompt: tuple[int, ...] | None = None  # with a hint, which a teacher reads; None: the answer has no hint
    forks: tuple[tuple[int, int], ...] = ()  # of several conversations: see `Batch.previous`; (column, the one before)

    def __post_init__(self) -> None:
        if self.token_rewards is not None and len(self.token_rewards) != len(self.token_ids):
            raise ValueError(
                f"{counted(len(self.token_ids), 'token')}, but {counted(len(self.token_rewards), 'reward')} per token"
            )
        if self.token_rewards is not None and self.forks:
            raise ValueError("token_rewards with forks: each conversation of an episode ends with its whole reward")
        if not len(self.token_ids) == len(self.loss_mask) == len(self.logprobs) == len(self.versions or self.token_ids):
            raise ValueError(
                f"{counted(len(self.token_ids), 'token')}, but {len(self.loss_mask)} mask entries, "
                f"{len(self.logprobs)} log-probabilities and {len(self.versions or self.token_ids)} versions"
            )

    @property
    def scored(self) -> bool:
        """Whether the reward counts. Otherwise the rollout is in no mean, no standard deviation and no loss."""
        return self.status == "ok"

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the policy sampled: the length of an answer, without what an environment wrote."""
        return sum(self.loss_mask)

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut off, and would have gone on. One whose environment failed was not cut."""
        return self.finish_reason not in (FinishReason.stop, FinishReason.error)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Group:
    """The G rollouts of one prompt. Group-relative advantages compare them with each other."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    baseline: float | None = None  # reward of the greedy answer, for advantages that subtract it
    demonstrated: bool = False  # the data have its answers: the policy did not sample them

    def __repr__(self) -> str:
        """Return a line without the tokens: what a notebook shows."""
        rewards = ", ".join(f"{rollout.reward:.4g}" if rollout.scored else rollout.status for rollout in self.rollouts)
        return f"Group(prompt {self.prompt.id!r}, {counted(len(self.rollouts), 'rollout')}, rewards [{rewards}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The groups of a step, and metrics of how they were sampled."""

    groups: Sequence[Group]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, result: "Sampled | Sequence[Group]") -> "Sampled":
        """Return what a sampler returned as `Sampled`: a plain list of groups has no metrics."""
        return result if isinstance(result, Sampled) else cls(groups=result)
