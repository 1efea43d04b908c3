"""The held-out answers of a run: its evaluations question by question, and the comparison of two of them.

One answer to each question is compared, because McNemar's test needs pairs that are independent of each other: the
greedy one, or else the first sample.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from outdo.extras.page.select import spread_out
from outdo.run.evaluation import held_out_completions
from outdo.run.folder import reads
from outdo.run.folder.run_files import file_inside, number_or_none
from outdo.utils.errors import RunFolderError
from outdo.utils.outcome import mcnemar
from outdo.utils.text import shortened

LARGEST_FILE = 64_000_000
"""The maximum size of a file of answers in bytes; a larger one is not read."""

MOST_EVALUATIONS = 64
"""How many evaluations of a run a page has at most: the first, the last and others spread over the run."""

DEFAULT_BYTES = 600_000
"""The default size of all held-out answers on a page, in bytes of its file."""

LONGEST, LONGEST_REFERENCE = 1_500, 300
"""The maximum number of characters shown of a question and of an answer, and of a reference answer."""

MOST_CHARACTERS = 16_000_000
"""How many characters of answers are kept in memory at most while a page is made."""

Completions = Mapping[str, Mapping[str, Any]]
"""The answers of one evaluation by the id of the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEvaluations:
    """Two evaluations of a run, paired by question. Only questions with a verdict (or a reward) in both count."""

    first: int  # the steps after which they were made; 0 is before the first step
    last: int
    by: str  # "right", or "reward" where right is not defined: then better and worse rewards are counted
    questions: int
    left_out: int  # without a verdict, or a reward, in one of the two
    fixed: int  # became right
    broken: int  # became wrong

    @property
    def unchanged(self) -> int:
        """The number of questions that are neither fixed nor broken."""
        return self.questions - self.fixed - self.broken

    @property
    def p(self) -> float:
        """The p-value of McNemar's exact test."""
        return mcnemar(self.fixed, self.broken)


def compare_evaluations(folder: Path, first: int, last: int) -> PairedEvaluations:
    """Compare the evaluations after the steps `first` and `last`. Raises: RunFolderError if one cannot be read."""
    evaluations = [_completions(folder, step) for step in (first, last)]
    by = _compared_by(evaluations)
    changes = [_change(before, after, by) for _, before, after in _pairs(*evaluations)]
    return PairedEvaluations(
        first=first,
        last=last,
        by=by,
        questions=sum(change is not None for change in changes),
        left_out=sum(change is None for change in changes),
        fixed=sum(change is not None and change > 0 for change in changes),
        broken=sum(change is not None and change < 0 for change in changes),
    )


def held_out_data(
    folder: Path, *, pair: tuple[int, int] | None = None, size: int = DEFAULT_BYTES
) -> dict[str, Any] | None:
    """Return the evaluations of a run as the page shows them, in about `size` bytes; None if none can be read.

        steps       the steps after which they were made; 0 is before the first step
        pair        the two that the page opens with: the given ones, or the first and the last
        blob        gzip and base64 of a JSON object:
            by          "right" or "reward"
            ids         of the questions
            questions   of each [question, reference], or null if left out
            values      of each evaluation and question: 1 right, 0 wrong (or the reward), null for no verdict
            texts       of each evaluation and question: the answer, or null if left out
            reads       of each evaluation and question: null, or what its answer read, [text, [[start, end, nats]]]

    If the texts need more bytes, those are left out that come last: first come the questions that changed between the
    two evaluations of `pair`, then their other questions, then the answers of the other evaluations.
    """
    recorded = held_out_completions.evaluated_steps(folder)
    if not recorded:
        return None
    pair = pair or (recorded[0], recorded[-1])
    steps = sorted([*dict.fromkeys([*pair, recorded[0], recorded[-1], *spread_out(recorded)])][:MOST_EVALUATIONS])
    evaluations = {
        step: completions for step in steps if (completions := _completions_or_none(folder, step)) is not None
    }
    if not evaluations:
        return None
    data = _data(folder, evaluations, pair)
    blob = _blob_within(size, data, _by_priority(data, [*evaluations], pair))
    return {"steps": [*evaluations], "pair": [*pair], "blob": blob}


def rewarded_completions(folder: Path, count: int = 2) -> list[list[str]]:
    """Return `[question, answer]` of different answers of the last evaluation, those with the highest rewards first."""
    recorded = held_out_completions.evaluated_steps(folder)
    completions = [*(_completions_or_none(folder, recorded[-1]) or {}).values()] if recorded else []
    completions.sort(key=lambda completion: -(number_or_none(completion.get("reward")) or 0.0))
    different: dict[str, Mapping[str, Any]] = {}
    for completion in completions:
        different.setdefault(str(completion["completion"]), completion)  # the first question of equal answers
    chosen = islice(different.items(), count)
    return [[_question(completion)[0], shortened(text, LONGEST)] for text, completion in chosen]


# ---------------------------------------------------------------------------------------------------- reading answers


def _completions(folder: Path, step: int) -> Completions:
    """Return the greedy answers of an evaluation by question, or else the first sampled one. Raises RunFolderError."""
    path = held_out_completions.path_of(folder, step)
    try:
        if file_inside(folder, path).stat().st_size > LARGEST_FILE:
            raise RunFolderError(f"{path}: has more than {LARGEST_FILE / 1e6:.0f} MB; it is not read")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
    completions = held_out_completions.read(folder, step)
    kind = "greedy" if any(completion["kind"] == "greedy" for completion in completions) else "sampled"
    by_question: dict[str, Mapping[str, Any]] = {}
    for completion in completions:
        if completion["kind"] == kind:
            by_question.setdefault(str(completion["id"]), completion)
    return by_question


