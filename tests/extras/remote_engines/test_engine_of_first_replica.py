"""An engine beside several replicas: the first one holds it, all of them get its answers and its errors."""

from pathlib import Path

import pytest
from replica_cases import run_replicas
from replica_engines import (
    a_thread_of_the_first,
    faults_of_an_engine,
    frozen_weights_of_parts,
    processes_of_the_first,
    whole_folders,
)


@pytest.mark.parametrize("body", [processes_of_the_first, faults_of_an_engine])
def test_replicas_share_the_engine_of_the_first_one(tmp_path: Path, body):
    run_replicas(2, body, tmp_path)


def test_an_engine_gets_divided_weights_as_a_whole_model(tmp_path: Path):
    run_replicas(2, whole_folders_and_frozen_weights, tmp_path)


def test_a_thread_of_the_first_replica_needs_no_other_one(tmp_path: Path):
    run_replicas(2, a_thread_of_the_first, tmp_path)


def whole_folders_and_frozen_weights(replicas) -> None:
    whole_folders(replicas)
    frozen_weights_of_parts(replicas)
