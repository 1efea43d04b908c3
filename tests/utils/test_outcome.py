"""The statistics of an evaluation."""

import pytest

from outdo.utils.outcome import mcnemar


def test_mcnemar_is_the_binomial_test_of_the_changed_pairs():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 0) == pytest.approx(2 / 32)
    assert mcnemar(1, 7) == mcnemar(7, 1) == pytest.approx(2 * (1 + 8) / 256)
    assert mcnemar(4, 4) == 1.0
    assert 0 < mcnemar(900, 700) < 1e-6
