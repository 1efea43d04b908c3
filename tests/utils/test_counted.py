"""A number stands before a noun in the singular or the plural."""

import numpy
import pytest

from outdo.utils.text import counted


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 steps"),
        (1, "1 step"),
        (2, "2 steps"),
        (1000, "1,000 steps"),
        (numpy.int64(12345), "12,345 steps"),
        (3.2, "3.2 steps"),
        (1.0, "1 step"),
        (0.9999, "1 step"),
    ],
)
def test_the_noun_follows_the_number_as_it_is_written(count, text):
    assert counted(count, "step") == text


def test_a_noun_may_have_a_plural_of_its_own():
    assert [counted(count, "pass", plural="passes") for count in (1, 2)] == ["1 pass", "2 passes"]
