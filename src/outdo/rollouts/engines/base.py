"""`Engine`, the base class of what samples completions, and the view of a policy that it gets."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.models.forward import Forward
from outdo.models.text_part import OtherParts
from outdo.rollouts.engines.modes import SamplingChoice
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Prompt, Request
from outdo.utils.errors import UserError
from outdo.utils.rng import Stream

Item = TypeVar("Item")
EpisodeT = TypeVar("EpisodeT")


class Engine(ABC):
    """Samples completions from a policy: in this process, or in another one that has a copy of the weights.

    An engine of your own inherits from it and has the first five members. The others are asked in this order; here they
    suit an engine that computes in this process and keeps nothing between two calls. Each method raises `EngineError`
    if the engine fails, and `EngineLostError` if it may succeed after `restart`.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """The number of optimiser steps of the weights that it samples from."""

    @property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the policy: `outdo.models.completion_text` decodes with it what was sampled."""

    @abstractmethod
    def update_weights(self, policy: "PolicyView") -> None:
        """Sample from the current weights of this policy from now on.

        An engine with a copy of the weights reads them from `policy.model`, or the adapter alone if it has one.
        """

    @abstractmethod
    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order."""

    @abstractmethod
    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability, at temperature 1, of each token after the first of each sequence.

        These are compared with those of the policy, to prove that the engine has its weights.
        """

    returns_experts: bool = True
    """Whether completions of a mixture model have `routes` where `SamplingParams.routes` is true."""

    reads_inputs: bool = False
    """Whether it samples with what prompts bring beside their tokens (`Request.inputs`)."""

    choice: SamplingChoice | None = None
    """How the built-in engine samples, wherever it runs; None for another engine."""

    delivered_bytes: int = 0
    """Bytes of the weights that the last `update_weights` has sent to another process."""

    def notes(self) -> list[str]:
        """Return what the user should know when the engine is open, such as where it samples: a line each."""
        return []

    @property
    def completed(self) -> tuple[int, int] | None:
        """How many answers of the last call of `generate` are finished, and how many there are; None if unknown."""
        return None

    def check_inputs(self, prompts: Sequence[Prompt]) -> None:
        """Raise `UserError` if it would sample without what these prompts bring beside their tokens."""
        names = {} if self.reads_inputs else {name: prompt.id for prompt in prompts for name in prompt.inputs}
        for name, question in names.items():
            engine = type(self).__name__
            raise UserError([f"question {question} brings the input {name}, and {engine} samples from tokens alone"])

    def divide_episodes(
        self, groups: Sequence[Item], play: Callable[["Engine", Sequence[Item]], list[EpisodeT]]
    ) -> list[EpisodeT]:
        """Return what `play` returns for all groups of episodes of several turns, in their order, on every replica.

        Each replica that plays some of them calls `play` once, with an engine that waits for no other replica.
        """
        return play(self, groups)

    def end_episodes(self, episodes: Sequence[Stream]) -> None:
        """Drop what was kept for the next turns of these episodes (`Request.episode`), which have ended."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of a step, such as the seconds of the delivery of its weights."""
        return {}

    def sleep(self) -> bool:
        """Release memory until the next `update_weights`, if it can; return whether it did."""
        return False

    def health(self) -> None:
        """Raise `EngineError` unless the engine can answer."""

    def restart(self) -> None:
        """Begin again, without weights, after an `EngineLostError`: `update_weights` follows, and the lost call."""

    def close(self) -> None:
        """Release what the engine holds, such as a process."""


class PolicyView(Protocol):
    """What an engine may read of a policy."""

    @property
    def forward(self) -> Forward: ...
    @property
    def model(self) -> PreTrainedModel: ...
    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...
    @property
    def version(self) -> int: ...  # the number of optimiser steps that the weights have had
    @property
    def end_ids(self) -> frozenset[int]: ...  # tokens that end an answer
    @property
    def context(self) -> int | None: ...  # the most tokens of prompt and answer together; None: no limit
    @property
    def other_parts(self) -> OtherParts | None: ...  # those of a whole model, of which `model` is the text part


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySnapshot:
    """The attributes of a policy at one time, fit for pickling; its model is the policy's own."""

    forward: Forward
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    version: int
    end_ids: frozenset[int]
    context: int | None
    other_parts: OtherParts | None

    @classmethod
    def of(cls, policy: PolicyView) -> "PolicySnapshot":
        return cls(
            forward=policy.forward,
            model=policy.model,
            tokenizer=policy.tokenizer,
            version=policy.version,
            end_ids=policy.end_ids,
            context=policy.context,
            other_parts=policy.other_parts,
        )
