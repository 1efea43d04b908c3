"""`outdo doctor --packages`: versions, what does not fit, what to install, and the exit status."""

import io
import json
from pathlib import Path

import pytest
from installed import pretend
from rich.console import Console
from typer.testing import CliRunner

from outdo.cli.main import app
from outdo.cli.packages import run_packages


def said(**how: bool) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=1000)
    status = run_packages(console, **how)
    return status, console.file.getvalue()


def test_packages_that_fit_are_listed_with_what_outdo_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outdo.cli.packages.misfits", lambda: [])
    status, text = said()
    assert status == 0
    assert "\n  peft 0." in text
    assert " (outdo needs <0.22,>=0.21)\n" in text
    assert text.endswith("all packages that outdo uses fit\n")


def test_one_that_does_not_fit_is_one_line_with_what_to_install_and_the_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path, monkeypatch, peft="0.21.0", torchao="0.15.0")
    status, text = said()
    assert status == 1
    assert (
        'error: peft 0.21.0 with torchao 0.15.0: peft attaches no LoRA beside it: pip install "torchao>=0.18"' in text
    )
    assert "all packages that outdo uses fit" not in text
    lines = [json.loads(line) for line in said(as_json=True)[1].splitlines()]
    assert {"name": "torchao", "version": "0.15.0", "range": ">=0.18"} in lines
    assert {line["install"] for line in lines if line.get("level") == "error"} == {"torchao>=0.18"}


@pytest.mark.parametrize("arguments", [[], ["--packages", "runs/a"], ["--packages", "--strict"]])
def test_options_without_effect_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["doctor", *arguments]).exit_code != 0
