"""Models that are divided among replicas are made, saved and loaded in parts. Two replicas run all checks."""

import pytest
from divided_cases import (
    a_base_with_adapters_is_divided,
    a_checkpoint_is_written_while_the_replicas_compute,
    a_disk_that_is_full_on_one_replica_leaves_the_checkpoint_before,
    a_start_takes_a_part_of_the_memory,
    adapters_that_read_the_base_are_refused_before_it_is_read,
    each_replica_reads_its_part,
    faults_of_one_part_are_named_by_all,
    replicas_save_their_shares_together,
    weights_made_of_stored_rows_are_divided,
    weights_of_one_part_that_are_not_finite_are_not_saved,
)
from replica_cases import run_checks

from outdo.extras.replicas.placements import placements
from outdo.testing import tiny_model
from outdo.utils.errors import ModelError

pytestmark = pytest.mark.release

CHECKS = [
    a_start_takes_a_part_of_the_memory,
    each_replica_reads_its_part,
    weights_made_of_stored_rows_are_divided,
    a_base_with_adapters_is_divided,
    adapters_that_read_the_base_are_refused_before_it_is_read,
    faults_of_one_part_are_named_by_all,
    a_disk_that_is_full_on_one_replica_leaves_the_checkpoint_before,
    replicas_save_their_shares_together,
    weights_of_one_part_that_are_not_finite_are_not_saved,
    a_checkpoint_is_written_while_the_replicas_compute,
]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_checks(CHECKS, tmp_path_factory.mktemp("divided"))


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_two_replicas_with_parts_of_a_model_hold_that(faults: dict[str, str], check: str):
    assert not faults[check], faults[check]


def test_a_weight_that_no_dimension_divides_is_refused():
    model, _ = tiny_model(arch="bailing_hybrid")
    with pytest.raises(ModelError, match=r"conv1d.weight \[96, 1, 4\] is made of .* divided among 3 replicas"):
        placements(model, 3)
