"""The rows that a script gives to a trainer: which files or data sets they are, and what the script makes of them."""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.extras.convert.reading import MARKED, OPEN, Configuration, data_source, unmarked
from outdo.extras.convert.recorder.source import Sources, function_of
from outdo.extras.convert.recorder.unknown import (
    RUN,
    NotPlainError,
    Origin,
    Unknown,
    called,
    effects_on,
    first_of,
    method_of,
    named,
    origin_of,
    plain,
    shown,
)

FORMATS = ("json", "csv", "parquet", "text", "arrow")
"""First arguments of `load_dataset` that read the files of `data_files`."""

NO_CHANGE = ("select_columns", "remove_columns", "with_format", "set_format", "flatten_indices", "cast", "cast_column")
SAVE = "save the changed rows as a .jsonl file"
ROW = "row"
"""What an unknown row is called, as in `row['question']`."""
COLUMN = re.compile(rf"{ROW}\[\s*['\"](\w+)['\"]\s*\]")


@dataclass(kw_only=True)
class ScriptRows:
    """Rows as they are on disk, and what the script makes of them."""

    path: Any = ""
    """One, several, or a table of them by their splits."""
    name: Any = None
    split: Any = None
    limit: int | None = None
    held_out: float | None = None
    """How many rows, or which share below 1, the script holds out."""
    is_held_out: bool = False
    """Whether these are the ones held out."""
    columns: dict[str, Any] = field(default_factory=dict)
    """The columns that it makes."""
    makers: list[Any] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """What a recipe cannot do to rows."""
    renamed: bool = False
    shuffled: bool = False
    splits: Sequence[str] = ()


def put_rows(reading: Configuration, trained: Any, evaluated: Any, sources: Sources) -> None:
    """Put the rows that a trainer trains on, and the held-out ones, which may be sets with names."""
    train = _read_rows(reading, "train_dataset", trained)
    if train is not None:
        reading.written["train_dataset"] = _source(train, "train")
        _put_limit(reading, "data.limit", [train])
        _put_columns(reading, train, sources)
    named_sets = evaluated if isinstance(evaluated, Mapping) else {"": evaluated}
    read = {name: _read_rows(reading, "eval_dataset", value) for name, value in named_sets.items()}
    held_out = {name: rows for name, rows in read.items() if rows is not None}
    if train is not None and train.held_out is not None and _divides(train, [*held_out.values()]):
        reading.written["data.eval_rows"] = train.held_out if train.held_out < 1 else math.ceil(train.held_out)
    else:
        _put_held_out(reading, held_out, train)
    _put_limit(reading, "eval.rows", [*held_out.values()])


def _put_limit(reading: Configuration, setting: str, sets: Sequence[ScriptRows]) -> None:
    """Put how many rows the script takes of each set."""
    limits = {rows.limit for rows in sets}
    if len(limits) > 1:
        reading.missing.append(f"{setting}: the script limits its sets in different ways, the recipe all alike")
    elif limits not in (set(), {None}):
        (reading.written[setting],) = limits


def _read_rows(reading: Configuration, name: str, value: Any) -> ScriptRows | None:
    """Return the rows that an argument of the trainer is, and say what a recipe cannot do to them; None if unknown."""
    if value is None:
        return None
    try:
        rows = _rows_of(value)
    except NotPlainError as error:
        reading.unread[name] = str(error)
        return None
    reading.remarks += [f"{name}: {change}" for change in rows.changes]
    return rows


def _divides(train: ScriptRows, held_out: Sequence[ScriptRows]) -> bool:
    """Return whether the script divides rows into those that it trains on and those that it evaluates, if any."""
    parts = [(rows.path, rows.name, rows.split, rows.held_out) for rows in (train, *held_out)]
    takes_rest = len(held_out) < 2 and all(rows.is_held_out for rows in held_out)
    return not train.is_held_out and takes_rest and parts[0] == parts[-1]


