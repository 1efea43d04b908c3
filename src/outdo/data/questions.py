"""Turn rows into questions: find the columns of question and answer, and check every row."""

import hashlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outdo.config.recipe import Data, Recipe, Selection
from outdo.data import pass_rates
from outdo.data.files import Fault, Rows, read_rows, shorten
from outdo.data.pass_rates import PassRate
from outdo.utils.errors import UserError, did_you_mean

PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "input", "messages", "conversation")
ANSWER_COLUMNS = (
    *("answer", "solution", "target", "ground_truth", "expected_answer", "label", "response", "output"),
    "reward_model.ground_truth",  # as in verl's data
)
"""Names of columns that hold the question and the answer, in order of priority."""

NEED_AN_ANSWER = frozenset({"exact", "last_number", "math"})
"""Built-in rewards that compare with the reference answer."""

LONGEST_PROMPT = 1_000_000
"""Characters. A longer prompt is a whole file that got into a column by mistake."""

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, before it is tokenised."""

    id: str  # the row's own `id`, or its number; unique within the file
    text: str | tuple[Message, ...]  # text, or chat messages {"role": ..., "content": ...}
    answer: Any  # the reference the reward compares with; None where there is none
    columns: Mapping[str, Any]  # the whole row, for the reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of question and answer; `outer.inner` is a column within a column."""

    prompt: str
    answer: str | None

    def __str__(self) -> str:
        answer = f"{self.answer} -> answer" if self.answer else "no answer"
        return f"columns: {self.prompt} -> prompt, {answer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions that a run trains on, and those that it is evaluated on."""

    train: tuple[Question, ...]
    held_out: tuple[Question, ...]
    fingerprints: Mapping[str, str]  # SHA-256 by the recipe's key: data.path, data.eval_path, data.select
    notes: tuple[str, ...]  # for the user: the columns, the overlap, how many questions were selected


def load_questions(recipe: Recipe) -> Questions:
    """Read the training and held-out questions of a recipe. Raises `UserError` with all mistakes in its files."""
    data = recipe.data
    mistakes: list[str] = []
    by_key: dict[str, Sequence[Question]] = {}
    rates: Mapping[str, PassRate] = {}
    fingerprints: dict[str, str] = {}
    notes: list[str] = []
    for key, path, limit in (("data.path", data.path, data.limit), ("data.eval_path", data.eval_path, None)):
        if path is not None:
            with _collect_mistakes(mistakes, key):
                rows = read_rows(path, limit=limit)
                columns = detect_columns(rows, prompt=data.prompt, answer=data.answer)
                _check_answer_column(recipe, rows, columns)
                by_key[key] = to_questions(rows, columns)
                fingerprints[key] = rows.fingerprint
                notes += [f"{key}: {len(by_key[key]):,} questions; {columns}", *_missing_columns(rows)]
    if data.select is not None:
        with _collect_mistakes(mistakes, "data.select"):
            rates, fingerprints["data.select"] = pass_rates.load(data.select.file)
    if not mistakes and data.eval_rows >= len(by_key["data.path"]):
        mistakes.append(f"data.eval_rows = {data.eval_rows}: no row of {len(by_key['data.path'])} is left to train on")
    if mistakes:
        raise UserError(mistakes)
    train, held_out = _split(data, by_key, recipe.seed)
    if data.select is not None:
        kept = select(train, rates, data.select)
        notes.append(
            f"data.select: {len(kept):,} of {len(train):,} training questions kept: {_range_text(data.select)}"
        )
        train = kept
    if held_out and (common := overlap(train, held_out)):
        notes.append(f"{common} of {len(held_out)} held-out questions are also trained on")
    return Questions(train=tuple(train), held_out=tuple(held_out), fingerprints=fingerprints, notes=tuple(notes))


def questions_from(
    path: str, *, prompt: str | None = None, answer: str | None = None, limit: int | None = None
) -> tuple[Question, ...]:
    """Read the questions of one file or Hub data set. Raises `UserError` with all mistakes in it."""
    rows = read_rows(path, limit=limit)
    return to_questions(rows, detect_columns(rows, prompt=prompt, answer=answer))


