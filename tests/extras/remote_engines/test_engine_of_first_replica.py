"""An engine beside several replicas: the first one holds it, all of them get its answers and its errors."""

from pathlib import Path

import pytest
from replica_cases import Check, run_checks
from replica_engines import (
    a_thread_of_the_first,
    faults_of_an_engine,
    frozen_weights_of_parts,
    processes_of_the_first,
    whole_folders,
)


def assert_all_hold(checks: list[Check], folder: Path) -> None:
    assert run_checks(checks, folder) == {check.__name__: "" for check in checks}


@pytest.mark.release
def test_replicas_share_the_engine_of_the_first_one(tmp_path: Path):
    assert_all_hold([processes_of_the_first, faults_of_an_engine], tmp_path)


@pytest.mark.release
def test_an_engine_gets_divided_weights_as_a_whole_model_and_a_thread_of_the_first_needs_no_other_one(tmp_path: Path):
    assert_all_hold([whole_folders, frozen_weights_of_parts, a_thread_of_the_first], tmp_path)
