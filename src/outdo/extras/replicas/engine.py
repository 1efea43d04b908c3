"""The built-in engine on every replica, each on its part of the requests, or of the episodes of several turns."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request
from outdo.utils.world import World

Item = TypeVar("Item")
Result = TypeVar("Result")


class ReplicatedEngine:
    """Samples on every replica, from its own weights, and returns the completions of all of them to each."""

    def __init__(self, engine: BuiltinEngine, world: World) -> None:
        self.engine = engine
        self.world = world
        self.choice = engine.choice

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights, which are those of this replica's policy."""
        return self.engine.version

    def update_weights(self, policy: PolicyView) -> None:
        """Use the weights of this policy, as they are at each call of `generate`."""
        self.engine.update_weights(policy)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.engine.tokenizer

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability of each token after the first of each sequence, by this replica's policy."""
        return self.engine.score(sequences)

    def health(self) -> None:
        """Do nothing: the engine computes in this process."""

    def close(self) -> None:
        """Do nothing: the engine holds nothing but the policy."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        return self._in_parts(requests, lambda mine: self.engine.generate(mine, sampling))

    def divide_episodes(
        self, groups: Sequence[Item], play: Callable[[Engine, Sequence[Item]], list[Result]]
    ) -> list[Result]:
        """Return what `play` returns for all groups; each replica plays its part of them, with an engine of its own.

        So no episode waits for those of another replica, and the keys and values of its turns stay where it is played.
        """
        return self._in_parts(groups, lambda mine: play(self.engine, mine))

    def _in_parts(self, items: Sequence[Item], compute: Callable[[Sequence[Item]], list[Result]]) -> list[Result]:
        """Compute this replica's part of `items`; return the results of all replicas, in the order of the items."""
        mine = self.world.part(items)  # neighbours, so that a prompt is prefilled once for its answers
        assert self.engine.policy is not None
        with self.engine.policy.forward.gathered():
            parts = self.world.together(lambda: compute(mine) if mine else [])
        return [result for part in parts for result in part]
