"""The table of commands: each is imported when it is called, and one whose extra was deleted is one sentence."""

import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from outdo import extras
from outdo.cli import commands, main
from outdo.cli.commands import COMMANDS, CommandRow
from outdo.utils.extras import load_extra

SOURCE = "def command(word: str) -> int: return print(word) or 3"
ROW = CommandRow("Say a word.", "outdo.extras.greetings.command:command")


@pytest.fixture
def table(tmp_path, monkeypatch) -> Iterator[Path]:
    """Two more commands, whose extra is in the folder that is returned, once somebody writes it there."""
    monkeypatch.setattr(extras, "__path__", [*extras.__path__, str(tmp_path)])
    monkeypatch.setattr(commands, "COMMANDS", {**COMMANDS, "say": ROW, "greetings say": ROW})
    monkeypatch.setattr(commands, "GROUPS", {**commands.GROUPS, "greetings": "Words."})
    yield tmp_path / "greetings"
    for module in [name for name in sys.modules if name.startswith("outdo.extras.greetings")]:
        del sys.modules[module]


def test_every_command_has_its_function_and_its_way_to_resume():
    for typed, row in COMMANDS.items():
        assert inspect.isfunction(load_extra(row.function, typed))
        if row.resume is not None:
            parameters = inspect.signature(load_extra(row.resume, typed)).parameters
            assert [*parameters] == ["settings", "out", "display", "overrides", "changed"]


def test_help_imports_no_command(table, outdo):
    table.mkdir()
    (table / "command.py").write_text("raise AssertionError('imported')", encoding="utf-8")
    said = outdo("--help").out
    assert "Say a word." in said
    assert "Words." in said
    assert "Say a word." in outdo("greetings", "--help").out


def test_a_command_of_an_extra_is_called_and_its_status_is_the_exit_status(table, outdo):
    table.mkdir()
    (table / "command.py").write_text(SOURCE, encoding="utf-8")
    for typed in (("say",), ("greetings", "say")):
        assert " word " in outdo(*typed, "--help").out
        done = outdo(*typed, "hello")
        assert (done.status, done.out) == (3, "hello\n")


@pytest.mark.usefixtures("table")
def test_a_command_whose_extra_was_deleted_is_not_shown_and_one_sentence(outdo):
    said = outdo("--help").out
    assert "Say a word." not in said
    assert "Words." not in said
    sentence = "needs outdo.extras.greetings, which this installation of outdo does not have"
    for typed, arguments in itertools.product(("say", "greetings say"), ((), ("hello",), ("--help",))):
        done = outdo(*typed.split(), *arguments)
        assert (done.status, done.error) == (2, f"outdo: {typed}: {sentence}\n")


def test_a_misspelled_command_is_told_the_nearest(outdo):
    assert "Did you mean 'train'" in outdo("trian").error


def test_completion_knows_the_commands_and_the_options_of_each(monkeypatch, capsys):
    def completed(words: str) -> str:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
        monkeypatch.setenv("_OUTDO_COMPLETE", "complete_zsh")
        with pytest.raises(SystemExit):
            typer.main.get_command(main.app)(prog_name="outdo", args=[])
        return capsys.readouterr().out

    assert "quickstart" in completed("outdo qu")
    assert "--strict" in completed("outdo check --st")
    assert "--timeout" in completed("outdo cluster check --ti")
