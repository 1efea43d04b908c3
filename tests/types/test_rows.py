"""Packing rows into micro-batches."""

import pytest

from outdo.types.rows import pack_by_tokens

LENGTHS, GROUPS = [3, 5, 2, 9, 1, 1], [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("budget", "whole_groups", "expected"),
    [
        (100, False, [[0, 1, 2, 3, 4, 5]]),
        (15, False, [[0, 1, 2], [3], [4, 5]]),  # the group of rows 3 and 4 alone exceeds the budget
        (15, True, [[0, 1, 2], [3, 4], [5]]),
        (1, False, [[0], [1], [2], [3], [4], [5]]),
    ],
)
def test_micro_batches_hold_at_most_the_budget(budget, whole_groups, expected):
    assert pack_by_tokens(range(6), LENGTHS, GROUPS, budget, whole_groups=whole_groups) == expected


def test_some_rows_are_packed_by_their_numbers():
    assert pack_by_tokens([3, 4, 5], LENGTHS, GROUPS, 9, whole_groups=False) == [[3], [4, 5]]
    assert pack_by_tokens([], LENGTHS, GROUPS, 9, whole_groups=False) == []
