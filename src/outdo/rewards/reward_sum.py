"""Add up rewards, so that those that cancel are 0."""

import math
import sys
from collections.abc import Sequence


def reward_sum(rewards: Sequence[float]) -> float:
    """Return the sum of some rewards: exactly 0 if it is no more than the rounding of its terms.

    0.1 + 0.2 - 0.3 is 5.6e-17 in binary numbers. Beside answers whose reward is 0, an advantage that divides by the
    mean reward of its group would make ±1 of it.
    """
    value = sum(rewards)
    rounding = len(rewards) * sys.float_info.epsilon / 2 * sum(map(abs, rewards))
    return 0.0 if abs(value) <= rounding < math.inf else float(value)
