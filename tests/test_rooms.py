"""Each folder of `outdo.extras` can be deleted: the rest works, and a recipe that names it gets one sentence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_cases import write_home

import outdo

SOURCE = Path(outdo.__file__).parent
EXTRAS = sorted(each.name for each in (SOURCE / "extras").iterdir() if (each / "__init__.py").is_file())

NAMED_BY = {
    "ray": ('engine={name="builtin",processes=1,place="ray"}', "engine.place"),
    "remote_engines": ('engine={name="builtin",processes=2}', "engine"),
    "replicas": ("cluster.replicas=2", "cluster.replicas"),
    "staleness": ("train.max_staleness=1", "train.max_staleness"),
    "vllm": ('engine={name="vllm",url="http://host:8000"}', "engine"),
}
"""For each extra a setting that needs it, and how the sentence about it begins."""

MAY_IMPORT = {"ray": ("remote_engines",), "vllm": ("remote_engines",)}
"""The extras that another extra may import, besides the core."""

IMPORT_ALL = """
import importlib, pkgutil, sys, json
import outdo
skipped = tuple(json.loads(sys.argv[1]))
for module in pkgutil.walk_packages(outdo.__path__, "outdo."):
    if not module.name.startswith(skipped) and not module.name.endswith(("__main__", "_main")):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


def without(folder: Path, *names: str) -> dict[str, str]:
    """Return the environment of a Python that imports an outdo without these extras."""
    deleted = {SOURCE / "extras" / name for name in names}

    def left_out(place: str, content: list[str]) -> set[str]:
        return {each for each in content if each == "__pycache__" or Path(place, each) in deleted}

    shutil.copytree(SOURCE, folder / "outdo", ignore=left_out)
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(home: Path, environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_each_extra_has_a_setting_that_names_it():
    assert list(NAMED_BY) == EXTRAS


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_left_without_an_extra_imports_and_checks(extra: str, home: Path, tmp_path: Path):
    environment = without(tmp_path, extra)
    users = [f"outdo.extras.{user}" for user, used in MAY_IMPORT.items() if extra in used]
    done = run(home, environment, "-c", IMPORT_ALL, json.dumps(users))
    assert done.returncode == 0, done.stderr
    checked = run(home, environment, "-m", "outdo", "check", "recipe.toml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    setting, key = NAMED_BY[extra]
    refused = run(home, environment, "-m", "outdo", "check", "recipe.toml", setting)
    sentence = f"{key}: needs outdo.extras.{extra}, which this installation of outdo does not have"
    assert (refused.returncode, refused.stderr) == (2, f"outdo: {sentence}\n"), refused.stdout


def test_without_any_extra_outdo_trains_stops_and_resumes(home: Path, tmp_path: Path):
    environment = without(tmp_path, *EXTRAS)
    trained = run(home, environment, "-m", "outdo", "train", "recipe.toml", "run=alone", "steps=2", "eval.every=1")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    resumed = run(home, environment, "-m", "outdo", "resume", "runs/alone", "steps=3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    lines = (home / "runs/alone/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
