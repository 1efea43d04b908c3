"""Rewards of a run of several processes: the first one computes them for all."""

from collections.abc import Sequence

from outdo.rewards.combine import WeightedSum
from outdo.rewards.types import Reward, RewardInput, RewardOutput
from outdo.utils.world import World


def asked_together(total: WeightedSum, world: World) -> WeightedSum:
    """Return the sum of rewards as all processes of a run ask it, at the same time.

    The first one computes each reward for all; a reward model that is divided among them, they compute together.
    """
    if len(world) == 1:
        return total
    return total.asking([each if is_divided(each) else RewardOnce(each, world) for each in total.rewards])


def is_divided(reward: Reward) -> bool:
    """Return whether a reward is a model of which this process holds a part."""
    return getattr(reward, "is_divided", False)


class RewardOnce:
    """A reward that the first process computes for all.

    Rewards can depend on time or on chance, and can cost money: each answer is scored once.
    """

    def __init__(self, reward: Reward, world: World) -> None:
        self.reward = reward
        self.world = world
        self.name = reward.name

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Return the outputs of the first process."""
        return self.world.from_first(lambda: self.reward(inputs))

    def close(self) -> None:
        """Close the reward."""
        self.reward.close()