def _completions_or_none(folder: Path, step: int) -> Completions | None:
    try:
        return _completions(folder, step)
    except RunFolderError:
        return None


def _compared_by(evaluations: Sequence[Completions]) -> str:
    verdicts = (completion.get("right") for completions in evaluations for completion in completions.values())
    return "right" if any(verdict is not None for verdict in verdicts) else "reward"


def _pairs(before: Completions, after: Completions) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    return ((question, completion, after[question]) for question, completion in before.items() if question in after)


def _value(completion: Mapping[str, Any] | None, by: str) -> float | None:
    """Return 1 for right and 0 for wrong, or the reward with six significant digits; None without either."""
    value = None if completion is None else number_or_none(completion.get(by))
    return None if value is None else float(f"{value:.6g}")


def _change(before: Mapping[str, Any], after: Mapping[str, Any], by: str) -> float | None:
    first, last = _value(before, by), _value(after, by)
    return None if first is None or last is None else last - first


# ------------------------------------------------------------------------------------------------------ for the page


def _data(folder: Path, evaluations: Mapping[int, Completions], pair: tuple[int, int]) -> dict[str, Any]:
    """Return the content of the blob with all texts, as far as `MOST_CHARACTERS` allow it."""
    by = _compared_by([*evaluations.values()])
    first = {
        question: completion for completions in evaluations.values() for question, completion in completions.items()
    }
    left, texts = MOST_CHARACTERS, {}
    for step in sorted(evaluations, key=lambda step: step not in pair):
        texts[step] = _texts(evaluations[step], first) if left > 0 else [None] * len(first)
        left -= sum(len(text or "") for text in texts[step])
    return {
        "by": by,
        "ids": [shortened(question, 100) for question in first],
        "questions": [_question(completion) for completion in first.values()],
        "values": [
            [_number(_value(completions.get(question), by)) for question in first]
            for completions in evaluations.values()
        ],
        "texts": [texts[step] for step in evaluations],
        "reads": _reads(folder, [*evaluations], first),
    }


def _reads(folder: Path, steps: Sequence[int], questions: Iterable[str]) -> list[list[list[Any] | None]]:
    """Return of each evaluation what its answers read of each question; None of those that were not measured."""
    return [_reads_after(folder, step, questions) for step in steps]


def _reads_after(folder: Path, step: int, questions: Iterable[str]) -> list[list[Any] | None]:
    try:
        lines = reads.read(folder, "held_out", step)
    except RunFolderError:
        lines = []
    by_question = {str(line["id"]): line for line in lines if len(line["question"]) <= LONGEST}
    return [_read(by_question[question]) if question in by_question else None for question in questions]


def _read(line: Mapping[str, Any]) -> list[Any]:
    nats = [[read["start"], read["end"], round(number_or_none(read["lost"]) or 0.0, 2)] for read in line["reads"]]
    return [line["question"], nats]


def _texts(completions: Completions, questions: Iterable[str]) -> list[str | None]:
    answers = (completions.get(question) for question in questions)
    return [None if answer is None else shortened(str(answer["completion"]), LONGEST) for answer in answers]


def _question(completion: Mapping[str, Any]) -> list[str]:
    """Return the question that was answered, and its reference answer; an empty text without one."""
    reference = completion.get("answer")
    return [
        shortened(str(completion.get("prompt", "")), LONGEST),
        "" if reference is None else shortened(str(reference), LONGEST_REFERENCE),
    ]


def _number(value: float | None) -> float | int | None:
    """Return whole numbers as integers, which are shorter in JSON."""
    return int(value) if value is not None and value.is_integer() else value


def _by_priority(data: Mapping[str, Any], steps: Sequence[int], pair: tuple[int, int]) -> list[tuple[int, int]]:
    """Return `(evaluation, question)` of every text, the most important first; evaluation -1 is the question itself."""
    chosen = [steps.index(step) for step in pair if step in steps]
    others = [number for number in spread_out(range(len(steps))) if number not in chosen]
    shown = [data["values"][number] for number in chosen]
    questions = sorted(range(len(data["ids"])), key=lambda q: len({values[q] for values in shown}) < 2)
    return [
        *((number, question) for question in questions for number in (-1, *chosen)),
        *((number, question) for number in others for question in questions),
    ]


def _with_texts(data: Mapping[str, Any], order: Sequence[tuple[int, int]], most: int) -> dict[str, Any]:
    """Return the data with the first `most` characters of texts in this order; later texts are None."""
    questions: list[Any] = [None] * len(data["ids"])
    texts: list[list[Any]] = [[None] * len(data["ids"]) for _ in data["texts"]]
    for number, question in order:
        text = data["questions"][question] if number < 0 else data["texts"][number][question]
        most -= sum(map(len, text or ""))
        if most < 0:
            break
        (questions if number < 0 else texts[number])[question] = text
    return {**data, "questions": questions, "texts": texts}


def _blob_within(size: int, data: Mapping[str, Any], order: Sequence[tuple[int, int]]) -> str:
    """Return the data as a blob of about `size` bytes, with as many of its texts, in this order, as fit."""
    texts = sum(len(text) for completions in data["texts"] for text in completions if text)
    most = texts + sum(len(text) for question in data["questions"] for text in question)
    while len(blob := _blob(_with_texts(data, order, most))) > size and most > 0:
        most = int(0.9 * most * size / len(blob)) if most > 100 else 0
    return blob


def _blob(data: Mapping[str, Any]) -> str:
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()
