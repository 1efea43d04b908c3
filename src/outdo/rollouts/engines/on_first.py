"""An engine beside several replicas: the first one holds it for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from outdo.distributed.replicas import Replicas
from outdo.rollouts.engines.base import PolicySnapshot, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.separate import RestartableEngine
from outdo.types import Completion, Request
from outdo.utils.errors import EngineError

Value = TypeVar("Value")


class EngineOnFirst:
    """Asks the engine of the first replica, and returns what it answers on every replica.

    All replicas make each call together. An `EngineError` of the engine is raised on all of them, so that they restart
    it, or end, together. Every replica has an `engine` that `make` returned, to know what it is and to decode by it;
    only that of the first one is started, gets weights and samples.
    """

    def __init__(self, make: Callable[[PolicyView], RestartableEngine], policy: PolicyView, replicas: Replicas) -> None:
        self.replicas = replicas
        self.delivered_bytes = 0
        self._version: int | None = None
        self._forward = policy.forward
        with policy.forward.gathered():
            self._view = PolicySnapshot.whole(policy)
            self.engine = make(self._view)

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights that it samples from."""
        if self._version is None:
            raise EngineError("the engine has no weights yet: call `update_weights(policy)` first")
        return self._version

    def update_weights(self, policy: PolicyView) -> None:
        """Deliver the weights of this policy. Weights that are divided among the replicas have to be gathered."""
        self._version = None
        if policy.forward is not self._forward:
            self._forward, self._view = policy.forward, PolicySnapshot.whole(policy)
        view = replace(self._view, version=policy.version)

        def deliver() -> tuple[int, int]:
            self.engine.update_weights(view)
            return self.engine.version, getattr(self.engine, "delivered_bytes", 0)  # one of the user may lack it

        self._version, self.delivered_bytes = self._on_first(deliver)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order."""
        return self._on_first(lambda: self.engine.generate(requests, sampling))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        return self.engine.decode(token_ids)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability, at temperature 1, of each token after the first of each sequence."""
        return self._on_first(lambda: self.engine.score(sequences))

    def health(self) -> None:
        """Raise `EngineError` unless the engine can answer."""
        self._on_first(self.engine.health)

    def restart(self) -> None:
        """Start again, without weights."""
        self._version = None
        self._on_first(self.engine.restart)

    def close(self) -> None:
        """Release what the engine of this replica holds, without waiting for the others."""
        self.engine.close()

    def _on_first(self, call: Callable[[], Value]) -> Value:
        def attempt() -> tuple[list[Value], EngineError | None]:
            try:
                return [call()], None
            except EngineError as error:
                return [], error

        values, error = self.replicas.from_first(attempt)
        if error is not None:
            raise error
        return values[0]