def _put_held_out(reading: Configuration, held_out: Mapping[str, ScriptRows], train: ScriptRows | None) -> None:
    """Put held-out rows that are not a part of those of the training, by the names of the sets."""
    if train is not None and train.held_out is not None:
        reading.missing.append("train_dataset: a part by train_test_split; save it as a .jsonl file")
    for name, rows in held_out.items():
        reading.missing += [f"{f'eval_dataset {name}'.rstrip()}: {what}" for what in _missing_of(rows, train)]
    sources = {name: _source(rows, "test") for name, rows in held_out.items()}
    if sources and "eval_dataset" not in reading.unread:
        reading.written["eval_dataset"] = sources[""] if [*sources] == [""] else sources


def _missing_of(rows: ScriptRows, train: ScriptRows | None) -> Iterator[str]:
    """Yield what a recipe cannot say of held-out rows beside those of the training."""
    if rows.held_out is not None:
        yield "a part by train_test_split; save it as a .jsonl file"
    elif train is not None and rows.changes != train.changes and _source(rows, "test") == _source(train, "train"):
        yield f"other rows of the data that the recipe trains on; {SAVE}"
    if train is not None and _parts(rows.columns) != _parts(train.columns):
        yield f"its columns are made in another way than those of the training; {SAVE}"


def _source(rows: ScriptRows, split: str) -> Any:
    """Return rows as `data.path` names them."""
    path = rows.path
    if isinstance(path, Mapping):
        path = path.get(str(rows.split or split).partition("[")[0], next(iter(path.values())))
    if isinstance(path, list):
        return [data_source(part, split) for part in path]
    return data_source(path, rows.split or ("train" if rows.held_out is not None else split), rows.name)


# ------------------------------------------------------------------------------------------------------- where they are


def _rows_of(value: Any) -> ScriptRows:
    """Return the rows that a value of the script is. Raises `NotPlainError` if that is not known."""
    node = origin_of(value) if isinstance(value, Unknown) else None
    if node is not None and node.kind in ("item", "get"):
        rows, key = _rows_of(node.of), node.key if node.kind == "item" else node.text
        if rows.splits and isinstance(key, int):
            rows.split, rows.splits = rows.splits[key], ()
        elif rows.held_out is not None:
            rows.is_held_out = key == "test"
        elif isinstance(key, str):
            rows.split = key
        else:
            raise NotPlainError(shown(value))
    elif called(value):
        rows = _called(value)
    else:
        raise NotPlainError(shown(value))
    lines = [line for line, how in effects_on(value) if how[-2:] != "()"]  # what a method returns is followed by itself
    rows.changes += [f"line {line}: the script changes the rows; {SAVE}" for line in lines]
    return rows


def _called(value: Any) -> ScriptRows:
    if called(value) in ("load_dataset", "load_from_disk"):
        return _loaded(value)
    if method_of(value) is None:
        raise NotPlainError(shown(value))
    rows = _rows_of(method_of(value))
    _apply(rows, value)
    return rows


def _loaded(call: Any) -> ScriptRows:
    positions = ("path", "name", "data_dir", "data_files", "split") if called(call) == "load_dataset" else ("path",)
    given = named(call, *positions)
    path, name, files, split, revision, folder = (
        plain(given.get(argument)) for argument in ("path", "name", "data_files", "split", "revision", "data_dir")
    )
    if files is not None and path not in FORMATS:
        raise NotPlainError(shown(call))
    rows = ScriptRows(path=path, name=name) if files is None else ScriptRows(path=files)
    if revision is not None:
        rows.path, rows.name = f"{data_source(path, '', name).rstrip(':')}@{revision}", None
    rows.splits, rows.split = (split, None) if isinstance(split, list) else ((), split)
    part_of_file = files is not None and "[" in str(split)
    if part_of_file or folder is not None:
        line = origin_of(call).line
        rows.changes.append(f"line {line}: {shown(call)}: a recipe has no data_dir, and takes no part of a file")
    return rows


