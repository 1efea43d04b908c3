"""Rewards of a run of several processes: the first one computes them for all."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outdo.rewards.base import Reward
from outdo.rewards.combine import WeightedSum
from outdo.rewards.types import RewardInput, RewardOutput
from outdo.utils.world import World

if TYPE_CHECKING:
    from outdo.types import Group


def score_on_first_rank(total: WeightedSum, world: World) -> WeightedSum:
    """Return the sum of rewards as all processes of a run call it, at the same time.

    The first one computes each reward for all; a reward model that is divided among them, they compute together.
    """
    if len(world) == 1:
        return total
    return total.of([reward if reward.is_divided else FirstRankReward(reward, world) for reward in total.rewards])


class FirstRankReward(Reward):
    """A reward that the first process computes for all.

    Rewards can depend on time or on chance, and can cost money: each answer is scored once. Every process learns and
    has a state by itself, if the reward does.
    """

    def __init__(self, reward: Reward, world: World) -> None:
        self.reward = reward
        self.world = world
        self.name, self.source = reward.name, reward.source
        self.is_paid, self.is_divided, self.labels = reward.is_paid, reward.is_divided, reward.labels

    @property
    def has_numbers(self) -> bool:
        """Whether the reward has returned a number in this process."""
        return self.reward.has_numbers

    @property
    def sandboxes(self) -> Sequence[str]:
        """Those of the reward."""
        return self.reward.sandboxes

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the reward in this process."""
        self.reward.load_state(state)

    def start(self) -> Sequence[str]:
        """Start the processes of the reward."""
        return self.reward.start()

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Return the outputs of the first process."""
        return self.world.from_first(lambda: self.reward(inputs))

    def after_step(self, step: int, groups: "Sequence[Group]") -> Mapping[str, float]:
        """Let the reward learn in this process."""
        return self.reward.after_step(step, groups)

    def metrics(self) -> Mapping[str, float]:
        """Return what the reward has measured in this process."""
        return self.reward.metrics()

    def state(self) -> dict[str, Any]:
        """Return the state of the reward in this process."""
        return self.reward.state()

    def close(self) -> None:
        """Close the reward."""
        self.reward.close()
