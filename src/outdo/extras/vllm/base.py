"""`Server`, the base class of a vLLM that runs somewhere."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from outdo.rollouts.engines.base import PolicyView


class Server(ABC):
    """A vLLM that runs somewhere."""

    @abstractmethod
    def update(self, policy: PolicyView) -> int:
        """Load the weights of the policy; start first if it does not run yet. Return the bytes that it has read."""

    @abstractmethod
    def generate(self, requests: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `answers`, each with `token_ids`, `logprobs` and `finish_reason`, and the `version` of the weights."""

    @abstractmethod
    def score(self, sequences: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        """Return `scores`, the log-probabilities of the tokens of each sequence after the first."""

    def notes(self) -> list[str]:
        """Return what the user should know about the delivery of weights."""
        return []

    def sleep(self) -> bool:
        """Release the memory until the next update, if it may; return whether it did."""
        return False

    @abstractmethod
    def health(self) -> None:
        """Raise `EngineError` unless it answers."""

    @abstractmethod
    def restart(self) -> None:
        """Start again, without weights."""

    @abstractmethod
    def close(self) -> None:
        """End it, if it was started here."""
