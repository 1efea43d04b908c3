"""Divided models in main memory, and gradients that are summed in bfloat16."""

import pytest
from divided_options import (
    algorithms_step_as_on_whole_weights_or_are_refused,
    gradients_are_summed_in_the_dtype_that_is_asked_for,
    offloaded_models_compute_the_same_bits,
    the_memory_of_a_replica_is_what_the_check_of_a_recipe_says,
)
from replica_cases import run_checks

pytestmark = pytest.mark.release

CHECKS = [
    the_memory_of_a_replica_is_what_the_check_of_a_recipe_says,
    offloaded_models_compute_the_same_bits,
    gradients_are_summed_in_the_dtype_that_is_asked_for,
    algorithms_step_as_on_whole_weights_or_are_refused,
]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_checks(CHECKS, tmp_path_factory.mktemp("divided-options"))


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_two_replicas_with_options_of_divided_models_hold_that(faults: dict[str, str], check: str):
    assert not faults[check], faults[check]
