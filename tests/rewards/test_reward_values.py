"""Whatever a reward function returns becomes a finite value or a status; nothing becomes a silent zero."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo.rewards.types import LARGEST_VALUE, RewardOutput, Status, to_output, to_outputs


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (-0.5, -0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array(2), 2.0),
    ],
)
def test_numbers_and_booleans_are_their_value(returned: object, value: float):
    output = to_output(returned, "f")
    assert (output.value, output.status, output.parts) == (value, Status.ok, {"f": value})


@pytest.mark.parametrize(
    ("returned", "status", "message"),
    [
        (None, "not_applicable", ""),
        (float("nan"), "non_finite", "nan"),
        (1e30, "non_finite", "out of range"),
        ("1.0", "failed", "a str"),
        ([1.0], "failed", "a list"),
        ({"accuracy": 1.0}, "failed", 'a dict without "score" or "reward"'),
        (np.ones(1), "failed", "a ndarray"),
    ],
)
def test_everything_else_has_a_status_and_a_reason(returned: object, status: str, message: str):
    output = to_output(returned, "f")
    assert (output.value, output.status, output.parts) == (0.0, status, {"f": None})
    assert message in output.reason


@given(st.one_of(st.floats(), st.integers(), st.none(), st.text(), st.booleans()))
def test_no_value_is_ever_outside_the_range(returned: object):
    assert abs(to_output(returned, "f").value) <= LARGEST_VALUE


@pytest.mark.parametrize("returned", [[1.0], 1.0, [1.0, 1.0, 1.0, 1.0], "abc", None])
def test_a_batch_with_the_wrong_count_fails_everywhere_and_names_both_counts(returned: object):
    outputs = to_outputs(returned, 3, "f")
    assert [output.status for output in outputs] == ["failed"] * 3
    assert "for 3 completions; expected a list of 3" in outputs[0].reason


@pytest.mark.parametrize(("value", "status"), [(float("nan"), Status.ok), (1.0, Status.failed)])
def test_an_output_with_a_contradictory_value_is_refused(value: float, status: Status):
    with pytest.raises(ValueError, match="cannot have the value"):
        RewardOutput(value=value, status=status, parts={})


def test_importing_rewards_loads_neither_torch_nor_transformers():
    program = "import sys, outdo.rewards; sys.exit(bool({'torch', 'transformers', 'sympy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
