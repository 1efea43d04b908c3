"""Episodes of several turns on replicas: the tokens, rewards and weights of one process, each episode played once."""

from pathlib import Path

import pytest
from replica_cases import run_replicas
from replica_episodes import (
    agents_of_parts,
    failed_games_of_all,
    games_of_parts,
    games_of_the_first,
    training_on_games,
)


@pytest.mark.parametrize(
    "body", [games_of_parts, agents_of_parts, failed_games_of_all, games_of_the_first, training_on_games]
)
def test_replicas_play_the_episodes_of_one_process(tmp_path: Path, body):
    run_replicas(2, body, tmp_path)
