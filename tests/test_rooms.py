"""Each folder of `outdo.extras` can be deleted: the rest works, and a recipe that names it gets one sentence."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_cases import write_home

import outdo

SOURCE = Path(outdo.__file__).parent
EXTRAS = sorted(each.name for each in (SOURCE / "extras").iterdir() if (each / "__init__.py").is_file())

TRAIN = ("train", "recipe.toml")
NAMED_BY: dict[str, tuple[tuple[str, ...], str]] = {
    "agents": ((*TRAIN, 'environment={name="agent",run="mine.py:run"}'), "environment"),
    "convert": (("convert", "trl"), "convert"),
    "doctor": (("doctor", "runs/first"), "doctor"),
    "episodes": ((*TRAIN, 'environment="mine.py:Game"'), "environment"),
    "explain": (("explain",), "explain"),
    "gym": ((*TRAIN, 'data.path="reasoning-gym:leg_counting"'), "data.path"),
    "hub": ((*TRAIN, 'data.path="openai/gsm8k"'), "data.path"),
    "judge": ((*TRAIN, 'rewards={name="judge",url="http://host:8000",model="m",prompt="p"}'), 'rewards = "judge"'),
    "page": (("inspect", "runs/first"), "inspect"),
    "plan": (("plan",), "plan"),
    "profiler": ((*TRAIN, "--profile"), "profile"),
    "quickstart": (("quickstart",), "quickstart"),
    "ray": ((*TRAIN, 'engine={name="builtin",processes=1,place="ray"}'), "engine.place"),
    "remote_engines": ((*TRAIN, 'engine={name="builtin",processes=2}'), 'engine = "builtin"'),
    "replicas": ((*TRAIN, "cluster.replicas=2"), "cluster.replicas"),
    "reward_models": ((*TRAIN, 'rewards={name="reward_model",path="model"}'), 'rewards = "reward_model"'),
    "sandbox": ((*TRAIN, 'rewards="code"'), 'rewards = "code"'),
    "sft": (("sft", "model"), "sft"),
    "staleness": ((*TRAIN, "train.max_staleness=1", 'engine={name="builtin",processes=1}'), "train.max_staleness"),
    "tools": ((*TRAIN, 'environment={name="tools",functions="mine.py:add"}'), "environment"),
    "trackers": ((*TRAIN, 'track="wandb"'), "track"),
    "vllm": ((*TRAIN, 'engine={name="vllm",url="http://host:8000"}'), 'engine = "vllm"'),
}
"""For each extra a call of `outdo` that needs it, and how the sentence about it begins. No setting names the record."""


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


def test_each_extra_is_named_by_a_setting_or_a_command():
    assert sorted([*NAMED_BY, "record"]) == EXTRAS


@pytest.mark.parametrize("extra", NAMED_BY)
def test_a_setting_or_a_command_that_needs_a_deleted_extra_gets_one_sentence(extra: str, home: Path, tmp_path: Path):
    arguments, key = NAMED_BY[extra]
    refused = run(home, without(tmp_path, extra), "-m", "outdo", *arguments)
    sentence = f"needs outdo.extras.{extra}, which this installation of outdo does not have"
    assert refused.returncode == 2, refused.stderr
    (line,) = refused.stderr.splitlines()
    assert re.fullmatch(rf"outdo: (command line: )?{re.escape(key)}: (.*: )?{re.escape(sentence)}", line)


@pytest.mark.parametrize(
    "extra", [pytest.param(each, marks=() if each == "record" else pytest.mark.release) for each in EXTRAS]
)
def test_without_an_extra_outdo_trains(extra: str, home: Path, tmp_path: Path):
    done = run(home, without(tmp_path, extra), "-m", "outdo", "train", "recipe.toml", f"run={extra}", "steps=2")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_any_extra_outdo_checks_trains_stops_resumes_and_evaluates(home: Path, tmp_path: Path):
    environment = without(tmp_path, *EXTRAS)
    for arguments in (
        ("check", "recipe.toml"),
        ("train", "recipe.toml", "run=alone", "steps=2", "eval.every=1"),
        ("resume", "runs/alone", "steps=3"),
        ("eval", "runs/alone"),
    ):
        done = run(home, environment, "-m", "outdo", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    lines = (home / "runs/alone/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
