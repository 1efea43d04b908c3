"""Which command a shell script starts, read from its text: where no sandbox runs bash, and where bash runs nothing."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from outdo.config.file import read_text
from outdo.extras.convert.reading import MARK

VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
NOT_FILLED = re.compile(r"\$(?:\{[^}]*\}|\([^)]*\)?\)?|\w+|@|\*)")


def commands_in_text(path: Path) -> list[list[str]]:
    """Return the words of each line, without what stands behind a pipe or before a redirection.

    Variables that the script sets to plain text are filled in; others get a mark.
    """
    text = re.sub(r"\\\r?\n", " ", read_text(path))
    variables = {"HOME": str(Path.home())}
    commands: list[list[str]] = []
    for line in text.splitlines():
        words = _words(_filled(line, variables))
        if len(words) <= 2 and (match := ASSIGNMENT.fullmatch(line.strip())):
            variables[match[1]] = words[-1].partition("=")[2] if words else ""
        elif words:
            end = next((i for i, word in enumerate(words) if word.startswith(("|", ">", "2>", "&"))), len(words))
            commands.append([_marked(word) for word in words[:end] if word not in ("$@", "$*")])
    return commands


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


def _marked(word: str) -> str:
    """Return a word with a mark for what bash would have filled in; `${a.b}` is Hydra's."""
    if re.search(r"\$\{[\w.:]+\.[^}]*\}", word):
        return word
    return NOT_FILLED.sub(lambda match: MARK.format(match[0]), word)
