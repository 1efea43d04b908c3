"""A home for tracked runs, and functions that track them badly."""

from pathlib import Path

import pytest
from run_cases import write_home

HOOKS = '''
import json, os, time


def note(step, metrics, completions, folder, *, out="noted.jsonl"):
    """Write what arrives."""
    with open(out, "a") as file:
        file.write(json.dumps([step, metrics, completions, str(folder)]) + "\\n")


def hang(step):
    if step == 0:
        time.sleep(300)


def slow(step):
    time.sleep(0.05)


def fail(step):
    raise ValueError(f"no place for step {step}, https://user:pa55word@host/")


def crash(step):
    os._exit(7)


def leave(step):
    raise SystemExit(0)
'''


@pytest.fixture
def tracked_home(tmp_path: Path) -> Path:
    """Model, data, reward, recipe and functions, for one test to change."""
    return with_hooks(tmp_path)


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the tests of a file."""
    return with_hooks(tmp_path_factory.mktemp("home"))


def with_hooks(folder: Path) -> Path:
    write_home(folder)
    (folder / "hooks.py").write_text(HOOKS)
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """No client sends anything, or writes outside of the test's folder: the variables for that, which are set."""
    variables = {
        "WANDB_MODE": "offline",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables
