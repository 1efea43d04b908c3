"""Run a script of TRL in a sandbox, with recorders in the place of its libraries, and read the trainer that it makes.

Where the script branches on what only the user's machine or the data would tell, it runs once with each answer; a
setting that depends on the answer is not known.
"""

import ast
import contextlib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from outdo.config.file import read_tables
from outdo.extras.convert.account import table_of
from outdo.extras.convert.expressions import decoded
from outdo.extras.convert.reading import Configuration, NotRunError, no_sandbox
from outdo.extras.convert.trainer_call import OF_THE_MACHINE, Trainer, reading_of_trainer
from outdo.extras.sandbox import Ending, Limits, open_sandbox
from outdo.utils.errors import UserError

RECORDER = Path(__file__).parent / "recorder"
MODULES = ("unknown", "libraries", "surroundings", "program")
"""Each imports only those before it."""

PROGRAM = """
import json, sys, types

def start():
    task = json.load(sys.stdin)
    for name, text in task.pop("recorder").items():
        sys.modules[name] = module = types.ModuleType(name)
        exec(compile(text, name, "exec"), module.__dict__)
    sys.modules[name].main(task)

start()
"""

LIMITS = Limits(seconds=20, wall_seconds=60, memory=1024, output=1 << 22)
MOST_RUNS = 24
LARGEST_FILE = 1 << 18
TEXT_FILES = (".yaml", ".yml", ".json", ".toml", ".txt", ".jinja", ".md")
"""The ends of the names of files that a script gets to read, as far as they lie near it."""
HOW = "Python ran the script in a sandbox up to GRPOTrainer, with recorders in the place of the libraries."


class ModuleRecord(BaseModel):
    """A file of the script, and the plain values that its names had at the end."""

    file: str
    values: dict[str, Any]


class TrainerRecord(BaseModel):
    """The trainer that a script makes."""

    kind: str = Field(alias="class")
    arguments: dict[str, Any]
    methods: list[str]
    line: int
    trained: list[tuple[int, str]]


class ScriptRecord(BaseModel):
    """What `recorder/program.py` prints. A script can print something else in its place: nothing of it is trusted."""

    asked: dict[str, tuple[int, Annotated[list[Any], Field(min_length=1)]]]
    error: str
    defaults: dict[str, str]
    wanted: list[str]
    trainer: TrainerRecord | None = None
    modules: dict[str, ModuleRecord] = {}


