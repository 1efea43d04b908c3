"""What a reward may have besides its outputs: a run asks each of them for it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from outdo.rewards.types import Reward
from outdo.types import Group


@runtime_checkable
class LearningReward(Reward, Protocol):
    """A reward that is trained between the steps of a run."""

    labels: Reward
    """The true values, which the policy never sees."""

    @property
    def is_divided(self) -> bool:
        """Whether this process holds only a part of the model."""
        ...

    def after_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Learn from the groups of a step; return the metrics of that."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold. Raises `NonFiniteWeightsError` if a weight is not finite."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        ...


@runtime_checkable
class PlacedReward(Reward, Protocol):
    """A reward whose processes a cluster places where there is room."""

    def start(self) -> str:
        """Start its processes, after everything else of the run has reserved its place; return where they are."""
        ...
