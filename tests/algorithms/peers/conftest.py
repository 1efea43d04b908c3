"""Fixtures: one of each of TRL's trainers for the whole session, and torch's default precision.

TRL takes seconds to import: the fixtures do so, and not the collection of tests.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from trl_cases import precision, trainer_of

# TRL still uses "gradient checkpointing", which transformers has renamed to "activation checkpointing".
DEPRECATED = r"ignore:`(is_)?gradient_checkpointing` is deprecated:FutureWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "peers":
            item.add_marker(pytest.mark.filterwarnings(DEPRECATED))


@pytest.fixture(scope="session")
def grpo_trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return TRL's GRPOTrainer."""
    from trl import GRPOConfig, GRPOTrainer

    return trainer_of(GRPOTrainer, GRPOConfig, tmp_path_factory.mktemp("grpo"))


@pytest.fixture(scope="session")
def gmpo_trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return TRL's experimental GMPOTrainer."""
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    return trainer_of(GMPOTrainer, GMPOConfig, tmp_path_factory.mktemp("gmpo"))


@pytest.fixture(scope="session")
def rloo_trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return TRL's RLOOTrainer."""
    from trl import RLOOConfig, RLOOTrainer

    return trainer_of(RLOOTrainer, RLOOConfig, tmp_path_factory.mktemp("rloo"))


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Run the test in float64."""
    with precision(torch.float64):
        yield


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def in_both_precisions(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Run the test once in float32 and once in float64."""
    with precision(request.param):
        yield request.param
