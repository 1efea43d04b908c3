"""What a configuration of another library says, before any rule makes a recipe of it.

This module is also sent into the sandbox, and imports the standard library alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Settings = dict[str, Any]

OPEN, CLOSE = "⟦", "⟧"
"""They stand in a text around what nobody knows: `$NAME`, or an expression of a script."""
MARK = f"{OPEN}{{}}{CLOSE}"
MARKED = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)

CODE = "CODE:"
"""What stands before the name of a function of the script; `with_code` replaces it by the file with their code."""


FILES = (".jsonl", ".json", ".csv", ".parquet")
"""The ends of the names of data files; other names are those of data sets of the Hub."""


class NotRunError(Exception):
    """A script could not be run in a sandbox; the message is the reason, as a clause."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


def no_sandbox(path: Path, sentence: str) -> NotRunError:
    """Return the error for a machine on which no sandbox works, with what to install."""
    reason, _, _ = sentence.partition(". ")
    return NotRunError(path, f"{reason}; install bubblewrap, which needs Linux: `apt-get install bubblewrap`")


@dataclass(kw_only=True)
class Configuration:
    """The settings of a configuration by the names that its library has for them.

    A reading drops nothing: what it can give no name is a remark.
    """

    written: Settings = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """What stands in a setting whose value is not known: `$BASE_MODEL`, `make_lora()`. The recipe is not complete then.
    A setting is in `written` or in `unread`."""
    origins: dict[str, str] = field(default_factory=dict)
    """Where a value is from, if this is no value that someone wrote for this run: "default of argparse"."""
    missing: list[str] = field(default_factory=list)
    """What else is not known, and may decide the training: a file that is named and not there."""
    remarks: list[str] = field(default_factory=list)
    """What changes the training, and can only be said by who reads."""
    how: str = ""
    """How the settings were read, as a sentence for the first lines of the recipe."""
    source: str = ""
    """The code of functions that the recipe names in the file next to it."""
    trainer: str = ""
    """The trainer of TRL that the configuration makes; empty if nothing names it."""
    processes: int | None = None
    """The processes that the configuration itself is started with, if it says so."""


def reading_of(settings: "Configuration | Mapping[str, Any]") -> Configuration:
    """Return a configuration as it is, and settings by their names as a reading of them."""
    return settings if isinstance(settings, Configuration) else Configuration(written=dict(settings))


def without_marks(written: Mapping[str, Any]) -> tuple[Settings, dict[str, str]]:
    """Return the settings whose values are known, and what stands in the others."""
    unread = {name: unmarked(str(value)) for name, value in written.items() if MARKED.search(str(value))}
    return {name: value for name, value in written.items() if name not in unread}, unread


def unmarked(text: str) -> str:
    """Return a text with what nobody knows as it is written there."""
    return text.replace(OPEN, "").replace(CLOSE, "")


def data_source(name: Any, split: Any, config: Any = None) -> str:
    """Return a file, or a data set of the Hub, as `data.path` names it."""
    return str(name) if str(name).endswith(FILES) else f"{name}{f'/{config}' if config else ''}:{split}"


def with_code(value: Any, file: str) -> Any:
    """Return the value with the functions of the script named as those of `file`."""
    if isinstance(value, str) and value.startswith(CODE):
        return f"{file}:{value.removeprefix(CODE)}"
    if isinstance(value, dict):
        return {name: with_code(part, file) for name, part in value.items()}
    return [with_code(part, file) for part in value] if isinstance(value, list) else value
