"""Rows into questions: which column is the question, which the answer, and what is wrong with which row."""

import hashlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outdo.config.recipe import Data, Recipe, Selection
from outdo.data import pass_rates
from outdo.data.files import Fault, Rows, read_rows
from outdo.data.pass_rates import PassRate
from outdo.utils.errors import UserError, did_you_mean

PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "input", "messages", "conversation")
ANSWER_COLUMNS = (
    *("answer", "solution", "target", "ground_truth", "expected_answer", "label", "response", "output"),
    "reward_model.ground_truth",  # verl's place for it
)
"""The columns that are taken for the question and the answer, the likeliest first."""

NEED_AN_ANSWER = frozenset({"exact", "last_number", "math"})
"""Built-in rewards that compare with the reference answer."""

LONGEST_PROMPT = 1_000_000
"""Characters. A longer one is a file that went into a column by mistake."""

SHOWN = 20
"""Faults that are written out; the rest is counted."""

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, before any tokenizer has seen it."""

    id: str  # the row's own `id`, or its number; unique within the file
    text: str | tuple[Message, ...]  # text, or chat messages {"role": ..., "content": ...}
    answer: Any  # the reference the reward compares with; None where there is none
    columns: Mapping[str, Any]  # the whole row, for the reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Where question and answer stand; `outer.inner` is a column within a column."""

    prompt: str
    answer: str | None

    def __str__(self) -> str:
        found = [f"{self.prompt} -> prompt", f"{self.answer} -> answer" if self.answer else "no answer"]
        return f"columns: {', '.join(found)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What a run trains on and what it is measured on."""

    train: tuple[Question, ...]
    held_out: tuple[Question, ...]
    fingerprints: Mapping[str, str]  # SHA-256 by the recipe's key: data.path, data.eval_path, data.select
    notes: tuple[str, ...]  # what the user should know: columns found, overlap, how many were selected


def load_questions(recipe: Recipe) -> Questions:
    """Read the training and held-out questions of a recipe. Raises `UserError` with all that is wrong in its files."""
    data, mistakes = recipe.data, []
    found: dict[str, Sequence[Question]] = {}
    rates: Mapping[str, PassRate] = {}
    fingerprints: dict[str, str] = {}
    notes: list[str] = []
    for key, path, limit in (("data.path", data.path, data.limit), ("data.eval_path", data.eval_path, None)):
        if path is not None:
            with _collect_mistakes(mistakes, key):
                rows = read_rows(path, limit=limit)
                columns = detect_columns(rows, prompt=data.prompt, answer=data.answer)
                _check_answer_column(recipe, rows, columns)
                found[key], fingerprints[key] = to_questions(rows, columns), rows.fingerprint
                notes += [f"{key}: {len(found[key]):,} questions; {columns}", *_ragged(rows)]
    if data.select is not None:
        with _collect_mistakes(mistakes, "data.select"):
            rates, fingerprints["data.select"] = pass_rates.load(data.select.file)
    if not mistakes and data.eval_rows >= len(found["data.path"]):
        mistakes.append(f"data.eval_rows = {data.eval_rows}: no row of {len(found['data.path'])} is left to train on")
    if mistakes:
        raise UserError(mistakes)
    train, held_out = _held_out(data, found, recipe.seed)
    if data.select is not None:
        kept = select(train, rates, data.select)
        notes.append(
            f"data.select: {len(kept):,} of {len(train):,} training questions kept: {_range_text(data.select)}"
        )
        train = kept
    if held_out:
        again = overlap(train, held_out)
        notes += [f"{again} of {len(held_out)} held-out questions are also trained on"] if again else []
    return Questions(train=tuple(train), held_out=tuple(held_out), fingerprints=fingerprints, notes=tuple(notes))


def questions_from(
    path: str, *, prompt: str | None = None, answer: str | None = None, limit: int | None = None
) -> tuple[Question, ...]:
    """The questions of one file or Hub data set, by itself. Raises `UserError` with everything that is wrong in it."""
    rows = read_rows(path, limit=limit)
    return to_questions(rows, detect_columns(rows, prompt=prompt, answer=answer))