def detect_columns(rows: Rows, *, prompt: str | None = None, answer: str | None = None) -> Columns:
    """Return the columns of question and answer: the named ones, otherwise the first that exist of the usual names.

    Raises `UserError` if a named column does not exist, or if no column has a usual name for the question.
    """
    known = _all_columns(rows)
    mistakes = [
        f'{rows.source}: no column "{name}" (named by data.{role}){did_you_mean(name, known)} {_list_columns(rows)}'
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
    """Turn rows into questions. Raises `UserError` with every row that is not a question: its number and the reason."""
    faults = list(rows.faults)
    questions: list[Question] = []
    first_with: dict[str, int] = {}
    for number, row in rows.values.items():
        reasons = list(_row_faults(row, columns))
        own_id = str(row["id"]) if row.get("id") is not None else str(number)
        if own_id in first_with:
            reasons.append(f'the id "{own_id}" is also that of row {first_with[own_id]}')
        first_with.setdefault(own_id, number)
        faults += [Fault(number, reason) for reason in reasons]
        if not reasons:
            prompt = _value(row, columns.prompt)
            answer = _value(row, columns.answer) if columns.answer else None
            text = prompt if isinstance(prompt, str) else tuple(prompt)
            questions.append(Question(id=own_id, text=text, answer=answer, columns=row))
    if faults:
        faults.sort(key=lambda fault: fault.row)
        lines = [f"{rows.source}, row {fault.row}: {fault.reason}" for fault in faults]
        raise UserError(shorten(lines, source=rows.source))
    return tuple(questions)


def hold_out(questions: Sequence[Question], rows: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Split into `(train, held_out)` with `rows` held-out questions, both in the order of the file.

    The split depends only on the seed and the ids: the questions with the smallest SHA-256 of both are held out.
    """
    ranked = sorted(questions, key=lambda question: hashlib.sha256(f"{seed}:{question.id}".encode()).digest())
    chosen = {question.id for question in ranked[:rows]}
    train = [question for question in questions if question.id not in chosen]
    return train, [question for question in questions if question.id in chosen]


def select(questions: Sequence[Question], rates: Mapping[str, PassRate], by: Selection) -> list[Question]:
    """Return the questions whose pass rate lies within `[by.low, by.high]`, in their order.

    Raises `UserError` if questions have no rate, if their text is not the one that was rated, or if none is left.
    """
    unrated = [question for question in questions if question.id not in rates]
    rated = [question for question in questions if question.id in rates]
    changed = [each for each in rated if rates[each.id].fingerprint != pass_rates.fingerprint(each.text)]
    kept = [each for each in rated if by.low <= rates[each.id].pass_rate <= by.high]
    mistakes = [
        f"data.select: {len(faulty):,} of {len(questions):,} training questions {fault} in {by.file}; "
        f"the first is question {faulty[0].id}"
        for faulty, fault in ((unrated, "have no pass rate"), (changed, "have another text than the one rated"))
        if faulty
    ]
    if not mistakes and not kept:
        mistakes.append(f"data.select: none of the {len(questions):,} training questions is left: {_range_text(by)}")
    if mistakes:
        raise UserError(mistakes)
    return kept


def _range_text(by: Selection) -> str:
    return f"pass rate from {by.low:g} to {by.high:g} in {by.file}"


def overlap(train: Sequence[Question], held_out: Sequence[Question]) -> int:
    """Count the held-out prompts that are also training prompts, compared in their normalised form."""
    trained = {normalise(question.text) for question in train}
    return sum(normalise(question.text) in trained for question in held_out)


def normalise(prompt: str | Sequence[Message]) -> str:
    """Return a prompt in Unicode's NFKC form, without letter case, with every run of white space as one space."""
    text = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@contextmanager
def _collect_mistakes(mistakes: list[str], key: str) -> Iterator[None]:
    """Add the mistakes in the file that `key` names to `mistakes`, and continue."""
    try:
        yield
    except UserError as error:
        mistakes += [f"{key}: {mistake}" for mistake in error.problems]


def _split(
    data: Data, by_key: Mapping[str, Sequence[Question]], seed: int
) -> tuple[Sequence[Question], Sequence[Question]]:
    """Return the training and the held-out questions."""
    if data.eval_path is not None:
        return by_key["data.path"], by_key["data.eval_path"]
    return hold_out(by_key["data.path"], data.eval_rows, seed)


def _check_answer_column(recipe: Recipe, rows: Rows, columns: Columns) -> None:
    rewards = sorted({reward.name for reward in recipe.rewards} & NEED_AN_ANSWER)
    if rewards and columns.answer is None and rows.values:
        missing = f"no column looks like the reference answer, which the reward {rewards[0]} needs"
        raise UserError([f"{rows.source}: {missing}; name it: data.answer=NAME {_list_columns(rows)}"])


def _all_columns(rows: Rows) -> list[str]:
    """Return all columns, and columns within columns as `outer.inner`."""
    inner = {
        f"{name}.{key}": None
        for row in rows.values.values()
        for name, value in row.items()
        if isinstance(value, Mapping)
        for key in value
    }
    return [*rows.columns, *inner]


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    return next((name for name in names if name in known), None)


def _is_column(rows: Rows, name: str) -> bool:
    return any(_value(row, name) is not ABSENT for row in rows.values.values())


def _list_columns(rows: Rows) -> str:
    return f"(columns: {', '.join(rows.columns[:20])})"


ABSENT = object()


def _value(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, or of a column within a column; `ABSENT` if the row has none."""
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


def _missing_columns(rows: Rows) -> Iterator[str]:
    """Yield a note for each column that some rows lack: this is allowed, but it may be a misspelt column name."""
    count = len(rows.values)
    for name in rows.columns:
        present = [number for number, row in rows.values.items() if name in row]
        if len(present) < count:
            only = f"only {len(present)} of {count} rows (the first is row {present[0]})"
            yield f'{rows.source}: {only} have a column "{name}"'