def _apply(rows: ScriptRows, call: Any) -> None:
    """Apply a method of a data set to rows."""
    first, method, line = first_of(call), called(call), origin_of(call).line
    takes = len(first) if isinstance(first, range) and first == range(len(first)) else first
    if method in METHODS:
        METHODS[method](rows, call)
    elif method in ("select", "take") and isinstance(takes, int):
        rows.limit = takes if rows.limit is None else min(rows.limit, takes)
        if rows.shuffled:
            rows.changes.append(f"line {line}: the script takes {takes} rows by chance, the recipe the first ones")
    elif method not in NO_CHANGE:
        rows.changes.append(
            f"line {line}: the script changes the rows ({method}), the recipe takes all of them as they are; {SAVE}"
        )


def _rename(rows: ScriptRows, call: Any) -> None:
    first = first_of(call)
    names = plain(list(named(call, "original_column_name", "new_column_name").values()))
    pairs = plain(first) if isinstance(first, Mapping) else {names[0]: names[1]}
    rows.renamed = True
    for old, new in pairs.items():
        rows.columns[new] = rows.columns.pop(old, Unknown(Origin("text", ROW))[old])


def _hold_out(rows: ScriptRows, call: Any) -> None:
    given = named(call, "test_size", "train_size")
    test, train = plain(given.get("test_size")), plain(given.get("train_size"))
    if train is not None and (test is not None or train >= 1):  # not all rows are used, or their number is not known
        raise NotPlainError(shown(call))
    rows.held_out = float(test or (0.25 if train is None else round(1 - train, 6)))


def _shuffle(rows: ScriptRows, _: Any) -> None:
    rows.shuffled = True


def _map(rows: ScriptRows, call: Any) -> None:
    function = first_of(call)
    rows.makers.append(function)
    made = None if origin_of(call).keywords.get("batched") is not None else _made_row(function)
    if made is None:
        rows.columns["prompt"] = Unknown(
            Origin("text", f"what {shown(function)} (line {origin_of(call).line}) makes of the rows")
        )
        return
    before = dict(rows.columns)
    rows.columns |= {name: _of_original(value, before) for name, value in made.items()}


def _made_row(function: Any) -> dict[str, Any] | None:
    """Return what a function of the script makes of an unknown row. A column that depends on the row is unknown."""
    if function_of(function) is None:
        return None
    asked, answers = RUN.asked, RUN.answers
    RUN.asked = {}
    try:
        made = [_made(function)]
        for question, (_, choices) in list(RUN.asked.items()):
            RUN.answers = {**answers, question: choices[1]}
            made.append(_made(function))
    except Exception:
        return None
    finally:
        RUN.asked, RUN.answers = asked, answers
    names = dict.fromkeys(name for row in made for name in row)
    return {name: _agreed([row.get(name) for row in made]) for name in names}


def _made(function: Any) -> dict[str, Any]:
    row = Unknown(Origin("text", ROW))
    made = function(row)
    if made is row:  # in which the function has set columns
        return {ast.literal_eval(key): value for (kind, key), value in origin_of(row).parts.items() if kind == "item"}
    return {unmarked(str(name)): value for name, value in dict(made).items()}


def _agreed(values: list[Any]) -> Any:
    """Return the value that all have, or else what the longest of them says."""
    if all(_parts(value) == _parts(values[0]) for value in values):
        return values[0]
    return Unknown(Origin("text", max(map(shown, values), key=len)))


def _parts(value: Any) -> Any:
    """Return what a value is made of, to compare it."""
    if isinstance(value, Unknown):
        node = origin_of(value)
        return node.kind, node.text, *map(_parts, (node.of, node.key, node.arguments, node.keywords))
    if isinstance(value, Mapping):
        return {name: _parts(item) for name, item in value.items()}
    return [_parts(item) for item in value] if isinstance(value, list | tuple) else value


def _of_original(value: Any, before: Mapping[str, Any]) -> Any:
    """Return a value that is made of a row as one made of the row on disk."""
    column = _column_of(value)
    if column is not None:
        return before.get(column, value)
    if isinstance(value, list):
        return [_of_original(item, before) for item in value]
    return {n: _of_original(item, before) for n, item in value.items()} if isinstance(value, Mapping) else value


