"""Turn rows into questions: find the columns of question and answer, and check every row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from outdo.data.files import Fault, Rows, read_rows, shorten
from outdo.data.formats import (
    CONVERSATION_COLUMNS,
    Row,
    Text,
    alpaca_prompt,
    as_messages,
    is_conversation,
    label_of,
    messages_of,
    text_of,
    tools_of,
)
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.text import counted

PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "input", *CONVERSATION_COLUMNS)
ANSWER_COLUMNS = (
    *("answer", "solution", "target", "ground_truth", "expected_answer", "label", "response", "output"),
    (VERL_REFERENCE := "reward_model.ground_truth"),  # as in verl's data
    "completion",  # as in TRL's data
)
"""Names of columns that hold the question and the answer, in order of priority."""

IMAGE_COLUMNS = ("image", "images")
"""Names of columns that hold the images of a question."""

LONGEST_PROMPT = 1_000_000
"""Characters. A longer prompt is a whole file that got into a column by mistake."""


Matchers = Mapping[str, Callable[[Any], object]]
"""What rewards require of the reference answer, by their names; raises `ValueError` if no completion can match it."""
NO_MATCHERS: Matchers = MappingProxyType({})

EnvironmentOf = Callable[[Row], str | None]
"""Returns the name of the environment of a row, or None. Raises `ValueError` for a name that no environment has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, before it is tokenised."""

    id: str  # the row's own `id`, or its number; unique within the file
    text: Text  # text, or chat messages {"role": ..., "content": ...}
    answer: Any  # the reference the reward compares with; None where there is none
    columns: Mapping[str, Any]  # the whole row, for the reward
    tools: tuple[Mapping[str, Any], ...] = ()  # schemas, which the chat template writes into the prompt
    source: int = 0  # which of several files it is from
    level: int | None = None  # of the curriculum of this file


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of question and answer; `outer.inner` is a column within a column."""

    prompt: str
    answer: str | None
    environment_of: EnvironmentOf | None = None  # of several environments, one of which a row may name
    ends_with_answer: bool = False  # the last message of the prompt column is an answer by the assistant

    def __str__(self) -> str:
        last = "its last message -> answer" if self.ends_with_answer else "no answer"
        answer = f"{self.answer} -> answer" if self.answer else last
        return f"columns: {self.prompt} -> prompt, {answer}"


def questions_from(
    path: str | Sequence[Row],
    *,
    prompt: str | None = None,
    answer: str | None = None,
    limit: int | None = None,
    matchers: Matchers = NO_MATCHERS,
    environment_of: EnvironmentOf | None = None,
) -> tuple[Question, ...]:
    """Read the questions of one file or Hub data set, or of a list of rows. Raises `UserError` with all mistakes in it.

    The reference answers have to suit the `matchers`, and the environments that rows name have to exist.
    """
    if not isinstance(path, str | list | tuple):
        what = "expected the path of a file or the name of a data set on the Hub, as text, or a list of rows"
        raise TypeError(f"questions_from: {what}, found {type(path).__name__}")
    rows = read_rows(path, limit=limit)
    columns = detect_columns(rows, prompt=prompt, answer=answer)
    check_answer_column(matchers, rows, columns)
    return to_questions(rows, replace(columns, environment_of=environment_of), matchers=matchers)


def detect_columns(rows: Rows, *, prompt: str | None = None, answer: str | None = None) -> Columns:
    """Return the columns of question and answer: the named ones, otherwise the first that exist of the usual names.

    Raises `UserError` if a named column does not exist, if no column has a usual name for the question, or if the
    questions have images.
    """
    _refuse_images(rows)
    known = _all_columns(rows)
    mistakes = list(_unknown_columns(rows, known, {"prompt": prompt, "answer": answer}))
    prompt = prompt or _first(PROMPT_COLUMNS, known)
    if prompt is None and rows.values:
        advice = _name_it("prompt", PROMPT_COLUMNS, known)
        mistakes.append(f"{rows.source}: no column looks like the question; {advice} {_list_columns(rows)}")
    if mistakes:
        raise UserError(mistakes)
    other = {prompt, *_ratings(rows)}
    answer = answer or _first(ANSWER_COLUMNS, [name for name in known if name not in other])
    return Columns(prompt=prompt or "", answer=answer, ends_with_answer=_ends_with_answer(rows, prompt))


