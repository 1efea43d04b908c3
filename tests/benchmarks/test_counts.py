"""Operators and memory are counted exactly: they may fall, and grow only when somebody says so."""

from pathlib import Path

import pytest
import torch

from benchmarks.suite import baseline
from benchmarks.suite.cases import CASES
from benchmarks.suite.counts import Tally, counts
from benchmarks.suite.setting import Setting

ACCEPTED = Path(__file__).parent / "accepted.json"


@pytest.fixture(scope="module")
def counted() -> dict[str, float]:
    return counts(Setting(case=CASES["counts"], threads=1))


def test_no_step_does_more_than_was_accepted(counted):
    worse = baseline.worse(baseline.read(ACCEPTED), {"counts": counted})
    assert not worse, 'if that is as it should be: make bench ARGS="counts --accept tests/benchmarks/accepted.json"'


def test_every_count_has_been_accepted(counted):
    assert counted.keys() == baseline.read(ACCEPTED)["counts"].keys()


def test_counts_do_not_depend_on_when_they_are_taken(counted):
    assert counts(Setting(case=CASES["counts"], threads=1)) == counted


def test_a_tally_counts_operators_and_the_bytes_they_make():
    weight = torch.ones(3, 5, requires_grad=True)
    with Tally() as forward:
        total = (weight * 2).sum()
    assert forward.counts == {"operations": 2, "new_tensors": 2, "new_bytes": 4 * 15 + 4}
    with Tally() as backward:
        total.backward()
    assert backward.counts["operations"] > 0
