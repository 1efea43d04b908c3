"""Episodes of several turns on replicas: the tokens, rewards and weights of one process, each episode played once."""

from pathlib import Path

import pytest
from replica_cases import run_checks
from replica_episodes import (
    agents_of_parts,
    failed_games_of_all,
    games_of_parts,
    games_of_the_first,
    training_on_games,
)


@pytest.mark.release
def test_replicas_play_the_episodes_of_one_process(tmp_path: Path):
    checks = [games_of_parts, agents_of_parts, failed_games_of_all, games_of_the_first, training_on_games]
    assert run_checks(checks, tmp_path) == {check.__name__: "" for check in checks}
