"""Run a script up to `GRPOTrainer.train`, and describe the trainer that it made."""

import functools
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from outdo.extras.convert.recorder.libraries import (
    RECORDED,
    TABLES,
    GRPOTrainer,
    Settings,
    SettingsType,
    TrainingBeginsError,
)
from outdo.extras.convert.recorder.surroundings import MissingModule, compiled, surround
from outdo.extras.convert.recorder.unknown import (
    CLOSE,
    OPEN,
    RUN,
    Origin,
    Unknown,
    is_of_script,
    origin_of,
    shown,
    unmarked,
)

DEEPEST = 60
LONGEST_VALUE = 4000
MARKED = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)


def run(task: Mapping[str, Any], answer: Callable[[str], object]) -> None:
    """Run the script of a task and answer with JSON: the trainer, what the script asked, and how it ended."""
    RUN.answers.update(task["answers"])
    MissingModule.recorded, SettingsType.defaults = RECORDED, task["defaults"]
    TABLES.update(task["tables"])
    surround(task)
    main = ModuleType("__main__")
    main.__file__ = task["path"]
    sys.modules["__main__"] = main
    error = _ending(lambda: exec(compiled(task["text"], task["path"]), main.__dict__))
    tried = 0
    while not RUN.trainers and not error and tried < len(RUN.given_functions):
        error = _ending(functools.partial(_call, RUN.given_functions[tried]))
        tried += 1
    record = {"asked": RUN.asked, "error": error, "defaults": RUN.defaults, "wanted": RUN.wanted}
    if RUN.trainers:
        record["trainer"] = _trainer(*RUN.trainers[0])
        record["modules"] = {name: _globals(module) for name, module in _own_modules().items()}
    answer(json.dumps(record))


def _ending(function: Callable[[], object]) -> str:
    """Call a function, and return the error that ended it; "" if there is none, or a trainer has begun."""
    try:
        function()
    except TrainingBeginsError:
        pass
    except SystemExit as stop:
        return f"it ends with exit status {stop.code}" if stop.code else ""
    except BaseException as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename in RUN.files]
        at = f"line {lines[-1]}: " if lines else ""
        return unmarked(f"{at}{type(error).__name__}: {str(error)[:300]}")
    return ""


def _call(function: Callable[..., Any]) -> None:
    """Call what a library was given, with unknown values for the parameters without a default."""
    named = inspect.signature(function).parameters.values()
    needed = [each for each in named if each.default is each.empty and each.kind not in (2, 4)]
    function(*(Unknown(Origin("text", each.name)) for each in needed))


def _own_modules() -> dict[str, Any]:
    return {
        name: module
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None) in RUN.files and not isinstance(module, MissingModule)
    }


def _globals(module: Any) -> dict[str, Any]:
    """Return the file of a module, and its plain values as Python writes them."""
    values = {name: _plain(value) for name, value in vars(module).items() if not name.startswith("__")}
    return {"file": module.__file__, "values": {name: text for name, text in values.items() if text is not None}}


def _plain(value: Any) -> str | None:
    """Return a value of numbers, texts, lists and tables as Python writes it; None for any other, or a long one."""
    try:
        text = repr(value) if _is_plain(value) else None
    except RecursionError:
        return None
    return text if text is not None and len(text) <= LONGEST_VALUE and OPEN not in text else None


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    return value is None or type(value) in (bool, int, float, str, bytes)


# ---------------------------------------------------------------------------------------------------------- description


def _trainer(kind: type, named: Mapping[str, Any], line: int) -> dict[str, Any]:
    own = kind.__mro__[: kind.__mro__.index(GRPOTrainer)]
    methods = sorted({name for each in own for name, value in vars(each).items() if inspect.isfunction(value)})
    arguments = {name: described(value) for name, value in named.items()}
    trained = RUN.trained
    return {"class": kind.__name__, "methods": methods, "line": line, "arguments": arguments, "trained": trained}


