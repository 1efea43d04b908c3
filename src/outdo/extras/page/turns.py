"""The parts of episodes on a page: who wrote which tokens, and exact sums of what the record has of them.

A part is a turn of the policy, or what an environment wrote between turns. The tokens of a page have four digits, and
a long episode is shown without its middle. So the sums are computed here, in float64, of all tokens of the record.
"""

# pyarrow has no types:
# pyright: reportUnknownParameterType=false

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow

from outdo.extras.page.encode import Array, floats_of, lengths_of
from outdo.run.folder.run_files import number_or_none

SUMS: Mapping[str, Mapping[str, int]] = {
    "push": {"policy_push": 1, "kl_pull": 1},
    "moved": {"new_logprobs": 1, "old_logprobs": -1},
    "reward": {"token_rewards": 1},
}
"""What is summed over the tokens of a turn: these columns of the record, with these signs."""

PARTS = pyarrow.list_(
    pyarrow.struct(
        {
            "start": pyarrow.int32(),  # the place of its first token in the completion
            "turn": pyarrow.int32(),  # of the policy, from 0; -1: an environment wrote it
            "begins": pyarrow.bool_(),  # whether a further conversation begins with it
            "after": pyarrow.int32(),  # which token that conversation follows; see `record.table.FORKS`
            **{name: pyarrow.float64() for name in SUMS},  # null where an environment wrote it, and where not known
        }
    )
)

Read = Callable[[Sequence[str]], Iterator[tuple[str, Any]]]
"""Yields those columns of some rows of a record that it has, one at a time."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of some rows, one row after another."""

    lengths: Array  # of each row
    first: Array  # the place of the first token of each part, among the tokens of all rows
    row: Array  # of each part
    start: Array  # the same place in its row
    turn: Array  # of each part
    forks: Mapping[tuple[int, int], int | None]  # by row and start: see `record.table.FORKS`


def turns_of(read: Read) -> dict[str, Any]:
    """Return the column `turns`: the parts of the episode of each row that `read` gives, null for a single answer.

    There is no column if all are single answers.

    Raises what reading raises, and IndexError or ValueError if the columns do not fit together.
    """
    parts = _parts(dict(read(("turn", "forks"))))
    if parts is None:
        return {}
    of_rows: list[list[dict[str, Any]]] = [[] for _ in parts.lengths]
    sums = {what: _sums(read, columns, parts) for what, columns in SUMS.items()}
    places = zip(*(column.tolist() for column in (parts.row, parts.start, parts.turn)), strict=True)
    for number, (row, start, turn) in enumerate(places):
        of_rows[row].append(
            {
                **{"start": start, "turn": turn, "begins": (row, start) in parts.forks},
                **{"after": parts.forks.get((row, start))},
                **{what: values[number] for what, values in sums.items() if turn >= 0},
            }
        )
    return {"turns": pyarrow.array([turns if len(turns) > 1 else None for turns in of_rows], PARTS)}


def _parts(columns: Mapping[str, Any]) -> _Parts | None:
    """Return the parts of the rows; None if each row is a single answer, or if it is not known who wrote its tokens."""
    if "turn" not in columns:
        return None
    lengths = lengths_of(columns, "turn")
    starts = numpy.cumsum(lengths) - lengths
    turn = columns["turn"].combine_chunks().flatten().to_numpy()
    forks = _forks(columns)
    begins = numpy.zeros(len(turn), numpy.bool_)
    begins[1:] = turn[1:] != turn[:-1]
    begins[starts[lengths > 0]] = True
    begins[[starts[row] + position for row, position in forks]] = True
    first = numpy.flatnonzero(begins)
    if len(first) == (lengths > 0).sum():
        return None
    row = numpy.searchsorted(starts, first, side="right") - 1
    return _Parts(lengths=lengths, first=first, row=row, start=first - starts[row], turn=turn[first], forks=forks)


def _forks(columns: Mapping[str, Any]) -> dict[tuple[int, int], int | None]:
    rows = columns["forks"].to_pylist() if "forks" in columns else []
    return {(row, fork["token"]): fork["after"] for row, forks in enumerate(rows) for fork in forks or ()}


def _sums(read: Read, columns: Mapping[str, int], parts: _Parts) -> list[float | None]:
    """Return the sum of some columns over the tokens of each part; None where one of them is not known."""
    total = numpy.zeros(parts.lengths.sum())
    for name, sign in columns.items():
        values = next(
            (floats_of(pyarrow.table({name: column}), name, parts.lengths) for _, column in read([name])), None
        )
        total += numpy.nan if values is None else sign * values.astype(numpy.float64)
    return [number_or_none(float(total_of_part)) for total_of_part in numpy.add.reduceat(total, parts.first)]
