"""Run a script of TRL in a sandbox, with recorders in the place of its libraries, and read the trainer that it makes.

Where the script branches on what only the user's machine or the data would tell, it runs once with each answer; a
setting that depends on the answer is not known.
"""

import ast
import contextlib
import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from outdo.config.file import read_tables
from outdo.extras.convert.near import near_files
from outdo.extras.convert.reading import Configuration, NotRunError, no_sandbox
from outdo.extras.convert.recorder.trainer import OF_THE_MACHINE
from outdo.extras.convert.trl_trainers import GRPO, WITH_TEACHERS, table_of_trainer
from outdo.extras.sandbox import Ending, Limits, open_sandbox
from outdo.utils.errors import UserError

FOLDER, PACKAGE = Path(__file__).parent, "outdo.extras.convert"
RECORDER = ("unknown", "libraries", "surroundings", "source", "functions", "rows", "trainer", "program")
MODULES = ("reading", "words", *(f"recorder.{name}" for name in RECORDER))
"""What is sent into the sandbox; a module imports only those before it."""

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
LIBRARIES = ("trl", "transformers", "datasets", "peft", "unsloth", "vllm", "torch", "accelerate")
"""Modules that are recorded even if a file near the script has their name."""
HOW = "Python ran the script in a sandbox up to {trainer}, with recorders in the place of the libraries."


class ScriptRecord(BaseModel):
    """What `recorder/program.py` prints. A script can print something else in its place: nothing of it is trusted."""

    asked: dict[str, tuple[int, Annotated[list[Any], Field(min_length=1)]]]
    error: str
    reading: Configuration | None = None


def recorded_script(
    path: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Configuration:
    """Return what a script asks of TRL's trainer, as it says it with these arguments and variables.

    Raises:
        NotRunError: it cannot be run here, or it made no trainer.
        UserError: it cannot be read, or is not Python.
    """
    task = _task(path, _script_text(path), arguments, environment or {})
    ((_, reading), *others), open_questions = _explored(task)
    for question, other in others:
        _compare(reading, other, question)
    for question, (line, _) in open_questions:
        reading.missing.append(f"what the script does in line {line} if {question} is otherwise")
    reading.how = HOW.format(trainer=reading.trainer)
    return reading


def _script_text(path: Path) -> str:
    """Return a script; lines of IPython, such as `!pip install trl`, are left out of one that is not Python."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            ast.parse(text)
        except SyntaxError:
            text = "\n".join(_passed(line) if line.lstrip()[:1] in ("!", "%") else line for line in text.splitlines())
            ast.parse(text)
    except OSError as error:
        raise UserError([f"{path}: {error.strerror}"]) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError([f"{path}: not Python: {error}"]) from None
    return text


def _passed(line: str) -> str:
    return f"{line[: len(line) - len(line.lstrip())]}pass"


# ------------------------------------------------------------------------------------------------------------- running


def _task(path: Path, text: str, arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    near = near_files(path)
    return {
        "recorder": {
            f"{PACKAGE}.{name}": (FOLDER / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
            for name in MODULES
        },
        "folder": str(Path.cwd()),
        "path": str(path),
        "text": text,
        "modules": _own_modules(path, near),
        "files": {str(file): text for file, text in near.items()},
        "tables": dict(_tables(near)),
        "arguments": list(arguments),
        "environment": dict(environment),
        "defaults": {trainer.replace("Trainer", "Config"): _defaults(trainer) for trainer in (GRPO, *WITH_TEACHERS)},
        "answers": {},
    }


def _defaults(trainer: str) -> dict[str, Any]:
    table = table_of_trainer(trainer)
    return {**dict.fromkeys(table["others"].split()), **table["defaults"], "output_dir": "trainer_output"}


def _explored(task: dict[str, Any]) -> tuple[list[tuple[str, Configuration]], list[tuple[str, Any]]]:
    """Run a script with each answer to what it asks.

    Return the readings of the runs that made a trainer, each with the question that it answers in another way than the
    first, and the questions that are left after `MOST_RUNS`.
    """
    waiting = deque[tuple[str, dict[str, Any]]]([("", {})])
    readings, failures = list[tuple[str, Configuration]](), list[str]()
    questions: dict[str, Any] = {}
    runs = 0
    while waiting and runs < MOST_RUNS:
        question, answers = waiting.popleft()
        runs += 1
        record = _ran(task | {"answers": answers})
        if record.reading is not None:
            readings.append((question, record.reading))
        failures.append(record.error)
        for name, (line, choices) in record.asked.items():
            waiting += [(name, answers | {name: choice}) for choice in choices[1:] if name not in questions]
            questions.setdefault(name, (line, choices))
    if not readings:
        raise NotRunError(
            Path(task["path"]), next(filter(None, failures), "it makes no trainer of TRL that outdo knows")
        )
    return readings, [(question, questions[question]) for question, _ in waiting]


def _ran(task: Mapping[str, Any]) -> ScriptRecord:
    path = Path(task["path"])
    try:
        outcome = open_sandbox().run(PROGRAM, json.dumps(task), LIMITS)
    except UserError as error:
        raise no_sandbox(path, error.problems[0]) from None
    if outcome.ending is not Ending.exited:
        reasons = {Ending.timeout: "it took too long", Ending.resource: "it used too much memory"}
        raise NotRunError(path, reasons.get(outcome.ending, "the sandbox failed"))
    try:
        return ScriptRecord.model_validate_json(outcome.stdout.splitlines()[-1])
    except (ValidationError, IndexError):
        reason = (outcome.stderr.strip().splitlines() or ["it ended without a record of its trainer"])[-1]
        raise NotRunError(path, reason) from None


def _compare(reading: Configuration, other: Configuration, question: str) -> None:
    """Take from a reading what another run of the script says in another way."""
    for name in [*reading.written, *(further for further in other.written if further not in reading.written)]:
        values = [side.written.get(name, side.unread.get(name, "unset")) for side in (reading, other)]
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
    reading.missing += [sentence for sentence in other.missing if sentence not in reading.missing]
    reading.remarks += [remark for remark in other.remarks if remark not in reading.remarks]


# ------------------------------------------------------------------------------------------------------ files near it


def _own_modules(path: Path, near: Mapping[Path, str]) -> dict[str, tuple[str, str, bool]]:
    """Return the modules that a script may import, by their names: file, text, and if it is a package.

    None of them stands in for a library that is recorded; one of Python's own only if it lies beside the script.
    """
    here = path.absolute().parent
    modules: dict[str, tuple[str, str, bool]] = {}
    for root in (here, Path.cwd(), here.parent):
        for folder in (root, root / "src"):
            for file, text in near.items():
                if file.suffix != ".py" or file == path.absolute() or not file.is_relative_to(folder):
                    continue
                *parts, last = file.relative_to(folder).with_suffix("").parts
                name = ".".join(parts if last == "__init__" else [*parts, last])
                top = name.partition(".")[0]
                if top in LIBRARIES or (top in sys.stdlib_module_names and folder != here):
                    continue
                shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
                modules.setdefault(name, (str(shown), text, last == "__init__"))
    return modules


def _tables(near: Mapping[Path, str]) -> Iterator[tuple[str, Any]]:
    """Yield what the files of settings near a script hold."""
    for file in near:
        if file.suffix in (".yaml", ".yml", ".toml"):
            with contextlib.suppress(UserError, ValueError, RecursionError):
                yield str(file), json.loads(json.dumps(dict(read_tables(file)), default=str))
