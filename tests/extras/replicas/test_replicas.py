"""Replicas compute what one process computes, whatever share of a batch each of them gets, and fail together."""

from pathlib import Path

import pytest
from replica_cases import (
    closed_runs,
    divided_state,
    errors_of_two_kinds,
    errors_reach_all,
    many_random_shares_of_parts,
    memory_runs_out,
    one_hangs,
    parts_of_all_models,
    random_shares,
    random_shares_of_parts,
    run_replicas,
    samples_of_parts,
    shares_of_a_critic,
    shares_of_a_divided_critic,
    weights_drift,
)


@pytest.mark.parametrize(
    "body",
    [random_shares, random_shares_of_parts, pytest.param(many_random_shares_of_parts, marks=pytest.mark.long)],
)
def test_the_gradient_of_any_batch_is_that_of_one_process(tmp_path: Path, body):
    run_replicas(3, body, tmp_path)


@pytest.mark.parametrize(
    "body", [parts_of_all_models, shares_of_a_critic, shares_of_a_divided_critic, divided_state, samples_of_parts]
)
def test_models_of_replicas_compute_what_those_of_one_process_do(tmp_path: Path, body):
    run_replicas(2, body, tmp_path)


@pytest.mark.parametrize("body", [memory_runs_out, weights_drift, errors_reach_all, errors_of_two_kinds, closed_runs])
def test_what_happens_on_one_replica_is_known_to_all(tmp_path: Path, body):
    run_replicas(2, body, tmp_path)


def test_a_replica_that_hangs_is_given_up_after_the_timeout(tmp_path: Path):
    run_replicas(2, one_hangs, tmp_path, timeout=5)
