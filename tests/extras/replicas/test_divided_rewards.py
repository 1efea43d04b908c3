"""Reward models that are divided among replicas score and learn as those of one process do."""

import pytest
from divided_rewards import (
    a_divided_reward_model_goes_on_from_its_state,
    a_divided_reward_model_learns_as_one_process_does,
    a_divided_reward_model_scores_as_one_process_does,
    a_divided_reward_model_takes_a_part_of_the_memory,
    a_reward_model_of_a_run_is_refreshed_in_parts,
    faults_of_one_part_of_a_reward_model_are_named_by_all,
)
from replica_cases import run_checks

pytestmark = pytest.mark.release

CHECKS = [
    a_divided_reward_model_takes_a_part_of_the_memory,
    a_divided_reward_model_scores_as_one_process_does,
    a_divided_reward_model_learns_as_one_process_does,
    a_divided_reward_model_goes_on_from_its_state,
    a_reward_model_of_a_run_is_refreshed_in_parts,
    faults_of_one_part_of_a_reward_model_are_named_by_all,
]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_checks(CHECKS, tmp_path_factory.mktemp("divided-rewards"))


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_two_replicas_with_parts_of_a_reward_model_hold_that(faults: dict[str, str], check: str):
    assert not faults[check], faults[check]