def _unknown_columns(rows: Rows, known: Sequence[str], named: Mapping[str, str | None]) -> Iterator[str]:
    """Yield a sentence for each column, `named` by the setting data.ROLE, that no row has."""
    for role, name in named.items():
        if name is not None and rows.values and not _is_column(rows, name):
            similar = did_you_mean(name, known)
            yield f'{rows.source}: no column "{name}" (named by data.{role}){similar} {_list_columns(rows)}'


def _refuse_images(rows: Rows) -> None:
    """Raise `UserError` if questions have images: a model of text would be trained to guess what it cannot see."""
    for name in IMAGE_COLUMNS:
        with_images = [number for number, row in rows.values.items() if row.get(name)]
        if with_images:
            images = f'{len(with_images):,} of {counted(len(rows.values), "question")} have images (column "{name}"'
            why = "outdo trains models that read text: leave these rows out, or remove the column"
            raise UserError([f"{rows.source}: {images}, the first in row {with_images[0]}); {why}"])


def _ratings(rows: Rows) -> tuple[str, ...]:
    """Return the columns of an answer and of whether it is good: TRL's unpaired preference has no reference."""
    rated = any(label_of(row) is not None and "completion" in row for row in rows.values.values())
    return ("label", "completion") if rated else ()


def _ends_with_answer(rows: Rows, column: str | None) -> bool:
    """Return whether a column holds whole conversations, of which the last message is an answer by the assistant."""
    if column not in (*CONVERSATION_COLUMNS, "chosen"):
        return False
    conversations = (row[column] for row in rows.values.values() if is_conversation(row.get(column)))
    last_messages = [conversation[-1].values() for conversation in conversations]
    return any("assistant" in values or "gpt" in values for values in last_messages)


def to_questions(rows: Rows, columns: Columns, *, matchers: Matchers = NO_MATCHERS) -> tuple[Question, ...]:
    """Turn rows into questions.

    Raises `UserError` with every row that is not a question, or whose answer one of the named `matchers` could never
    reward: its number and the reason.
    """
    faults = list(rows.faults)
    questions: list[Question] = []
    first_with: dict[str, int] = {}
    for number, row in rows.values.items():
        question, reasons = read_question(number, row, columns, matchers)
        own_id = id_of(number, row)
        if own_id in first_with:
            reasons.append(same_id(own_id, first_with[own_id]))
        first_with.setdefault(own_id, number)
        faults += [Fault(number, reason) for reason in dict.fromkeys(reasons)]
        if question is not None and not reasons:
            questions.append(question)
    if faults:
        faults.sort(key=lambda fault: fault.row)
        raise UserError(shorten([describe(rows.source, fault) for fault in faults], source=rows.source))
    return tuple(questions)


def read_question(
    number: int, row: Row, columns: Columns, matchers: Matchers = NO_MATCHERS
) -> tuple[Question | None, list[str]]:
    """Return the question in a row, or None and why the row is not one, or not one that `matchers` could reward."""
    reasons: list[str] = []
    parts: dict[str, Any] = {}
    for name, read in (("text", _prompt), ("answer", _reference), ("tools", _tools)):
        try:
            parts[name] = read(row, columns)
        except ValueError as error:
            reasons.append(str(error))
    if columns.environment_of is not None:
        try:
            columns.environment_of(row)
        except ValueError as error:
            reasons.append(str(error))
    if not reasons:
        reasons += _reference_faults(parts["answer"], matchers)
    return None if reasons else Question(id=id_of(number, row), columns=row, **parts), reasons


def _reference_faults(answer: Any, matchers: Matchers) -> Iterator[str]:
    """Yield why no completion can match the reference answer, once for each of the matchers that refuses it."""
    for name, check in matchers.items():
        try:
            check(answer)
        except ValueError as error:
            yield f"the reward {name}: {error}"


def id_of(number: int, row: Row) -> str:
    """Return what identifies a row: its column `id`, or its number."""
    return str(row["id"]) if row.get("id") is not None else str(number)


def same_id(own_id: str, number: int) -> str:
    """Return the sentence on an id that the row `number` has too."""
    return f'the id "{own_id}" is also that of row {number}'


def describe(source: str, fault: Fault) -> str:
    """Return the line of an error message on a row."""
    return f"{source}, row {fault.row}: {fault.reason}"


def check_answer_column(matchers: Matchers, rows: Rows, columns: Columns) -> None:
    if matchers and columns.answer is None and not columns.ends_with_answer and rows.values:
        missing = f"no column looks like the reference answer, which the reward {min(matchers)} needs"
        advice = _name_it("answer", ANSWER_COLUMNS, _all_columns(rows))
        raise UserError([f"{rows.source}: {missing}; {advice} {_list_columns(rows)}"])


def _name_it(role: str, usual: Sequence[str], known: Sequence[str]) -> str:
    """Return how to name a column: with its name, if only the case of its letters is not a usual one."""
    meant = next((name for name in known if name.strip().casefold() in usual), "NAME")
    return f"name it: data.{role}={meant}"


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


def _prompt(row: Row, columns: Columns) -> Text:
    """Return the prompt of a row. Raises `ValueError` with the reason if there is none that can be used."""
    name = columns.prompt
    text = _text(name, _present(row, name))
    if name == "instruction" and columns.answer != "input":
        text = alpaca_prompt(row) or text
    if not isinstance(text, str) and text[-1]["role"] == "assistant":
        if columns.ends_with_answer:
            text = text[:-1]  # the reference; in other columns it is the beginning of the answer
        elif len(text) == 1:
            raise ValueError(f'column "{name}" has an answer by the assistant, and no question before it')
    length = sum(len(message["content"].strip()) for message in as_messages(text, "user"))
    if not length:
        raise ValueError(f'column "{name}" is empty')
    if length > LONGEST_PROMPT:
        raise ValueError(f'column "{name}" has {length:,} characters, more than {LONGEST_PROMPT:,}')
    return text


def _reference(row: Row, columns: Columns) -> Any:
    """Return the reference answer of a row. Raises `ValueError` with the reason if it lacks one that others have."""
    if columns.answer is None and not columns.ends_with_answer:
        return None
    value = _present(row, columns.answer or columns.prompt)
    if not is_conversation(value) or ("content" not in value[-1] and "value" not in value[-1]):
        return value
    last = messages_of(value)[-1]
    if last["role"] != "assistant":
        raise ValueError(f'column "{columns.answer or columns.prompt}" does not end with an answer by the assistant')
    return last["content"]


def _tools(row: Row, columns: Columns) -> tuple[Mapping[str, Any], ...]:
    return tools_of(row)


def _present(row: Row, column: str) -> Any:
    value = _value(row, column)
    if value is ABSENT:
        raise ValueError(f'no column "{column}"{did_you_mean(column, list(row))}')
    if value is None:
        raise ValueError(f'column "{column}" is null')
    return value


def _text(name: str, value: Any) -> Text:
    try:
        return text_of(value)
    except ValueError as error:
        raise ValueError(f'column "{name}" {error}') from None


def other_reference(rows: Rows, columns: Columns) -> Iterator[str]:
    """Yield a note if the reference of verl's data is not that of the questions: functions of verl's form read it."""
    named = columns.answer or columns.prompt
    pairs = ((_value(row, VERL_REFERENCE), _value(row, named)) for row in rows.values.values())
    differ = sum(ABSENT not in (verl, ours) and verl != ours for verl, ours in pairs)
    if differ:
        yield (
            f"{rows.source}: in {counted(differ, 'row')} {VERL_REFERENCE} differs from {named}: reward functions of "
            f"verl's form get the former, all others the latter (data.answer={VERL_REFERENCE}: the former too)"
        )


def missing_columns(rows: Rows) -> Iterator[str]:
    """Yield a note for each column that some rows lack: this is allowed, but it may be a misspelt column name."""
    count = len(rows.values)
    for name in rows.columns:
        present = [number for number, row in rows.values.items() if name in row]
        if len(present) < count:
            only = f"only {len(present)} of {count} rows (the first is row {present[0]})"
            yield f'{rows.source}: {only} have a column "{name}"'
