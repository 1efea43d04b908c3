"""What the documentation tells a reader to type exists: commands, options and settings; links lead to files."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from outdo.cli.main import app
from outdo.config.settings import leaves, sections, settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
STARTED = r"[A-Z_]+=\S+ |docker run .* |torchrun .* -m |\.venv/bin/"
COMMAND = re.compile(rf"^(?:    |\$ |# +)?(?:{STARTED})?(outdo(?::cpu)? [a-z-].*)$")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)*)=")
INLINE = re.compile(r"`(?:\.venv/bin/)?(outdo [a-z-][^`]*)`")
USAGE: Any = typer.BadParameter.__base__
"""What click raises for a command that it cannot read; newer versions of Typer have a click of their own."""

OF_THE_PROGRAM = ("--version", "--help", "--install-completion", "--show-completion")


@cache
def program() -> Any:
    """The commands of outdo as click has them."""
    return typer.main.get_command(app)


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each fenced block."""
    yield from re.findall(r"^```([a-z]*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def written(path: Path) -> Iterator[str]:
    """Yield the commands of a page in its blocks: those that are indented, fences for a shell, and lines after `$`."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in FENCE.sub("", text).splitlines() if line.startswith("    ")]
    for language, block in fences(text):
        lines += [line for line in block.splitlines() if language in ("sh", "bash") or line.startswith("$ ")]
    yield from (match[1] for line in lines if (match := COMMAND.match(line)))


def mentioned(path: Path) -> Iterator[str]:
    """Yield the commands of a page in its sentences, which may leave out arguments."""
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    yield from (" ".join(match[1].split()) for match in INLINE.finditer(prose))


def mistake(line: str, *, complete: bool = True) -> str:
    """Return what is wrong with a command as a person would type it; empty if nothing is."""
    words = [word for word in shlex.split(line.replace("\\|", "|"), comments=True)[1:] if word not in ("...", "…")]
    words = words[: words.index(">")] if ">" in words else words
    command: Any = program()
    names = ["outdo"]
    while hasattr(command, "commands"):
        if not words or words[0] in OF_THE_PROGRAM:
            return ""
        if words[0] not in command.commands:
            return f"no command {' '.join([*names, words[0]])}"
        names.append(words.pop(0))
        command = command.commands[names[-1]]
    try:
        command.make_context(names[-1], list(words))
    except USAGE as error:
        if complete or type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):
            return error.format_message()
    others = names[1] in ("convert", "explain") or "--card" in words  # of another library, an objective, a device
    keys = [] if others else [match[1] for word in words if (match := SETTING.match(word))]
    return next((f"no setting {key}" for key in keys if not _is_setting(key)), "")


def _is_setting(key: str) -> bool:
    known = {*leaves(), *settings()}
    parts = key.split(".")
    return key in sections() or any(".".join(parts[:length]) in known for length in range(1, len(parts) + 1))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_options_and_settings_exist(path: Path):
    found = [(line, mistake(line)) for line in written(path)]
    found += [(line, mistake(line, complete=False)) for line in mentioned(path)]
    assert [(line, problem) for line, problem in found if problem] == []


def test_a_wrong_command_option_or_setting_is_found():
    assert mistake("outdo trian recipe.toml") == "no command outdo trian"
    assert mistake("outdo train recipe.toml --frm x").startswith("No such option: --frm")
    assert "valid integer" in mistake("outdo eval RUN --k many")
    assert "extra argument" in mistake("outdo export RUN FOLDER again")
    assert mistake("outdo eval").startswith("Missing argument")
    assert mistake("outdo eval", complete=False) == mistake("outdo config > recipe.toml") == ""
    assert mistake("outdo train recipe.toml train.group=4") == "no setting train.group"
    assert mistake("outdo train recipe.toml train.objective.beta=0 'rewards=[\"exact\"]'  # a comment") == ""
    assert mistake("outdo cluster check") == ""
    assert sum(len([*written(path), *mentioned(path)]) for path in PAGES) > 200


def test_python_in_the_documentation_compiles():
    blocks = [(path, block) for path in PAGES for language, block in fences(path.read_text()) if language == "python"]
    assert len(blocks) > 20
    for path, block in blocks:
        compile(block, str(path), "exec")


def test_links_within_the_repository_lead_to_files():
    broken: list[str] = []
    for path in PAGES:
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            target = path.parent / link
            sources = {".md": ".ipynb", ".html": ".zip"}
            generated = link.lstrip("./").startswith("reference/") or (
                target.suffix in sources and target.with_suffix(sources[target.suffix]).exists()
            )
            if not re.match(r"[a-z]+:", link) and not generated and not target.exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert broken == []


def test_the_tests_that_make_names_are_there():
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    variables = dict(re.findall(r"^(\w+_TESTS)\s*:= (.*)$", text, flags=re.MULTILINE))
    assert set(variables) == {"QUICK_TESTS", "LOWEST_TESTS", "NEWEST_TESTS"}
    names = [name for line in variables.values() for name in line.split() if not name.startswith("$")]
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []
