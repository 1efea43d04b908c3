"""The built-in engine on every replica, each on its part of the requests."""

from collections.abc import Sequence

from outdo.distributed.replicas import Replicas
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request


class ReplicatedEngine:
    """Samples on every replica, from its own weights, and returns the completions of all of them to each."""

    def __init__(self, engine: BuiltinEngine, replicas: Replicas) -> None:
        self.engine = engine
        self.replicas = replicas
        self.choice = engine.choice

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights, which are those of this replica's policy."""
        return self.engine.version

    def update_weights(self, policy: PolicyView) -> None:
        """Use the weights of this policy, as they are at each call of `generate`."""
        self.engine.update_weights(policy)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        return self.engine.decode(token_ids)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability of each token after the first of each sequence, by this replica's policy."""
        return self.engine.score(sequences)

    def health(self) -> None:
        """Do nothing: the engine computes in this process."""

    def close(self) -> None:
        """Do nothing: the engine holds nothing but the policy."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order."""
        mine = self.replicas.part(requests)  # neighbours, so that a prompt is prefilled once for its answers
        assert self.engine.policy is not None
        with self.engine.policy.forward.gathered():
            parts = self.replicas.together(lambda: self.engine.generate(mine, sampling) if mine else [])
        return [completion for part in parts for completion in part]
