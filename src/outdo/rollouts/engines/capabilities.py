"""What an engine, or the policy that it reads, may have besides the interface: each is asked for where it is used."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from outdo.rollouts.engines.base import Engine, PolicySnapshot, PolicyView
from outdo.utils.rng import Stream
from outdo.utils.world import World

Item = TypeVar("Item")
Played = TypeVar("Played")


@runtime_checkable
class Describes(Protocol):
    """What an engine has besides if the user should know something about it when it is open."""

    def notes(self) -> list[str]:
        """Return lines about where the engine samples, and how its weights get there."""
        ...


def notes_of(engine: Engine) -> list[str]:
    """Return what the user should know about an engine, such as where it samples."""
    return engine.notes() if isinstance(engine, Describes) else []


@runtime_checkable
class Measures(Protocol):
    """What an engine has besides if it measures itself in each step."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last delivery of weights, and of all before it."""
        ...


def metrics_of(engine: Engine) -> dict[str, float]:
    """Return the metrics of an engine; empty for one that measures nothing."""
    return engine.metrics() if isinstance(engine, Measures) else {}


@runtime_checkable
class Sleeps(Protocol):
    """What an engine has besides if the trainer may have its memory between two samplings."""

    def sleep(self) -> bool:
        """Release the memory until the next `update_weights`, if it may; return whether it did."""
        ...


def let_sleep(engine: Engine) -> None:
    """Let an engine sleep, if it can."""
    if isinstance(engine, Sleeps):
        engine.sleep()


@runtime_checkable
class KeepsEpisodes(Protocol):
    """What an engine has besides if it keeps what it has read of an episode (`Request.episode`) for its next turn."""

    def end_episodes(self, episodes: Sequence[Stream]) -> None:
        """Drop what is kept of these episodes, which have ended."""
        ...


def end_episodes(engine: Engine, episodes: Sequence[Stream]) -> None:
    """Tell an engine that these episodes have ended, if it keeps something of them."""
    if episodes and isinstance(engine, KeepsEpisodes):
        engine.end_episodes(episodes)


@runtime_checkable
class DividesEpisodes(Protocol):
    """What an engine of several replicas has besides: it says which of them plays which episodes of several turns."""

    def divide_episodes(
        self, groups: Sequence[Item], play: Callable[[Engine, Sequence[Item]], list[Played]]
    ) -> list[Played]:
        """Return on every replica what `play` returns for all groups of episodes, in their order.

        Each replica that plays some of them calls `play` once, with an engine of its own that waits for no other
        replica. Everything that `play` returns is pickled.
        """
        ...


def divide_episodes(
    engine: Engine, groups: Sequence[Item], play: Callable[[Engine, Sequence[Item]], list[Played]]
) -> list[Played]:
    """Return what `play` returns for all groups of episodes: of one process, or of all replicas, in order."""
    return engine.divide_episodes(groups, play) if isinstance(engine, DividesEpisodes) else play(engine, groups)


def returns_experts(engine: Engine) -> bool:
    """Return whether an engine returns the experts that it has used: an attribute of that name says if it does not."""
    return getattr(engine, "returns_experts", True)


class PolicyOnFirstReplica(Protocol):
    """The policy of several replicas, for an engine that only the first one uses.

    Weights may be divided among the replicas. So all of them call each method together, and the first one gets whole
    weights, from which it then samples without the others.
    """

    @property
    def view(self) -> PolicySnapshot:
        """The policy as a whole model."""
        ...

    @property
    def world(self) -> World:
        """The replicas."""
        ...

    def copied(self) -> PolicySnapshot | None:
        """Return a snapshot of the policy with trained weights of its own; None on the other replicas."""
        ...

    def with_policy(self, work: Callable[[PolicyView], Played]) -> Played:
        """Return on all replicas what `work` returns on the first one, for a policy with the newest weights."""
        ...

    def call(self, compute: Callable[[], Played]) -> Played:
        """Compute on the first replica alone; return the result, or raise its `EngineError`, on all."""
        ...