def _column_of(value: Any) -> str | None:
    """Return the name of the column that a value is, unchanged: `row["question"]`, `row.get("question")`."""
    if called(value) == "get" and len(origin_of(value).arguments) == 1:
        row, key = method_of(value), first_of(value)
    elif isinstance(value, Unknown) and origin_of(value).kind in ("item", "get"):
        node = origin_of(value)
        row, key = node.of, node.key if node.kind == "item" else node.text
    else:
        return None
    return str(key) if isinstance(row, Unknown) and shown(row) == ROW else None


METHODS: Mapping[str, Callable[[ScriptRows, Any], None]] = {
    "map": _map,
    "rename_column": _rename,
    "rename_columns": _rename,
    "train_test_split": _hold_out,
    "shuffle": _shuffle,
}


# ------------------------------------------------------------------------------------------------ what they are made of


def _put_columns(reading: Configuration, rows: ScriptRows, sources: Sources) -> None:
    """Put where prompts and answers are in the rows on disk, and what rewards get."""
    made = dict(rows.columns)
    prompt = made.pop("prompt", None)
    if prompt is not None:
        _put_prompt(reading, prompt, sources)
    columns = {name: _column_of(value) for name, value in made.items() if _column_of(value) != name}
    if not columns:
        return
    maker = function_of(rows.makers[0]) if len(rows.makers) == 1 else None
    if None not in columns.values():
        sources.rows = f"lambda row: {{{', '.join(f'{name!r}: row[{column!r}]' for name, column in columns.items())}}}"
    elif maker is not None and not rows.renamed and (code := sources.expression(maker)):
        sources.rows = code
    else:
        reading.missing += [f"the column {name}: {shown(made[name])}; {SAVE}" for name in columns]


def _put_prompt(reading: Configuration, prompt: Any, sources: Sources) -> None:
    """Put the column of the prompt, and the system message or the template around it."""
    column = _column_of(prompt)
    if called(prompt) == "apply_chat_template":
        _put_rendered(reading, prompt)
    elif isinstance(prompt, list):
        sources.messages = True
        _put_messages(reading, prompt)
    elif column is not None:
        reading.written["data.prompt"] = column
    elif isinstance(prompt, str) and len(parts := MARKED.split(prompt)) == 3 and (match := COLUMN.fullmatch(parts[1])):
        reading.written["data.prompt"] = match[1]
        reading.written["data.template"] = f"{parts[0]}{{prompt}}{parts[2]}"
    else:
        reading.missing.append(f"data.prompt: {shown(prompt)}; {SAVE}")


def _put_rendered(reading: Configuration, prompt: Any) -> None:
    """Put a prompt that the script renders by the chat template."""
    given = named(prompt, "conversation")
    if given.get("tokenize", True) is not False:
        reading.missing.append(f"data.prompt: {shown(prompt)} makes token ids")
        return
    try:
        options = {n: v for n, v in given.items() if n not in ("conversation", "tokenize", "add_generation_prompt")}
        if options:
            reading.written["data.template"] = plain(options)
    except NotPlainError as error:
        reading.missing.append(f"data.template: {error}")
    _put_messages(reading, given.get("conversation"))


def _put_messages(reading: Configuration, messages: Any) -> None:
    """Put messages that are an optional system message and a column."""
    *before, last = messages if isinstance(messages, list) and messages else [None]
    column, system = _column_of(_content(last, "user")), _content(before[0], "system") if len(before) == 1 else None
    has_system = isinstance(system, str) and OPEN not in system
    if column is None or (before and not has_system):
        reading.missing.append(f"data.prompt: {shown(messages)}; {SAVE}")
        return
    reading.written["data.prompt"] = column
    if has_system:
        reading.written["data.system"] = system


def _content(message: Any, role: str) -> Any:
    """Return the content of a message of a role; None for anything else."""
    return message.get("content") if isinstance(message, Mapping) and message.get("role") == role else None
