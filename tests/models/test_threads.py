"""Equal bits with several threads in one process."""

from functools import partial
from pathlib import Path

import pytest
import thread_cases
from thread_cases import different_bits

from outdo.config.names import OBJECTIVES


def test_an_update_has_the_same_gradient_each_time(tmp_path: Path):
    assert different_bits(tmp_path, thread_cases.some_objectives, 4) == dict.fromkeys(thread_cases.SOME, 1)


@pytest.mark.release
def test_an_update_of_every_method_has_the_same_gradient_each_time(tmp_path: Path):
    assert different_bits(tmp_path, thread_cases.every_objective, 2) == dict.fromkeys(OBJECTIVES, 1)


@pytest.mark.release
def test_an_update_of_the_real_model_has_the_same_gradient_each_time(smollm2: Path, tmp_path: Path):
    assert different_bits(tmp_path, partial(thread_cases.real_model, smollm2), 2, times=3) == {"SmolLM2": 1}


def test_with_deterministic_algorithms_a_row_that_is_taken_often_has_the_same_gradient_each_time(tmp_path: Path):
    """What the code of a model or of a user may do, and what outdo's own code does not."""
    assert different_bits(tmp_path, thread_cases.indexed, 2, deterministic=True) == {"x[indices]": 1}


@pytest.mark.parametrize(
    "cases", [thread_cases.other_trainings, pytest.param(thread_cases.frozen_bases, marks=pytest.mark.release)]
)
def test_other_trainings_have_the_same_gradient_each_time(tmp_path: Path, cases: thread_cases.Cases):
    counted = different_bits(tmp_path, cases, 2, times=10)
    assert counted == dict.fromkeys(counted, 1)


@pytest.mark.release
def test_mixtures_have_the_same_gradient_each_time_with_deterministic_algorithms(tmp_path: Path):
    """Their own code, which outdo does not change, may take a token once for each of its experts."""
    assert different_bits(tmp_path, thread_cases.mixtures, 2, deterministic=True) == {"mixtral": 1, "qwen3_moe": 1}
