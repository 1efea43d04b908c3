"""What the command itself does, before any of its commands: version, help, and where it does not run."""

import subprocess
import sys
from pathlib import Path

import pytest

from outdo import __version__
from outdo.cli import main as cli
from outdo.cli.arguments import recipe_and_overrides
from outdo.utils.errors import UserError


def test_the_version_and_a_short_help_flag(outdo):
    assert outdo("--version").out.strip() == f"outdo {__version__}"
    assert "Usage" in outdo("-h").out
    assert "--max-tokens" in outdo("eval", "-h").out


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "outdo", "--version"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.strip()) == (0, f"outdo {__version__}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_below_the_output_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "outdo", "config"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600
        )
    sentence = "outdo: the output of this command cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, sentence)


def test_an_argument_that_is_no_setting_is_quoted():
    with pytest.raises(UserError) as caught:
        recipe_and_overrides(["r.toml", "", "steps"])
    assert caught.value.problems == tuple(
        f'"{each}": expected key=value; the recipe is r.toml' for each in ("", "steps")
    )


def test_the_path_of_a_recipe_may_have_an_equals_sign():
    recipe = "runs/lr=1e-5/recipe.toml"
    assert recipe_and_overrides([recipe, "data.path=a/b=c.jsonl"]) == (Path(recipe), ["data.path=a/b=c.jsonl"])


def test_an_empty_argument_is_not_the_folder_at_hand():
    with pytest.raises(UserError, match=r'^"": expected the file of a recipe'):
        recipe_and_overrides(["", "steps=2"])


def test_windows_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match=r"^outdo: Windows is not supported; use Linux, macOS, or .*WSL"):
        cli.main()
