"""Each folder of `outdo.extras` can be deleted: the rest works, and a recipe that names it gets one sentence."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from run_cases import write_home

import outdo

SOURCE = Path(outdo.__file__).parent
EXTRAS = sorted(each.name for each in (SOURCE / "extras").iterdir() if (each / "__init__.py").is_file())

NEEDS = r"needs outdo\.extras\.%s, which this installation of outdo does not have"
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


PROGRAM = """
import json, sys, traceback
from outdo.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["outdo", *arguments]
    status = 0
    try:
        main()
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        status = traceback.format_exc()
    print(f"status {status}", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


def said_without(extras: Sequence[str], home: Path, folder: Path, *calls: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Call outdo without some extras, in one interpreter; return the status and the errors of each call."""
    place = folder / "outdo"
    (place / "extras").mkdir(parents=True)
    for source, copy in ((SOURCE, place), (SOURCE / "extras", place / "extras")):
        for each in source.iterdir():
            if each.name not in ("extras", "__pycache__", *extras):
                (copy / each.name).symlink_to(each)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(calls)],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    *parts, _ = re.split(r"^status (.*)\n", done.stderr, flags=re.MULTILINE)
    return [(status, errors.splitlines()) for errors, status in zip(parts[::2], parts[1::2], strict=True)]


def test_each_extra_is_named_by_a_setting_or_a_command():
    assert sorted([*NAMED_BY, "record"]) == EXTRAS


def test_without_any_extra_outdo_checks_trains_stops_resumes_and_evaluates_and_refuses_what_needs_one(
    home: Path, tmp_path: Path
):
    works = (
        ("check", "recipe.toml"),
        ("train", "recipe.toml", "run=alone", "steps=2", "eval.every=1"),
        ("resume", "runs/alone", "steps=3"),
        ("eval", "runs/alone"),
    )
    said = said_without(EXTRAS, home, tmp_path, *works, *(arguments for arguments, _ in NAMED_BY.values()))
    for status, errors in said[: len(works)]:
        assert status == "0", errors
    lines = (home / "runs/alone/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    sentence = re.compile(".*: " + NEEDS % r"\w+")
    for status, errors in said[len(works) :]:
        assert status == "2", errors
        assert [line for line in errors if not sentence.fullmatch(line)] == [] != errors


@pytest.mark.parametrize(
    "extra", [pytest.param(each, marks=() if each == "record" else pytest.mark.release) for each in EXTRAS]
)
def test_without_an_extra_outdo_trains_and_refuses_what_needs_it(extra: str, home: Path, tmp_path: Path):
    arguments, key = NAMED_BY.get(extra, ((), ""))
    train = (*TRAIN, f"run={extra}", "steps=2")
    (status, errors), *refused = said_without([extra], home, tmp_path, train, *([arguments] if arguments else []))
    assert status == "0", errors
    for status, (line,) in refused:
        assert status == "2"
        assert re.fullmatch(rf"outdo: (command line: )?{re.escape(key)}: (.*: )?{NEEDS % extra}", line)
