"""Replicas compute what one process computes, whatever share of a batch each of them gets, and fail together."""

from pathlib import Path

import pytest
from replica_cases import (
    closed_runs,
    divided_state,
    errors_of_two_kinds,
    errors_reach_all,
    memory_runs_out,
    memory_runs_out_in_a_critic,
    one_hangs,
    parts_of_all_models,
    random_shares,
    random_shares_of_parts,
    run_checks,
    run_replicas,
    samples_of_parts,
    shares_of_a_critic,
    shares_of_a_divided_critic,
    weights_drift,
)
from replica_inputs import rows_with_inputs
from replica_states import states_of_recurrences

OF_THREE = [random_shares, random_shares_of_parts]
MODELS = [
    parts_of_all_models,
    shares_of_a_critic,
    shares_of_a_divided_critic,
    divided_state,
    samples_of_parts,
    rows_with_inputs,
    states_of_recurrences,
]
FAULTS = [
    memory_runs_out,
    memory_runs_out_in_a_critic,
    weights_drift,
    errors_reach_all,
    errors_of_two_kinds,
    closed_runs,
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    of_two, of_three = (tmp_path_factory.mktemp("replicas") for _ in range(2))
    return run_checks(MODELS + FAULTS, of_two, timeout=120) | run_checks(OF_THREE, of_three, 3)


@pytest.mark.parametrize("check", [check.__name__ for check in OF_THREE])
def test_the_gradient_of_any_batch_is_that_of_one_process(found: dict[str, str], check: str):
    assert not found[check], found[check]


@pytest.mark.parametrize("check", [check.__name__ for check in MODELS])
def test_models_of_replicas_compute_what_those_of_one_process_do(found: dict[str, str], check: str):
    assert not found[check], found[check]


@pytest.mark.parametrize("check", [check.__name__ for check in FAULTS])
def test_what_happens_on_one_replica_is_known_to_all(found: dict[str, str], check: str):
    assert not found[check], found[check]


def test_a_replica_that_hangs_is_given_up_after_the_timeout(tmp_path: Path):
    run_replicas(2, one_hangs, tmp_path, timeout=3)
