"""Questions that stay on disk: `data.path = {path = "large.jsonl", streaming = true}`.

Every row is read and checked once before the run, as without this option. What stays in memory of a row is its place
and 64 bits of its id; the row is read again when its question is asked. The positions of the questions are those of
questions in memory, and with them the order, and the run that is resumed.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy
from numpy.typing import NDArray

from outdo.data.files import MAX_SHOWN, Fault, Parsed
from outdo.data.questions import NO_MATCHERS, Columns, Matchers, Question, describe, id_of, read_question, same_id
from outdo.data.sequences import Lazy
from outdo.data.stored_rows import StoredRows
from outdo.utils.errors import UserError
from outdo.utils.text import counted


class StreamedQuestions(Lazy[Question]):
    """The questions in rows on disk. `prefix` begins their ids, and `source` is their place among several files."""

    def __init__(
        self, rows: StoredRows, columns: Columns, hashes: NDArray[numpy.uint64], *, prefix: str = "", source: int = 0
    ) -> None:
        self.rows = rows
        self.columns = columns
        self.prefix = prefix
        self.source = source
        self._sorted = hashes.argsort(kind="stable")
        self._hashes = hashes[self._sorted]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Question]:
        return map(self._question, self.rows)

    def make(self, index: int) -> Question:
        """Read the question at a place."""
        return self._question(self.rows[index])

    def by_id(self, own_id: str) -> Question:
        """Read the question with an id. Raises KeyError if there is none."""
        wanted = hash_of(own_id.removeprefix(self.prefix))
        first, last = (int(self._hashes.searchsorted(wanted, side)) for side in ("left", "right"))
        for index in self._sorted[first:last].tolist():
            if (question := self.make(index)).id == own_id:
                return question
        raise KeyError(own_id)

    def _question(self, parsed: Parsed) -> Question:
        assert not isinstance(parsed, Fault)  # rows with faults were refused when the rows were checked
        question, _ = read_question(*parsed, self.columns)
        assert question is not None
        return replace(question, id=f"{self.prefix}{question.id}", source=self.source)


def stream_questions(
    rows: StoredRows, columns: Columns, *, matchers: Matchers = NO_MATCHERS, prefix: str = "", source: int = 0
) -> StreamedQuestions:
    """Read and check all rows once; return their questions, which stay on disk.

    Raises `UserError` with the first faulty rows and the number of all, as `questions.to_questions` does.
    """
    faults, more = list[Fault](), 0
    hashes = numpy.zeros(len(rows), dtype=numpy.uint64)
    for index, parsed in enumerate(rows):
        if isinstance(parsed, Fault):
            of_row = [parsed]
        else:
            number, row = parsed
            hashes[index] = hash_of(id_of(number, row))
            _, reasons = read_question(number, row, columns, matchers)
            of_row = [Fault(number, reason) for reason in dict.fromkeys(reasons)]
        more += len(of_row[MAX_SHOWN - len(faults) :])
        faults += of_row[: MAX_SHOWN - len(faults)]
    if not faults:
        again, first = repeated(hashes)
        shown = zip(again[:MAX_SHOWN].tolist(), first[:MAX_SHOWN].tolist(), strict=True)
        faults = [_same_id(rows, index, earlier) for index, earlier in shown]
        more = len(again) - len(faults)
    if faults:
        others = [f"{rows.source}: and {counted(more, 'more fault')} like these"] if more else []
        raise UserError([*(describe(rows.source, fault) for fault in faults), *others])
    return StreamedQuestions(rows, columns, hashes, prefix=prefix, source=source)


def hash_of(text: str) -> int:
    """Return 64 bits of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def repeated(hashes: NDArray[numpy.uint64]) -> tuple[NDArray[numpy.intp], NDArray[numpy.intp]]:
    """Return the places of values that an earlier place has too, and the first place of each."""
    _, first, inverse = numpy.unique(hashes, return_index=True, return_inverse=True)
    places = first[inverse]
    again = numpy.flatnonzero(places != numpy.arange(len(hashes)))
    return again, places[again]


def _same_id(rows: StoredRows, index: int, earlier: int) -> Fault:
    number, row = _whole(rows[index])
    return Fault(number, same_id(id_of(number, row), _whole(rows[earlier])[0]))


def _whole(parsed: Parsed) -> tuple[int, Mapping[str, object]]:
    assert not isinstance(parsed, Fault)
    return parsed
