"""Text in, number out: what a completion is worth, and what is said when that cannot be known.

`load_reward` makes a reward of a name, a file, a function or a list of these. The room knows neither torch nor models.
"""

from outdo.rewards.combine import Combined
from outdo.rewards.failures import check_failures
from outdo.rewards.in_process import Local
from outdo.rewards.loading import BUILTIN, load_reward
from outdo.rewards.types import Reward, RewardInput, RewardOutput, Status
from outdo.rewards.worker import Worker

__all__ = [
    "BUILTIN",
    "Combined",
    "Local",
    "Reward",
    "RewardInput",
    "RewardOutput",
    "Status",
    "Worker",
    "check_failures",
    "load_reward",
]