def detect_columns(rows: Rows, *, prompt: str | None = None, answer: str | None = None) -> Columns:
    """The columns of question and answer: those named, else the likeliest that are there.

    Raises `UserError` if a named one does not exist, or if nothing looks like the question.
    """
    known = _all_columns(rows)
    mistakes = [
        f'{rows.source}: no column "{name}" (asked for by data.{role}){did_you_mean(name, known)} {_list_columns(rows)}'
        for role, name in (("prompt", prompt), ("answer", answer))
        if name is not None and rows.values and not _is_column(rows, name)
    ]
    prompt = prompt or _first(PROMPT_COLUMNS, known)
    if prompt is None and rows.values:
        mistakes.append(
            f"{rows.source}: no column looks like the question; name it: data.prompt=NAME {_list_columns(rows)}"
        )
    if mistakes:
        raise UserError(mistakes)
    others = [name for name in known if name != prompt]
    return Columns(prompt=prompt or "", answer=answer or _first(ANSWER_COLUMNS, others))


def to_questions(rows: Rows, columns: Columns) -> tuple[Question, ...]:
    """The rows as questions. Raises `UserError` with every row that cannot be one, its number and the reason."""
    faults = list(rows.faults)
    made: list[Question] = []
    first_with: dict[str, int] = {}
    for number, row in rows.values.items():
        reasons = list(_row_faults(row, columns))
        own_id = str(row["id"]) if row.get("id") is not None else str(number)
        if own_id in first_with:
            reasons.append(f'the id "{own_id}" is that of row {first_with[own_id]} too')
        first_with.setdefault(own_id, number)
        faults += [Fault(number, reason) for reason in reasons]
        if not reasons:
            prompt = _value(row, columns.prompt)
            answer = _value(row, columns.answer) if columns.answer else None
            text = prompt if isinstance(prompt, str) else tuple(prompt)
            made.append(Question(id=own_id, text=text, answer=answer, columns=row))
    if faults:
        faults.sort(key=lambda fault: fault.row)
        shown = [f"{rows.source}, row {fault.row}: {fault.reason}" for fault in faults[:SHOWN]]
        rest = len(faults) - len(shown)
        raise UserError([*shown, f"{rows.source}: and {rest} more faults like these"] if rest else shown)
    return tuple(made)


