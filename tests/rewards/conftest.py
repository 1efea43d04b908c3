"""Fixtures of the reward tests: a completion, and a reward from a user's file."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outdo.rewards import Reward, RewardInput, load_reward


@pytest.fixture
def reward_of(tmp_path: Path) -> Iterator[Callable[..., Reward]]:
    """A reward that runs `source` in a worker, closed when the test ends."""
    opened: list[Reward] = []

    def make(source: str, name: str = "score", timeout: float = 600.0, **limits: Any) -> Reward:
        path = tmp_path / "my_reward.py"
        path.write_text(textwrap.dedent(source))
        opened.append(load_reward(f"{path}:{name}", timeout=timeout, **limits))
        return opened[-1]

    yield make
    for reward in opened:
        reward.close()


@pytest.fixture
def sample() -> Callable[..., RewardInput]:
    """A completion with its reference and columns."""

    def make(completion: str, answer: Any = "1", **columns: Any) -> RewardInput:
        return RewardInput(prompt="1?", completion=completion, answer=answer, columns=columns, completion_ids=(1, 2))

    return make
