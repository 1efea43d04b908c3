"""What the documentation tells a reader to type exists: commands, options and settings; links lead to files."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from outdo.cli.main import app
from outdo.config.settings import leaves, sections, settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
COMMAND = re.compile(r"^(?:    |\$ |# +)?(?:\.venv/bin/)?(outdo [a-z-].*)$")
INLINE = re.compile(r"`(?:\.venv/bin/)?(outdo [a-z-][^`]*)`")
OF_THE_PROGRAM = ("--version", "--help", "--install-completion", "--show-completion")


@cache
def program() -> Any:
    """The commands of outdo as click has them."""
    return typer.main.get_command(app)


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each fenced block."""
    yield from re.findall(r"^```([a-z]*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def written(path: Path) -> Iterator[str]:
    """Yield the commands of a page: lines of its indented blocks and of its fences for a shell, and inline code."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    shells = "\n".join(block for language, block in fences(text) if language in ("sh", "bash"))
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = [line for line in prose.splitlines() if line.startswith("    outdo ") or line.startswith("    .venv/")]
    yield from (match[1] for line in [*shells.splitlines(), *indented] if (match := COMMAND.match(line)))
    yield from (" ".join(match[1].split()) for match in INLINE.finditer(prose))


def mistake(line: str) -> str:
    """Return what is wrong with a command as a person would type it; empty if nothing is."""
    words = [word for word in shlex.split(line.replace("\\|", "|"), comments=True)[1:] if word not in ("...", "…")]
    command: Any = program()
    names = ["outdo"]
    while hasattr(command, "commands"):
        if not words or words[0] in OF_THE_PROGRAM:
            return ""
        if words[0] not in command.commands:
            return f"no command {' '.join([*names, words[0]])}"
        names.append(words.pop(0))
        command = command.commands[names[-1]]
    command = command.loaded()
    if names[1:] == ["convert"]:
        return ""  # what follows is of another library
    options = {text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        option = word.partition("=")[0]
        if word.startswith("--") and option not in {*options, "--help"}:
            return f"no option {option}"
        key, equals, _ = word.partition("=")
        if equals and re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)*", key) and not _is_setting(key) and "--card" not in words:
            return f"no setting {key}"
    return ""


def _is_setting(key: str) -> bool:
    known = {*leaves(), *settings()}
    parts = key.split(".")
    return key in sections() or any(".".join(parts[:length]) in known for length in range(1, len(parts) + 1))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_options_and_settings_exist(path: Path):
    assert [(line, problem) for line in written(path) if (problem := mistake(line))] == []


def test_a_wrong_command_option_or_setting_is_found():
    assert mistake("outdo trian recipe.toml") == "no command outdo trian"
    assert mistake("outdo train recipe.toml --frm x") == "no option --frm"
    assert mistake("outdo train recipe.toml train.group=4") == "no setting train.group"
    assert mistake("outdo train recipe.toml train.objective.beta=0 'rewards=[\"exact\"]'  # a comment") == ""
    assert mistake("outdo cluster check") == ""
    assert sum(len([*written(path)]) for path in PAGES) > 200


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
