"""Read settings of other libraries as they are written: YAML, `key=value`, flags, and shell scripts that hold these."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.config.file import read_tables, read_text, read_value
from outdo.extras.convert.conversion import plain_value
from outdo.utils.errors import UserError
from outdo.utils.text import dotted

VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")
COMMAND = re.compile(r"main_ppo|train_ppo")
OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w.@-]*=.*", re.DOTALL)

Settings = dict[str, Any]


def verl_settings(path: Path | None, overrides: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return verl's settings by their dotted names, and remarks about what cannot be read.

    The file is YAML, or a shell script that calls `main_ppo`. `${a.b}` stands for another setting; `${oc.env:...}` and
    the other files that `defaults` names are reported.
    """
    remarks: list[str] = []
    written: Settings = {}
    if path is not None and path.suffix == ".sh":
        overrides = [*(word for word in command_of(path) if OVERRIDE.fullmatch(word)), *overrides]
    elif path is not None:
        tables = read_tables(path)
        tables.pop("hydra", None)
        if tables.pop("defaults", None):
            remarks.append(f"defaults: the files that {path} is made of are not read; give their settings as key=value")
        written = dict(dotted(tables))
    for text in overrides:
        name, _, value = text.partition("=")
        if name.startswith("~"):
            written.pop(name.lstrip("~"), None)
        else:
            written[name.lstrip("+")] = hydra_value(value)
    return written, remarks + _interpolated(written)


def _interpolated(written: Settings) -> list[str]:
    """Replace `${a.b}` by the setting that it names; remove what cannot be read, and return remarks about it."""
    remarks = []
    for name in [name for name, value in written.items() if isinstance(value, str) and "${" in value]:
        other = INTERPOLATION.fullmatch(written[name])
        if other and other[1] in written:
            written[name] = written[other[1]]
        else:
            remarks.append(f"{name} = {written.pop(name)}: cannot be read without verl; give it as key=value")
    return remarks


def openrlhf_settings(path: Path | None, words: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return OpenRLHF's flags, `--name value ...` or `--name`, by their names; the file is a shell script."""
    words = [*(command_of(path) if path is not None else ()), *words]
    written: Settings = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            written[name] = hydra_value(value) if value else True
        elif name:
            before = written[name]
            value = hydra_value(word)
            written[name] = value if before is True else [*(before if isinstance(before, list) else [before]), value]
    for wrapper in ("address", "runtime_env_json", "", "working_dir", "no_wait"):  # of `ray job submit`
        written.pop(wrapper, None)
    return written, []


def key_values(words: Iterable[str]) -> Settings:
    """Return `key=value` settings; a value is TOML, and otherwise text. Raises `UserError` for another word."""
    pairs = [word.partition("=") for word in words]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise UserError([f"{word}: expected key=value" for word in wrong])
    return {key.lstrip("-"): read_value(value) for key, _, value in pairs}


def hydra_value(text: str) -> Any:
    """Return a value as Hydra reads it: a number, true, false or null, `[a, b]`, or text with or without quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        inner = text[1:-1]
        return hydra_value(inner) if inner.startswith("[") else inner
    if text.startswith("[") and text.endswith("]"):
        return [hydra_value(each) for each in text[1:-1].split(",") if each.strip()]
    return plain_value(text)


def command_of(path: Path) -> list[str]:
    """Return the words of the Python command in a shell script: the longest line, without what stands before it.

    Variables that the script sets to plain text are filled in; others stay as `$NAME`.
    """
    text = re.sub(r"\\\r?\n", " ", read_text(path))
    variables: dict[str, str] = {}
    commands: list[list[str]] = []
    for line in text.splitlines():
        words = _words(_filled(line, variables))
        if len(words) <= 2 and (match := ASSIGNMENT.fullmatch(line.strip())):
            variables[match[1]] = words[-1].partition("=")[2] if words else ""
        elif any(map(COMMAND.search, words)):
            commands.append(words)
    if not commands:
        raise UserError([f"{path}: no command of verl.trainer.main_ppo or openrlhf.cli.train_ppo_ray was found"])
    words = max(commands, key=len)
    start = next(number for number, word in enumerate(words) if COMMAND.search(word))
    end = next((number for number, word in enumerate(words) if word.startswith(("|", ">", "2>", "&"))), len(words))
    return [word for word in words[start + 1 : end] if word != "$@"]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quotation over several lines
        return line.split()


def _filled(line: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    return VARIABLE.sub(value, line)
