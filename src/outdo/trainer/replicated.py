"""What is different with replicas: the first one writes the run folder, prints, and asks the reward functions."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outdo.distributed.launch import FOLDER
from outdo.distributed.replicas import Replicas, current
from outdo.rewards import WeightedSum
from outdo.rewards.types import Reward, RewardInput, RewardOutput


def leads() -> bool:
    """Return whether this process writes and prints: it is alone, or the first replica."""
    replicas = current()
    return replicas is None or replicas.first


@contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """Give the run folder to the first replica, and a temporary one to each other replica: it is dropped at the end."""
    if leads():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="outdo-replica-", dir=os.environ.get(FOLDER)) as other:
        yield Path(other)


def replica_metrics() -> dict[str, float]:
    """Return which replica was the slowest in the step; nothing for one process."""
    replicas = current()
    return {} if replicas is None else replicas.metrics()


def scored_together(total: WeightedSum, replicas: Replicas) -> WeightedSum:
    """Return the sum of rewards for all replicas, which ask it at the same time.

    The first replica computes each reward for all; a reward model that is divided among them, they compute together.
    """
    return total.asking([each if is_divided(each) else RewardOnce(each, replicas) for each in total.rewards])


def is_divided(reward: Reward) -> bool:
    """Return whether a reward is a model of which this process holds a part."""
    return getattr(reward, "is_divided", False)


class RewardOnce:
    """A reward that the first replica computes for all.

    Rewards can depend on time or on chance, and can cost money: each answer is scored once.
    """

    def __init__(self, reward: Reward, replicas: Replicas) -> None:
        self.reward = reward
        self.replicas = replicas
        self.name = reward.name

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Return the outputs of the first replica."""
        return self.replicas.from_first(lambda: self.reward(inputs))

    def close(self) -> None:
        """Close the reward."""
        self.reward.close()
