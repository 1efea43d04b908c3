"""Rewards: from the text of a completion to a number, or to the reason why there is none.

`load_reward` builds a reward from a name, a file, a function or a list of these. Importing this package loads neither
torch nor transformers.
"""

from outdo.rewards.base import Reward
from outdo.rewards.combine import WeightedSum
from outdo.rewards.in_process import InProcessReward
from outdo.rewards.loading import BUILTIN, load_reward
from outdo.rewards.types import FailureCount, RewardInput, RewardOutput, Status, reward_input
from outdo.rewards.worker import WorkerReward

__all__ = [
    "BUILTIN",
    "FailureCount",
    "InProcessReward",
    "Reward",
    "RewardInput",
    "RewardOutput",
    "Status",
    "WeightedSum",
    "WorkerReward",
    "load_reward",
    "reward_input",
]
