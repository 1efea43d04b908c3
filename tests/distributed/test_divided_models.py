"""Models that are divided among replicas are made, saved and loaded in parts. Two replicas run all checks."""

from pathlib import Path

import pytest
from divided_cases import (
    a_model_whose_attention_fails_is_padded,
    a_start_takes_a_part_of_the_memory,
    each_replica_reads_its_part,
    faults_of_one_part_are_named_by_all,
    run_checks,
)

CHECKS = [
    a_start_takes_a_part_of_the_memory,
    each_replica_reads_its_part,
    faults_of_one_part_are_named_by_all,
    a_model_whose_attention_fails_is_padded,
]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_checks(CHECKS, tmp_path_factory.mktemp("divided"))


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_two_replicas_with_parts_of_a_model_hold_that(faults: dict[str, str], check: str):
    assert not faults[check], faults[check]