def described(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON: plain ones as they are, others as a table with the key of their kind."""
    if depth > DEEPEST:
        return {"unread": shown(value)}
    if isinstance(value, Unknown):
        return _described_node(value, depth + 1)
    if isinstance(value, Settings):
        return _described_settings(value, depth + 1)
    if isinstance(value, list | tuple | dict | range):
        return _described_container(value, depth + 1)
    if isinstance(value, str) and OPEN in value:
        return {"unread": repr(re.sub(MARKED, r"{\1}", value)), "template": re.split(MARKED, value)}
    is_json = value is None or type(value) in (bool, int, float, str)
    return value if is_json else _described_object(value, depth + 1)


def _described_settings(value: Any, depth: int) -> Any:
    others = {name: each for name, each in vars(value).items() if name not in ("given", "line", "own")}
    given = {name: each for name, each in (value.given | others).items() if name not in value.own}
    of_trl = next(each.__name__ for each in type(value).__mro__ if each.__module__ == Settings.__module__)
    return _described_call({"name": f"trl.{of_trl}"}, (), given, vars(value)["line"], depth)


def _described_container(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {"table": {str(key): described(each, depth) for key, each in value.items()}}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    return [described(each, depth) for each in value]


def _described_call(function: Any, arguments: Any, keywords: Any, line: int, depth: int) -> dict[str, Any]:
    return {
        "call": function,
        "arguments": [described(each, depth) for each in arguments],
        "keywords": {unmarked(name): described(e, depth) for name, e in keywords.items()},
        "line": line,
        "effects": [],
    }


def _described_node(value: Unknown, depth: int) -> Any:
    node = origin_of(value)
    if node.kind == "name":
        return {"name": node.text}
    if node.kind == "call":
        call = _described_call(described(node.of, depth), node.arguments, node.keywords, node.line, depth)
        if origin_of(node.of).text == "map" and node.arguments and is_of_script(node.arguments[0]):
            call["makes"] = _made_row(node.arguments[0], depth)
        sets = {key: described(each, depth) for (kind, key), each in node.parts.items() if kind == "set"}
        return call | {"effects": node.effects, "sets": sets, "shown": shown(value)}
    if node.kind == "get":
        return {"get": node.text, "of": described(node.of, depth), "shown": shown(value)}
    if node.kind == "item":
        of = described(node.of, depth)
        return {"item": described(node.key, depth), "of": of, "shown": shown(value), "effects": node.effects}
    return {"unread": node.text}


def _made_row(function: Callable[..., Any], depth: int) -> Any:
    """Return what a function of rows makes of an unknown one. A column that depends on the row is unread."""
    asked, answers = RUN.asked, RUN.answers
    RUN.asked = {}
    try:
        made = [dict(function(Unknown(Origin("text", "row"))))]
        for question, (_, choices) in list(RUN.asked.items()):
            RUN.answers = {**answers, question: choices[1]}
            made.append(dict(function(Unknown(Origin("text", "row")))))
        columns = [{name: described(value, depth) for name, value in each.items()} for each in made]
    except Exception:
        return None
    finally:
        RUN.asked, RUN.answers = asked, answers
    names = dict.fromkeys(name for each in columns for name in each)
    return {"table": {name: _agreed([each.get(name) for each in columns]) for name in names}}


def _agreed(values: list[Any]) -> Any:
    """Return the value that all have, or else what the longest of them says."""
    if all(each == values[0] for each in values):
        return values[0]
    return {"unread": max((each.get("shown", "") for each in values if isinstance(each, dict)), key=len, default="")}


def _described_object(value: Any, depth: int) -> Any:
    """Return a function, or another object, of the script."""
    if isinstance(value, functools.partial) and not value.args:
        keywords = {name: described(each, depth) for name, each in value.keywords.items()}
        return {"partial": described(value.func, depth), "keywords": keywords}
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    bound = next((name for name, each in vars(module).items() if each is value), None) if module else None
    if is_of_script(value):
        return _described_function(value, bound, module)
    file = getattr(module, "__file__", None)
    if isinstance(value, type) and bound is not None and file in RUN.files:
        named = {"function": bound, "file": file, "line": 0, "closure": {}}
        return named | {"bound": True, "module": value.__module__}
    return {"object": value.__name__ if isinstance(value, type) else f"an object of the class {type(value).__name__}"}


def _described_function(function: Any, bound: str | None, module: Any) -> Any:
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    return {
        "function": code.co_name if bound is None or module is sys.modules["__main__"] else bound,
        "file": code.co_filename,
        "line": code.co_firstlineno,
        "closure": {name: _plain(_content(cell)) for name, cell in cells.items()},
        "bound": bound is not None,
        "module": function.__module__,
    }


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return Unknown(Origin("text", "nothing"))


def main(task: Mapping[str, Any]) -> None:
    """Run a task whose script prints nothing; the answer is the last line of the output."""
    output = sys.stdout
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115  (open until the process ends)
    run(task, lambda text: print(text, file=output, flush=True))
