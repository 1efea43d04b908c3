"""Replicas that share sequences compute what one process does, in half of the memory. Two run all checks."""

from pathlib import Path

import pytest
from replica_cases import run_checks, run_replicas
from sequence_cases import (
    a_part_is_never_computed,
    a_wrong_exchange_is_found_at_the_start,
    batches_of_any_shape,
    equal_gradients_with_two_threads,
    given_routes_are_replayed,
    half_of_the_activations,
    memory_runs_out_in_a_part,
    models_beside_the_policy,
    models_that_have_no_parts,
    pairs_and_fours,
    updates_of_all_objectives,
    updates_of_other_architectures,
)

pytestmark = pytest.mark.release

CHECKS = [
    updates_of_all_objectives,
    updates_of_other_architectures,
    equal_gradients_with_two_threads,
    given_routes_are_replayed,
    batches_of_any_shape,
    models_beside_the_policy,
    half_of_the_activations,
    models_that_have_no_parts,
    a_wrong_exchange_is_found_at_the_start,
]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_checks(CHECKS, tmp_path_factory.mktemp("sequences"))


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_two_replicas_that_share_sequences_hold_that(faults: dict[str, str], check: str):
    assert not faults[check], faults[check]


def test_memory_that_runs_out_in_one_part_ends_all(tmp_path: Path):
    run_replicas(2, memory_runs_out_in_a_part, tmp_path, timeout=60)


def test_a_part_that_hangs_is_given_up_after_the_timeout(tmp_path: Path):
    run_replicas(2, a_part_is_never_computed, tmp_path, timeout=5)


@pytest.mark.long
def test_four_replicas_in_pairs_and_together(tmp_path: Path):
    run_replicas(4, pairs_and_fours, tmp_path)
