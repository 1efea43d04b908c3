"""What a configuration of another library says, before any rule makes a recipe of it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outdo.config.file import read_value
from outdo.extras.convert.conversion import plain_value
from outdo.utils.errors import UserError

Settings = dict[str, Any]

MARK = "⟦{}⟧"
"""Stands in a text for what nobody sets, which stands between the brackets."""
MARKED = re.compile(r"⟦(.*?)⟧", re.DOTALL)

CODE = "CODE:"
"""What stands before the name of a function of the script; `with_code` replaces it by the file with their code."""


class NotRunError(Exception):
    """A script could not be run in a sandbox; the message is the reason, as a clause."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


def no_sandbox(path: Path, error: UserError) -> NotRunError:
    """Return the error for a machine on which no sandbox works, with what to install."""
    reason, _, _ = error.problems[0].partition(". ")
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
    """Return a text with what nobody sets as it is written there."""
    while MARKED.search(text):
        text = MARKED.sub(lambda match: match[1], text)
    return text.replace("⟦", "").replace("⟧", "")


def with_code(value: Any, file: str) -> Any:
    """Return the value with the functions of the script named as those of `file`."""
    if isinstance(value, str) and value.startswith(CODE):
        return f"{file}:{value.removeprefix(CODE)}"
    if isinstance(value, dict):
        return {name: with_code(part, file) for name, part in value.items()}
    return [with_code(part, file) for part in value] if isinstance(value, list) else value


def key_values(words: Iterable[str]) -> Settings:
    """Return `key=value` settings; a value is TOML, and otherwise text. Raises `UserError` for another word."""
    pairs = [word.partition("=") for word in words]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise UserError([f"{word}: expected key=value" for word in wrong])
    return {key.lstrip("-"): read_value(value) for key, _, value in pairs}


def flags(words: Iterable[str]) -> tuple[Settings, list[str]]:
    """Return flags, `--name value ...` or `--name`, by their names, and the words that belong to none."""
    written: Settings = {}
    loose: list[str] = []
    name = ""
    for word in words:
        if word.startswith("--") and word != "--":
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            written[name] = hydra_value(value) if equals else True
        elif name:
            before, value = written[name], hydra_value(word)
            written[name] = value if before is True else [*(before if isinstance(before, list) else [before]), value]
        else:
            loose.append(word)
    return written, loose


def hydra_value(text: str) -> Any:
    """Return a value as Hydra reads it: a number, true, false or null, `[a, b]`, or text with or without quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        inner = text[1:-1]
        return hydra_value(inner) if inner.startswith("[") else inner
    if text.startswith("[") and text.endswith("]"):
        return [hydra_value(part) for part in text[1:-1].split(",") if part.strip()]
    return plain_value(text)
