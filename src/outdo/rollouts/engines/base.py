"""The interface of an engine, and the view of a policy that it gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.models.attention.forward import Forward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request


class Engine(Protocol):
    """Samples completions from a policy: in this process, or in another one that has a copy of the weights.

    Any class with these members is an engine. Each method raises `EngineError` if the engine fails.
    """

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights that it samples from."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the policy: `outdo.models.completion_text` decodes with it what was sampled."""
        ...

    def update_weights(self, policy: "PolicyView") -> None:
        """Sample from the current weights of this policy from now on.

        An engine with a copy of the weights reads them from `policy.model`, or the adapter alone if it has one.
        """
        ...

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability, at temperature 1, of each token after the first of each sequence.

        These are compared with those of the policy, to prove that the engine has its weights.
        """
        ...

    def health(self) -> None:
        """Raise `EngineError` unless the engine can answer."""
        ...

    def close(self) -> None:
        """Release what the engine holds, such as a process."""
        ...


class PolicyView(Protocol):
    """What an engine may read of a policy."""

    @property
    def forward(self) -> Forward: ...
    @property
    def model(self) -> PreTrainedModel: ...
    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...
    @property
    def version(self) -> int:
        """The number of optimiser steps that the weights have had."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def context(self) -> int | None:
        """The largest number of tokens of prompt and answer together; None if the model sets no limit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySnapshot:
    """The attributes of a policy at one time, fit for pickling; its model is the policy's own."""

    forward: Forward
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    version: int
    end_ids: frozenset[int]
    context: int | None

    @classmethod
    def of(cls, policy: PolicyView) -> "PolicySnapshot":
        return cls(
            forward=policy.forward,
            model=policy.model,
            tokenizer=policy.tokenizer,
            version=policy.version,
            end_ids=policy.end_ids,
            context=policy.context,
        )
