"""The rows that a script gives to a trainer: which files or data sets they are, and what the script makes of them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.extras.convert.conversion import data_source
from outdo.extras.convert.expressions import Call, Expression, Function, NotPlainError, PartOf, Unread, plain, shown
from outdo.extras.convert.reading import Configuration
from outdo.extras.convert.script_source import Sources

FORMATS = ("json", "csv", "parquet", "text", "arrow")
"""First arguments of `load_dataset` that read the files of `data_files`."""

NO_CHANGE = ("select_columns", "with_format", "set_format", "flatten_indices", "cast", "cast_column")
SAVE = "save the changed rows as a .jsonl file"
COLUMN = re.compile(r"row\[\s*['\"](\w+)['\"]\s*\]")


@dataclass(kw_only=True)
class ScriptRows:
    """ScriptRows as they are on disk, and what the script makes of them."""

    path: Any = ""
    name: Any = None
    split: Any = None
    limit: int | None = None
    held_out: float | None = None
    """How many rows, or which share below 1, the script holds out."""
    is_held_out: bool = False
    """Whether these are the ones held out."""
    columns: dict[str, Expression] = field(default_factory=dict)
    """The columns that it makes."""
    makers: list[Expression] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """What a recipe cannot do to rows."""
    renamed: bool = False
    shuffled: bool = False
    splits: Sequence[str] = ()


def put_rows(reading: Configuration, name: str, value: Expression, sources: Sources) -> None:
    """Put the rows `train_dataset` or `eval_dataset` of a trainer."""
    try:
        if isinstance(value, Mapping):  # held-out sets with names
            reading.written[name] = {key: source(rows_of(each), "test") for key, each in value.items()}
            return
        rows = rows_of(value)
        if not rows.is_held_out:
            reading.written[name] = source(rows, "train" if name == "train_dataset" else "test")
    except NotPlainError as error:
        reading.unread[name] = str(error)
        return
    reading.remarks += [f"{name}: {each}" for each in rows.changes]
    if rows.held_out is not None:
        reading.written["data.eval_rows"] = rows.held_out if rows.held_out < 1 else math.ceil(rows.held_out)
    if rows.limit is not None:
        reading.written["data.limit" if name == "train_dataset" else "eval.rows"] = rows.limit
    if name == "train_dataset":
        _put_columns(reading, rows, sources)


def source(rows: ScriptRows, split: str) -> Any:
    """Return rows as `data.path` names them."""
    if isinstance(rows.path, list):
        return [data_source(each, split) if isinstance(each, str) else source(each, split) for each in rows.path]
    return data_source(rows.path, rows.split or ("train" if rows.held_out is not None else split), rows.name)


# ------------------------------------------------------------------------------------------------------- where they are


def rows_of(value: Expression) -> ScriptRows:
    """Return the rows that an expression makes. Raises `NotPlainError` if that is not known."""
    if isinstance(value, PartOf):
        rows = rows_of(value.of)
        rows.changes += _set(value)
        if rows.splits and isinstance(value.key, int):
            rows.split, rows.splits = rows.splits[value.key], ()
        elif rows.held_out is not None:
            rows.is_held_out = value.key == "test"
        elif isinstance(value.key, str):
            rows.split = value.key
        return rows
    if not isinstance(value, Call):
        raise NotPlainError(shown(value))
    rows = _called(value)
    rows.changes += _set(value)
    return rows


def _set(value: PartOf | Call) -> list[str]:
    """Return what a script sets in the rows; what a method returns is followed by itself."""
    lines = [line for line, how in value.effects if how[-2:] != "()"]
    return [f"line {line}: the script changes the rows; {SAVE}" for line in lines]


def _called(value: Call) -> ScriptRows:
    if value.name in ("load_dataset", "load_from_disk"):
        return _loaded(value)
    if value.name in ("from_json", "from_csv", "from_parquet") and value.arguments:
        return ScriptRows(path=plain(value.arguments[0]))
    if value.name in ("concatenate_datasets", "interleave_datasets") and value.arguments:
        parts = [rows_of(each) for each in value.arguments[0]]
        rows = ScriptRows(path=parts, changes=[change for each in parts for change in each.changes])
        if any(each.columns for each in parts):
            raise NotPlainError(shown(value))
        return rows
    if not isinstance(value.function, PartOf):
        raise NotPlainError(shown(value))
    rows = rows_of(value.owner)
    _apply(rows, value)
    return rows


def _loaded(call: Call) -> ScriptRows:
    positions = ("path", "name", "data_dir", "data_files", "split") if call.name == "load_dataset" else ("path",)
    given = call.named(*positions)
    path, name, files, split, revision, folder = (
        plain(given.get(each)) for each in ("path", "name", "data_files", "split", "revision", "data_dir")
    )
    if files is not None and path not in FORMATS:
        raise NotPlainError(shown(call))
    rows = ScriptRows(path=path, name=name) if files is None else ScriptRows(path=_file_of_split(files, split))
    if revision is not None:
        rows.path, rows.name = f"{data_source(path, '', name).rstrip(':')}@{revision}", None
    rows.splits, rows.split = (split, None) if isinstance(split, list) else ((), split)
    part_of_file = files is not None and "[" in str(split)
    if part_of_file or folder is not None:
        rows.changes.append(f"line {call.line}: {shown(call)}: a recipe has no data_dir, and takes no part of a file")
    return rows


def _file_of_split(files: Any, split: Any) -> Any:
    """Return the files of a split: `data_files` may be a table of them."""
    return files.get(split or "train", next(iter(files.values()))) if isinstance(files, Mapping) else files


def _apply(rows: ScriptRows, call: Call) -> None:
    """Apply a method of a data set to rows."""
    first = call.arguments[0] if call.arguments else None
    takes = len(first) if isinstance(first, range) and first.start == 0 and first.step == 1 else first
    if call.name in METHODS:
        METHODS[call.name](rows, call)
    elif call.name in ("select", "take") and isinstance(takes, int):
        rows.limit = takes if rows.limit is None else min(rows.limit, takes)
        if rows.shuffled:
            rows.changes.append(f"line {call.line}: the script takes {takes} rows by chance, the recipe the first ones")
    elif call.name not in NO_CHANGE:
        rows.changes.append(
            f"line {call.line}: the script changes the rows ({call.name}), the recipe takes all of them as they are; "
            f"{SAVE}"
        )


def _rename(rows: ScriptRows, call: Call) -> None:
    first = call.arguments[0] if call.arguments else None
    names = plain(list(call.named("original_column_name", "new_column_name").values()))
    pairs = plain(first) if isinstance(first, Mapping) else {names[0]: names[1]}
    rows.renamed = True
    for old, new in pairs.items():
        rows.columns[new] = rows.columns.pop(old, PartOf(of=Unread(shown="row"), key=old, shown=f"row['{old}']"))


def _remove(rows: ScriptRows, call: Call) -> None:
    gone = plain(call.named("column_names").get("column_names", []))
    for name in gone if isinstance(gone, list) else [gone]:
        rows.columns.pop(name, None)


def _hold_out(rows: ScriptRows, call: Call) -> None:
    rows.held_out = float(plain(call.named("test_size").get("test_size", 0.25)))


def _shuffle(rows: ScriptRows, _: Call) -> None:
    rows.shuffled = True


def _map(rows: ScriptRows, call: Call) -> None:
    rows.makers.append(call.arguments[0] if call.arguments else None)
    if not isinstance(call.makes, Mapping) or call.keywords.get("batched"):
        rows.columns["prompt"] = Unread(shown=f"what {shown(rows.makers[-1])} (line {call.line}) makes of the rows")
        return
    before = dict(rows.columns)
    rows.columns |= {name: _of_original(value, before) for name, value in call.makes.items()}


def _of_original(value: Expression, before: Mapping[str, Expression]) -> Expression:
    """Return an expression of a row as one of the row on disk."""
    column = column_of(value)
    if column is not None:
        return before.get(column, value)
    if isinstance(value, list):
        return [_of_original(each, before) for each in value]
    return {n: _of_original(each, before) for n, each in value.items()} if isinstance(value, Mapping) else value


def column_of(value: Expression) -> str | None:
    """Return the name of the column that an expression is, unchanged."""
    if isinstance(value, Call) and value.name == "get" and len(value.arguments) == 1:  # row.get("question")
        value = PartOf(of=value.owner, key=value.arguments[0], shown=value.shown)
    row = value.of if isinstance(value, PartOf) else None
    return str(value.key) if isinstance(value, PartOf) and isinstance(row, Unread) and row.shown == "row" else None


METHODS: Mapping[str, Callable[[ScriptRows, Call], None]] = {
    "map": _map,
    "rename_column": _rename,
    "rename_columns": _rename,
    "remove_columns": _remove,
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
    changed = {name: value for name, value in made.items() if column_of(value) != name}
    if not changed:
        return
    maker = rows.makers[0] if len(rows.makers) == 1 else None
    columns = {name: column_of(value) for name, value in changed.items()}
    if None not in columns.values():
        sources.rows = f"lambda row: {{{', '.join(f'{name!r}: row[{column!r}]' for name, column in columns.items())}}}"
    elif isinstance(maker, Function) and not rows.renamed and (code := sources.expression(maker)):
        sources.rows = code
    else:
        for name, value in changed.items():
            reading.missing.append(f"the column {name}: {shown(value)}; {SAVE}")


def _put_prompt(reading: Configuration, prompt: Expression, sources: Sources) -> None:
    """Put the column of the prompt, and the system message or the template around it."""
    if isinstance(prompt, Call) and prompt.name == "apply_chat_template":
        given = prompt.named("conversation")
        if given.get("tokenize", True) is not False:
            reading.missing.append(f"data.prompt: {shown(prompt)} makes token ids")
            return
        options = {n: v for n, v in given.items() if n not in ("conversation", "tokenize", "add_generation_prompt")}
        if options:
            try:
                reading.written["data.template"] = plain(options)
            except NotPlainError as error:
                reading.missing.append(f"data.template: {error}")
        _put_messages(reading, given.get("conversation"))
    elif isinstance(prompt, list):
        sources.messages = True
        _put_messages(reading, prompt)
    elif (column := column_of(prompt)) is not None:
        reading.written["data.prompt"] = column
    elif isinstance(prompt, Unread) and len(prompt.template) == 3 and (match := COLUMN.fullmatch(prompt.template[1])):
        reading.written["data.prompt"] = match[1]
        reading.written["data.template"] = f"{prompt.template[0]}{{prompt}}{prompt.template[2]}"
    else:
        reading.missing.append(f"data.prompt: {shown(prompt)}; {SAVE}")


def _put_messages(reading: Configuration, messages: Expression) -> None:
    """Put messages that are an optional system message and a column."""
    *before, last = messages if isinstance(messages, list) and messages else [None]
    content = column_of(last.get("content")) if isinstance(last, Mapping) and last.get("role") == "user" else None
    system = before[0] if len(before) == 1 and isinstance(before[0], Mapping) else {}
    is_system = system.get("role") == "system" and isinstance(system.get("content"), str)
    if content is None or (before and not is_system):
        reading.missing.append(f"data.prompt: {shown(messages)}; {SAVE}")
        return
    reading.written["data.prompt"] = content
    if is_system:
        reading.written["data.system"] = system["content"]