def hold_out(asked: Sequence[Question], rows: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Split into `(train, held_out)`, `rows` of them held out, both in the order of the file.

    Which ones depends on the seed and their ids alone: each has a SHA-256 of both, and the smallest are held out.
    """
    ranked = sorted(asked, key=lambda question: hashlib.sha256(f"{seed}:{question.id}".encode()).digest())
    chosen = {question.id for question in ranked[:rows]}
    train = [question for question in asked if question.id not in chosen]
    return train, [question for question in asked if question.id in chosen]


def select(asked: Sequence[Question], rates: Mapping[str, PassRate], by: Selection) -> list[Question]:
    """The questions whose pass rate lies within `[by.low, by.high]`, in their order.

    Raises `UserError` if questions have no rate, if their text is not the one that was rated, or if none is left.
    """
    without = [question for question in asked if question.id not in rates]
    rated = [question for question in asked if question.id in rates]
    changed = [each for each in rated if rates[each.id].fingerprint != pass_rates.fingerprint(each.text)]
    kept = [each for each in rated if by.low <= rates[each.id].pass_rate <= by.high]
    counts = ((without, "have no pass rate"), (changed, "do not read as they did when they were rated"))
    mistakes = [
        f"data.select: {len(those):,} of {len(asked):,} training questions {what} in {by.file}; "
        f"the first is question {those[0].id}"
        for those, what in counts
        if those
    ]
    if not mistakes and not kept:
        mistakes.append(f"data.select: none of the {len(asked):,} training questions is left: {_range_text(by)}")
    if mistakes:
        raise UserError(mistakes)
    return kept


def _range_text(by: Selection) -> str:
    return f"pass rate from {by.low:g} to {by.high:g} in {by.file}"


def overlap(train: Sequence[Question], held_out: Sequence[Question]) -> int:
    """How many held-out prompts are training prompts too, letter case and white space aside."""
    trained = {normalise(question.text) for question in train}
    return sum(normalise(question.text) in trained for question in held_out)


def normalise(prompt: str | Sequence[Message]) -> str:
    """A prompt in Unicode's NFKC form, without letter case, every run of white space as one space."""
    text = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@contextmanager
def _collect_mistakes(mistakes: list[str], key: str) -> Iterator[None]:
    """Add what is wrong with the file that `key` names to `mistakes`, and go on."""
    try:
        yield
    except UserError as error:
        mistakes += [f"{key}: {mistake}" for mistake in error.problems]


def _held_out(
    data: Data, found: Mapping[str, Sequence[Question]], seed: int
) -> tuple[Sequence[Question], Sequence[Question]]:
    if data.eval_path is not None:
        return found["data.path"], found["data.eval_path"]
    return hold_out(found["data.path"], data.eval_rows, seed)


def _check_answer_column(recipe: Recipe, rows: Rows, columns: Columns) -> None:
    requires = sorted({reward.name for reward in recipe.rewards} & NEED_AN_ANSWER)
    if requires and columns.answer is None and rows.values:
        missing = f"no column looks like the reference answer, which the reward {requires[0]} needs"
        raise UserError([f"{rows.source}: {missing}; name it: data.answer=NAME {_list_columns(rows)}"])


def _all_columns(rows: Rows) -> list[str]:
    """Columns, and columns within columns as `outer.inner`."""
    inner = {
        f"{name}.{key}": None
        for row in rows.values.values()
        for name, value in row.items()
        if isinstance(value, Mapping)
        for key in value
    }
    return [*rows.columns, *inner]


def _first(wanted: Sequence[str], known: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in known), None)


def _is_column(rows: Rows, name: str) -> bool:
    return any(_value(row, name) is not ABSENT for row in rows.values.values())


def _list_columns(rows: Rows) -> str:
    return f"(columns: {', '.join(rows.columns[:20])})"


ABSENT = object()


def _value(row: Mapping[str, Any], column: str) -> Any:
    """What stands in a column, or in a column within a column; `ABSENT` if there is none."""
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    nested = row.get(outer)
    return _value(nested, inner) if inner and isinstance(nested, Mapping) else ABSENT


def _row_faults(row: Mapping[str, Any], columns: Columns) -> Iterator[str]:
    for name in filter(None, (columns.prompt, columns.answer)):
        value = _value(row, name)
        if value is ABSENT:
            yield f'no column "{name}"{did_you_mean(name, list(row))}'
        elif value is None:
            yield f'column "{name}" is null'
        elif name == columns.prompt:
            yield from _prompt_faults(name, value)


def _prompt_faults(name: str, prompt: Any) -> Iterator[str]:
    if isinstance(prompt, str):
        if not prompt.strip():
            yield f'column "{name}" is empty'
        elif len(prompt) > LONGEST_PROMPT:
            yield f'column "{name}" has {len(prompt):,} characters, more than {LONGEST_PROMPT:,}'
    elif isinstance(prompt, list) and prompt and all(map(_is_message, prompt)):
        if prompt[-1]["role"] == "assistant":
            yield f'column "{name}" ends with an answer by the assistant; the question has to be its last message'
        if sum(len(message["content"]) for message in prompt) > LONGEST_PROMPT:
            yield f'column "{name}" has more than {LONGEST_PROMPT:,} characters'
    else:
        yield f'column "{name}" is neither text nor a list of messages {{"role": ..., "content": text}}'


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _ragged(rows: Rows) -> Iterator[str]:
    """Columns that some rows lack: allowed, but said, since a misspelt column looks just so."""
    count = len(rows.values)
    for name in rows.columns:
        having = [number for number, row in rows.values.items() if name in row]
        if len(having) < count:
            some = f"only {len(having)} of {count} rows (the first is row {having[0]})"
            yield f'{rows.source}: {some} have a column "{name}"'