def recorded_script(
    path: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Configuration:
    """Return what a script asks of TRL's trainer, as it says it with these arguments and variables.

    Raises:
        NotRunError: it cannot be run here, or it made no trainer.
        UserError: it cannot be read, or is not Python.
    """
    text, tree = script_text(path)
    task = _task(path, text, tree, arguments, environment or {})
    first, others, open_questions = _explored(task)
    reading = _reading(first, path, text, tree)
    for question, record in others:
        _compare(reading, _reading(record, path, text, tree), question)
    for question, (line, _) in open_questions:
        reading.missing.append(f"what the script does in line {line} if {question} is otherwise")
    if first.defaults:
        shown = ", ".join(f"{name} = {value}" for name, value in first.defaults.items())
        reading.origins[shown] = "defaults of the script's own arguments"
    if absent := sorted({*first.wanted} - task["files"].keys()):
        reading.remarks.append(f"{', '.join(absent)}: the script looks for it, and it is not near the script")
    reading.how = HOW
    return reading


def script_text(path: Path) -> tuple[str, ast.Module]:
    """Return a script and its syntax tree; lines of IPython, such as `!pip install trl`, are left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            return text, ast.parse(text)
        except SyntaxError:
            lines = [each if each.lstrip()[:1] not in ("!", "%") else _passed(each) for each in text.splitlines()]
            return "\n".join(lines), ast.parse("\n".join(lines))
    except OSError as error:
        raise UserError([f"{path}: {error.strerror}"]) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError([f"{path}: not Python: {error}"]) from None


def _passed(line: str) -> str:
    return f"{line[: len(line) - len(line.lstrip())]}pass"


# ------------------------------------------------------------------------------------------------------------- running


def _task(
    path: Path, text: str, tree: ast.Module, arguments: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Any]:
    table = table_of("trl")
    modules = dict(_own_modules(path, tree))
    return {
        "recorder": {
            f"outdo.extras.convert.recorder.{name}": (RECORDER / f"{name}.py").read_text(encoding="utf-8")
            for name in MODULES
        },
        "path": str(path),
        "text": text,
        "modules": modules,
        "files": {},
        "tables": {},
        "arguments": list(arguments),
        "environment": dict(environment),
        "defaults": {**dict.fromkeys(table["others"].split()), **table["defaults"], "output_dir": "trainer_output"},
        "answers": {},
    }


def _explored(task: dict[str, Any]) -> tuple[ScriptRecord, list[tuple[str, ScriptRecord]], list[tuple[str, Any]]]:
    """Run a script with each answer to what it asks.

    Return the first run that made a trainer, the others with the question that they answer in another way, and the
    questions that are left after `MOST_RUNS`.
    """
    waiting = deque[tuple[str, dict[str, Any]]]([("", {})])
    records, failures = list[tuple[str, ScriptRecord]](), list[str]()
    questions: dict[str, Any] = {}
    runs = 0
    while waiting and runs < MOST_RUNS:
        question, answers = waiting.popleft()
        runs += 1
        record = _ran(task | {"answers": answers})
        for _ in range(MOST_RUNS):
            if not _put_wanted(task, record.wanted):
                break
            record = _ran(task | {"answers": answers})
        if record.trainer:
            records.append((question, record))
        failures.append(record.error)
        for name, (line, choices) in record.asked.items():
            waiting += [(name, answers | {name: choice}) for choice in choices[1:] if name not in questions]
            questions.setdefault(name, (line, choices))
    if not records:
        raise NotRunError(Path(task["path"]), next(filter(None, failures), "it makes no GRPOTrainer"))
    left = {question: questions[question] for question, _ in waiting}
    return records[0][1], records[1:], list(left.items())


def _ran(task: Mapping[str, Any]) -> ScriptRecord:
    path = Path(task["path"])
    try:
        outcome = open_sandbox().run(PROGRAM, json.dumps(task), LIMITS)
    except UserError as error:
        raise no_sandbox(path, error) from None
    if outcome.ending is not Ending.exited:
        reasons = {Ending.timeout: "it took too long", Ending.resource: "it used too much memory"}
        raise NotRunError(path, reasons.get(outcome.ending, "the sandbox failed"))
    try:
        return ScriptRecord.model_validate_json(outcome.stdout.splitlines()[-1])
    except (ValidationError, IndexError):
        reason = (outcome.stderr.strip().splitlines() or ["it ended without a record of its trainer"])[-1]
        raise NotRunError(path, reason) from None


def _reading(record: ScriptRecord, path: Path, text: str, tree: ast.Module) -> Configuration:
    assert record.trainer
    values = {module.file: module.values for module in record.modules.values()}
    try:
        arguments = {name: decoded(each) for name, each in record.trainer.arguments.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise NotRunError(path, "it ended without a record of its trainer") from None
    return reading_of_trainer(
        Trainer(
            arguments=arguments,
            kind=record.trainer.kind,
            methods=record.trainer.methods,
            line=record.trainer.line,
            trained=record.trainer.trained,
            path=path,
            text=text,
            tree=tree,
            values=values.get(str(path), {}),
        )
    )


def _compare(reading: Configuration, other: Configuration, question: str) -> None:
    """Take from a reading what another run of the script says in another way."""
    for name in [*reading.written, *(each for each in other.written if each not in reading.written)]:
        values = [each.written.get(name, each.unread.get(name, "unset")) for each in (reading, other)]
        if values[0] != values[1]:
            reading.written.pop(name, None)
            if name in OF_THE_MACHINE:
                reading.remarks.append(
                    f"{name} depends on {question}: outdo decides this by the machine that it runs on"
                )
                continue
            either = "" if question.startswith(("float(", "int(", "len(")) else f"{values[0]} or {values[1]}, which "
            reading.unread.setdefault(name, f"{either}depends on {question}")
    reading.unread |= {name: what for name, what in other.unread.items() if name not in reading.unread}
    reading.missing += [each for each in other.missing if each not in reading.missing]
    reading.remarks += [each for each in other.remarks if each not in reading.remarks]


# ---------------------------------------------------------------------------------------------------- files it names


def _own_modules(path: Path, tree: ast.Module) -> Iterator[tuple[str, tuple[str, str, bool]]]:
    """Yield the modules next to a script that it imports, directly or not: name, file, text, and if it is a package."""
    roots = [path.parent, *list(path.resolve().parents)[1:4]]
    roots += [root / "src" for root in roots]
    waiting, seen = list(_imported(tree, "")), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]] if "." in name else []
        for root in roots:
            base = root.joinpath(*name.split("."))
            file = next(
                (each for each in (base / "__init__.py", base.with_name(f"{base.name}.py")) if each.is_file()), None
            )
            if file is None or file.resolve() == path.resolve() or file.stat().st_size > LARGEST_FILE:
                continue
            try:
                text, inner = script_text(file)
            except UserError:
                continue
            is_package = file.name == "__init__.py"
            waiting += _imported(inner, name if is_package else name.rpartition(".")[0])
            yield name, (str(file), text, is_package)
            break


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names of the modules that a module of a package may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield from filter(None, [module, *(f"{module}.{alias.name}" for alias in node.names)])


def _put_wanted(task: dict[str, Any], wanted: Sequence[str]) -> bool:
    """Put files that the script asked for into its task: those near it or in this folder; return if there are any."""
    path, files, tables = Path(task["path"]), task["files"], task["tables"]
    near = [path.parent.resolve(), Path.cwd()]
    new = False
    for name in wanted:
        places = [place.resolve() for place in (Path(name), path.parent / name)]
        place = next((p for p in places if p.is_file() and any(p.is_relative_to(each) for each in near)), None)
        if name in files or place is None or place.suffix not in TEXT_FILES or place.stat().st_size > LARGEST_FILE:
            continue
        new, files[name] = True, place.read_text(encoding="utf-8", errors="replace")
        with contextlib.suppress(UserError, ValueError, RecursionError):
            tables[name] = tables[files[name]] = json.loads(json.dumps(dict(read_tables(place)), default=str))
    return new
