"""What a person waits for at the keyboard starts without torch and transformers, which take seconds to import."""

import json
import subprocess
import sys
from importlib import import_module

import pytest

import outdo

PROGRAM = """
import json, sys
sys.argv = ["outdo", *json.loads(sys.argv[1])]
status = 0
try:
    {statement}
except SystemExit as stop:
    status = stop.code or 0
heavy = [name for name in ("torch", "transformers", "datasets", "vllm", "ray") if name in sys.modules]
print(json.dumps([status, heavy]), file=sys.stderr)
"""
CLI = "import runpy; runpy.run_module('outdo.cli.main', run_name='__main__')"


def loaded(statement: str, *arguments: str) -> tuple[int, list[str], str]:
    """Exit status, heavy modules loaded, and everything printed, of one statement in a fresh interpreter."""
    program = PROGRAM.format(statement=statement)
    command = [sys.executable, "-c", program, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    *printed, verdict = done.stderr.splitlines()
    status, heavy = json.loads(verdict)
    return status, heavy, done.stdout + "\n".join(printed)


def test_importing_outdo_loads_nothing_heavy_and_the_probe_sees_torch():
    assert loaded("import outdo; dir(outdo)")[:2] == (0, [])
    assert loaded("import torch")[1] == ["torch"]


def test_every_public_name_is_where_outdo_says():
    assert len(outdo.HOME) > 100
    for name, module in outdo.HOME.items():
        assert getattr(outdo, name) is getattr(import_module(module), name)


def test_a_name_outdo_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="trane"):
        _ = outdo.trane


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["train", "--help"], 0, "Usage"),
        (["check", "recipe.toml"], 2, "modle"),
        (["inspect", "none"], 2, "no such folder"),
        (["doctor", "none"], 2, "no such folder"),
        (["plot", "none"], 2, "no such folder"),
        (["glossary", "entropy"], 0, "entropy"),
    ],
)
def test_help_a_wrong_recipe_and_looking_at_a_run_load_nothing_heavy(arguments, status, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text("modle = 'nowhere'\n", encoding="utf-8")
    found, heavy, printed = loaded(CLI, *arguments)
    assert (found, heavy) == (status, [])
    assert said in printed
    assert "Traceback" not in printed


def test_the_actor_of_a_reward_loads_nothing_heavy():
    assert loaded("import outdo.extras.ray.rewards")[:2] == (0, [])
