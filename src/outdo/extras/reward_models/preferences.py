"""Read preferences and rated answers, to train a reward model on."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from outdo.data.files import Fault, Rows, read_rows, shorten
from outdo.data.formats import (
    CONVERSATION_COLUMNS,
    NOT_MESSAGES,
    Row,
    Text,
    as_messages,
    is_conversation,
    messages_of,
    truth_of,
)
from outdo.data.questions import PROMPT_COLUMNS, Columns, to_questions
from outdo.extras.sft.sft_formats import split_common
from outdo.rewards.comparisons import Comparison, comparisons_of
from outdo.utils.errors import UserError, did_you_mean

Kind = Literal["pairs", "scored", "regression"]
ROLES: Mapping[Kind, tuple[str, ...]] = {
    "pairs": ("prompt", "chosen", "rejected"),
    "scored": ("prompt", "completion", "reward"),
    "regression": ("prompt", "completion", "reward"),
}
NAMES: Mapping[str, tuple[str, ...]] = {  # the names by which each column is found, the most likely first
    "prompt": PROMPT_COLUMNS,
    "chosen": ("chosen", "preferred", "better", "winner"),
    "rejected": ("rejected", "dispreferred", "worse", "loser"),
    "completion": ("completion", "response", "answer", "output", "text"),
    "reward": ("reward", "score", "rating", "value", "label"),
}


def detect_kind(rows: Rows) -> Kind:
    """Return "scored" if a file has rated answers and no pairs, else "pairs"."""
    return "scored" if _has(rows, "completion", "reward") and not _has(rows, "chosen", "rejected") else "pairs"


def describe_format(rows: Rows, kind: Kind, columns: Mapping[str, str | None]) -> str:
    """Return the name of a file's format, as in TRL's documentation."""
    if kind != "pairs":
        return "unpaired preference" if "label" in rows.columns else "rated answers"
    return "preference, implicit prompt" if _has_implicit_prompts(rows, kind, columns) else "preference"


def comparisons_from(path: str, kind: Kind, columns: Mapping[str, str | None]) -> list[Comparison]:
    """Read the comparisons of a file or data set: see `comparisons_in`."""
    return comparisons_in(read_rows(path), kind, columns)


def comparisons_in(rows: Rows, kind: Kind, columns: Mapping[str, str | None]) -> list[Comparison]:
    """Return the comparisons in the rows of a file. Raises `UserError` with every faulty row, and why.

    An answer is text, or chat messages: one by the assistant, alone or after the messages of the prompt. Pairs without
    a column for the prompt have it in both answers, which begin with it.
    """
    path = rows.source
    implicit = _has_implicit_prompts(rows, kind, columns)
    names = _columns(rows, kind, {**columns, "prompt": "chosen"} if implicit else columns)
    if implicit:
        rows, names = _with_explicit_prompts(rows, names), {**names, "prompt": "prompt"}
    prompts, faults = _prompts(rows, names["prompt"])
    answers: list[tuple[Text, Any, Any]] = []
    for number, row in rows.values.items():
        prompt = prompts.get(number, "")
        first, second = (_value(row, names[role], role, prompt) for role in ROLES[kind][1:])
        faults += [
            f"{path}, row {number}: {fault.reason}" for fault in (first, second) if isinstance(fault, ValueFault)
        ]
        answers.append((prompt, first, second))
    if faults:
        raise UserError(shorten(faults, source=path))
    if kind == "pairs":
        return [Comparison(prompt=prompt, completions=tuple(pair), values=(1.0, 0.0)) for prompt, *pair in answers]
    return comparisons_of(answers)


def _has_implicit_prompts(rows: Rows, kind: Kind, columns: Mapping[str, str | None]) -> bool:
    prompt = columns.get("prompt") or next((name for name in PROMPT_COLUMNS if name in rows.columns), None)
    return kind == "pairs" and prompt in (None, *CONVERSATION_COLUMNS) and _has(rows, "chosen", "rejected")


def _has(rows: Rows, *roles: str) -> bool:
    return all(any(name in rows.columns for name in NAMES[role]) for role in roles)


def _with_explicit_prompts(rows: Rows, names: Mapping[str, str]) -> Rows:
    """Return the rows with what both answers begin with in a column of its own, `prompt`."""
    values: dict[int, Row] = {}
    faults = list(rows.faults)
    for number, row in rows.values.items():
        try:
            prompt, chosen, rejected = _split(row, names["chosen"], names["rejected"])
            values[number] = {"prompt": prompt, names["chosen"]: chosen, names["rejected"]: rejected}
        except ValueError as error:
            faults.append(Fault(number, str(error)))
    return replace(rows, values=values, faults=tuple(faults))


def _split(row: Row, chosen: str, rejected: str) -> tuple[Text, Any, Any]:
    """Return the common prompt of two answers, and the rest of each. Raises `ValueError` if there is none."""
    pair = [row.get(chosen), row.get(rejected)]
    if all(isinstance(text, str) for text in pair):
        return split_common(*map(str, pair))
    if not all(map(is_conversation, pair)):
        raise ValueError(f'the columns "{chosen}" and "{rejected}" are neither two texts nor two conversations')
    better, worse = map(messages_of, pair)
    if better[:-1] != worse[:-1] or not better[:-1]:
        raise ValueError(f'the columns "{chosen}" and "{rejected}" differ in more than their last message')
    return better[:-1], better[-1:], worse[-1:]


def _prompts(rows: Rows, name: str) -> tuple[dict[int, Text], list[str]]:
    """Return the prompts by row number, and the faults of rows and prompts. Many rows may have the same `id`."""
    bare = {number: {key: row[key] for key in row if key != "id"} for number, row in rows.values.items()}
    try:
        checked = to_questions(replace(rows, values=bare), Columns(prompt=name, answer=None))
    except UserError as error:
        usable = {number: _usable(row[name]) for number, row in bare.items() if isinstance(row.get(name), str | list)}
        return usable, list(error.problems)
    return {int(question.id): question.text for question in checked}, []


def _usable(value: Any) -> Text:
    """Return a prompt with which answers can be compared, though it may have faults."""
    try:
        return value if isinstance(value, str) else messages_of(value)
    except ValueError:
        return ""


def _columns(rows: Rows, kind: Kind, named: Mapping[str, str | None]) -> dict[str, str]:
    """Return the column of each role: the one that is named, else the most likely of those that exist."""
    columns: dict[str, str] = {}
    mistakes: list[str] = []
    listed = f"(columns: {', '.join(rows.columns[:20])})"
    for role in ROLES[kind]:
        name = named.get(role) or next((column for column in NAMES[role] if column in rows.columns), None)
        columns[role] = name or ""
        if name is None:
            mistakes.append(f"{rows.source}: no column looks like the {role}; name it: --{role} NAME {listed}")
        elif name not in rows.columns:
            near = did_you_mean(name, rows.columns)
            mistakes.append(f'{rows.source}: no column "{name}" (given by --{role}){near} {listed}')
    if mistakes and rows.values:
        raise UserError([*mistakes, *_other_kind(rows, kind)])
    return columns


def _other_kind(rows: Rows, kind: Kind) -> Iterator[str]:
    """Yield a hint if the file has the columns of another kind of training."""
    other: Kind = "scored" if kind == "pairs" else "pairs"
    if all(any(name in rows.columns for name in NAMES[role]) for role in ROLES[other]):
        yield f"{rows.source}: it has the columns of --kind {other}"


@dataclass(frozen=True, slots=True)
class ValueFault:
    """Why a value cannot be used."""

    reason: str


def _value(row: Mapping[str, Any], name: str, role: str, prompt: Text) -> str | float | ValueFault:
    """Return the value of a column: a number for a reward, else text."""
    if row.get(name) is None:
        return ValueFault(
            f'column "{name}" is null' if name in row else f'no column "{name}"{did_you_mean(name, list(row))}'
        )
    return _number(name, row[name]) if role == "reward" else _answer(name, row[name], prompt)


def _number(name: str, value: Any) -> float | ValueFault:
    if isinstance(value, str) and (truth := truth_of(value)) is not None:  # a CSV file has only text
        return float(truth)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    return (
        number
        if math.isfinite(number)
        else ValueFault(f'column "{name}" holds {str(value)[:40]!r}, which is not a number')
    )


def _answer(name: str, value: Any, prompt: Text) -> str | ValueFault:
    if isinstance(value, str):
        return value
    try:
        messages = messages_of(value)
    except ValueError as error:
        if str(error) != NOT_MESSAGES:
            return ValueFault(f'column "{name}" {error}')
        messages = ()
    if messages and messages[-1]["role"] == "assistant":
        if messages[-1].get("tool_calls"):
            return ValueFault(f'column "{name}" ends with a call of tools, and a reward model reads text')
        if messages[:-1] in ((), as_messages(prompt, "user")):
            return messages[-1]["content"]
        return ValueFault(f'column "{name}" has other messages before its last one than the prompt')
    return ValueFault(f'column "{name}" is neither text nor chat messages that end with one by the assistant')
