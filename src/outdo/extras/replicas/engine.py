"""The built-in engine on every replica, each on its part of the requests, or of the episodes of several turns."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from outdo.rollouts.engines.base import Engine, EpisodeT, Item
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.wrapped import WrappedEngine
from outdo.types import Completion, Request
from outdo.utils.world import World

Result = TypeVar("Result")


class ReplicatedEngine(WrappedEngine):
    """Samples on every replica, from its own weights, and returns the completions of all of them to each."""

    engine: BuiltinEngine

    def __init__(self, engine: BuiltinEngine, world: World) -> None:
        super().__init__(engine)
        self.world = world

    @property
    def completed(self) -> None:
        """Unknown: the engine of this replica counts its part of the answers alone."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        return self._in_parts(requests, lambda mine: self.engine.generate(mine, sampling))

    def divide_episodes(
        self, groups: Sequence[Item], play: Callable[[Engine, Sequence[Item]], list[EpisodeT]]
    ) -> list[EpisodeT]:
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
