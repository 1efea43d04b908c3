"""What an engine is, and what it is asked for."""

from collections.abc import Sequence
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.models.attention.forward import Forward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request


class PolicyView(Protocol):
    """What the engine sees of a policy."""

    @property
    def forward(self) -> Forward: ...
    @property
    def model(self) -> PreTrainedModel: ...
    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...
    @property
    def version(self) -> int:
        """Optimiser steps that the weights have taken."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together; None where the model sets no limit."""
        ...


class Engine(Protocol):
    """Samples completions from a policy's weights."""

    def load(self, policy: PolicyView) -> None:
        """Sample from these weights, as they are now, from now on."""
        ...

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """One completion per request, in their order."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without special tokens."""
        ...
