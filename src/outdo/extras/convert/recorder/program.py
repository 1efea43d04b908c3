"""Run a script up to `train` of its trainer, and say what the trainer asks for that it made."""

import functools
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from outdo.extras.convert.reading import Configuration, unmarked
from outdo.extras.convert.recorder.libraries import RECORDED, TABLES, SettingsType, TrainingBeginsError
from outdo.extras.convert.recorder.surroundings import MissingModule, compiled, surround
from outdo.extras.convert.recorder.trainer import reading_of_trainer
from outdo.extras.convert.recorder.unknown import RUN, Origin, Unknown


def main(task: Mapping[str, Any]) -> None:
    """Run a script that prints nothing. The last line of the output is JSON: what it asked, how it ended, its reading.

    `task` has the texts of the script and of what it may read, its arguments, and answers to its questions.
    """
    output = sys.stdout
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115  (open until the process ends)
    RUN.answers.update(task["answers"])
    MissingModule.recorded, SettingsType.tables = RECORDED, task["defaults"]
    TABLES.update({task["files"][path]: table for path, table in task["tables"].items()})
    surround(task)
    script = ModuleType("__main__")
    script.__file__ = task["path"]
    sys.modules["__main__"] = script
    error = _ending(lambda: exec(compiled(task["text"], task["path"]), script.__dict__))
    tried = 0
    while not RUN.trainers and not error and tried < len(RUN.given_functions):
        error = _ending(functools.partial(_call, RUN.given_functions[tried]))
        tried += 1
    record: dict[str, Any] = {"asked": dict(RUN.asked), "error": error}
    if RUN.trainers:
        record["reading"] = vars(_reading(task, error))
    print(json.dumps(record), file=output, flush=True)


def _reading(task: Mapping[str, Any], error: str) -> Configuration:
    """Return what the trainer says, and what the script would have asked its user for.

    `error` ended the script after it had made the trainer; "" if none did.
    """
    reading = reading_of_trainer(task)
    if error:
        reading.missing.append(f"what the script does after an error: {error}")
    if RUN.defaults:
        shown = ", ".join(f"{name} = {value}" for name, value in RUN.defaults.items())
        reading.origins[shown] = "defaults of the script's own arguments"
    if RUN.wanted:
        files = ", ".join(sorted({*RUN.wanted}))
        reading.remarks.append(f"{files}: the script looks for it, and it is not near the script")
    return reading


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
    parameters = inspect.signature(function).parameters.values()
    needed = [
        parameter for parameter in parameters if parameter.default is parameter.empty and parameter.kind not in (2, 4)
    ]
    function(*(Unknown(Origin("text", parameter.name)) for parameter in needed))
