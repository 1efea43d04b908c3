"""The built-in engine in every process of a worker pool, each on its part of the requests.

The number of processes does not change what is sampled: on a CPU in float32 the tokens of a request depend only on the
request, its random numbers and the weights, and all processes share the weights.
"""

from collections.abc import Sequence
from dataclasses import replace

from outdo.distributed.worker_pool import WorkerPool
from outdo.extras.remote_engines.divide import Places, in_order
from outdo.rollouts.engines.base import PolicySnapshot, PolicyView
from outdo.rollouts.engines.builtin.engine import BuiltinEngine, sample
from outdo.rollouts.engines.builtin.probe import choose_way
from outdo.rollouts.engines.limits import SEQUENCES_AT_A_TIME
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request
from outdo.utils.rng import Stream


class MultiprocessEngine:
    """Samples up to `rows` sequences at a time in each process. `seed` is the seed of the run."""

    def __init__(self, policy: PolicyView, pool: WorkerPool, *, seed: int = 0, rows: int = SEQUENCES_AT_A_TIME) -> None:
        self.pool = pool
        self.seed = seed
        self.rows = rows
        self._start_engines(policy)

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights, which all processes share with the policy."""
        return self.policy.version

    def update_weights(self, policy: PolicyView) -> None:
        """Use the weights of this policy, as they are at each call of `generate`."""
        if policy is not self.policy:  # the processes share the weights of the same policy, and see every change
            self._start_engines(policy)

    def _start_engines(self, policy: PolicyView) -> None:
        self.policy = policy
        self.places = Places(len(self.pool))
        self._version = policy.version
        views = [policy, *(PolicySnapshot.of(policy) for _ in self.pool.others)]
        self.choice = choose_way(policy, sample)  # once, not in every process
        self.engines = self.pool.place(
            [BuiltinEngine(view, seed=self.seed, rows=self.rows, choice=self.choice) for view in views]
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        engine: BuiltinEngine = self.engines.local
        return engine.decode(token_ids)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability of each token after the first of each sequence, in this process."""
        engine: BuiltinEngine = self.engines.local
        return engine.score(sequences)

    def health(self) -> None:
        """Do nothing: each call of `generate` finds out whether its processes answer."""

    def close(self) -> None:
        """Do nothing: the pool belongs to the policy."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order."""
        version = self.policy.version  # the other processes only have the version at the time of the snapshot
        if version != self._version:
            self.engines.map("end_episodes", [()] * len(self.engines))
            self._version = version
        parts = self.places.divide(requests)
        results = self.engines.map("generate", [([requests[index] for index in part], sampling) for part in parts])
        return [replace(completion, policy_version=version) for completion in in_order(parts, results)]

    def end_episodes(self, episodes: Sequence[Stream]) -> None:
        """Drop the keys and values of episodes that have ended."""
        self.engines.map("end_episodes", [(each,) for each in self.places.end(episodes)])
