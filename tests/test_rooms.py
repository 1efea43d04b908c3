"""Each folder of `outdo.extras` can be deleted: the rest works, and a recipe that names it gets one sentence.

So can `outdo.models.fast` and `outdo.rollouts.fast`: a run without them is slower.
"""

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
ALL_EXTRAS = [f"extras/{extra}" for extra in EXTRAS]
FAST_FORWARD, FAST_SAMPLING = "models/fast", "rollouts/fast"
NEED_FAST = {
    'attention="shared"': 'attention = "shared"',
    "compile=true": "compile = true",
    "train.gradient_checkpointing=true": "gradient_checkpointing = true",
}
"""Settings that need the faster forward pass, and how the sentence about each begins."""

NEEDS = r"needs %s, which this installation of outdo does not have"
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


def said_without(
    deleted: Sequence[str], home: Path, folder: Path, *calls: Sequence[str]
) -> list[tuple[str, list[str]]]:
    """Call outdo without some folders, in one interpreter; return the status and the errors of each call."""
    for parent in ("", "extras", "models", "rollouts"):
        copy = folder / "outdo" / parent
        copy.mkdir(parents=True)
        left_out = {SOURCE / name for name in ("extras", "models", "rollouts", *deleted)}
        for source in {*(SOURCE / parent).iterdir()} - left_out:
            if source.name != "__pycache__":
                (copy / source.name).symlink_to(source)
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


def whole_run(name: str) -> tuple[Sequence[str], ...]:
    """The calls that check, train, resume and evaluate a run."""
    return (
        ("check", "recipe.toml"),
        ("train", "recipe.toml", f"run={name}", "steps=2", "eval.every=1"),
        ("resume", f"runs/{name}", "steps=3"),
        ("eval", f"runs/{name}"),
    )


def steps_of(home: Path, name: str) -> list[dict[str, float]]:
    """The metrics of each step of a run."""
    return [json.loads(line) for line in (home / f"runs/{name}/metrics.jsonl").read_text().splitlines()]


def test_without_any_extra_outdo_checks_trains_stops_resumes_and_evaluates_and_refuses_what_needs_one(
    home: Path, tmp_path: Path
):
    works = whole_run("alone")
    said = said_without(ALL_EXTRAS, home, tmp_path, *works, *(arguments for arguments, _ in NAMED_BY.values()))
    for status, errors in said[: len(works)]:
        assert status == "0", errors
    assert [step["step"] for step in steps_of(home, "alone")] == [1, 2, 3]
    sentence = re.compile(".*: " + NEEDS % r"outdo\.extras\.\w+")
    for status, errors in said[len(works) :]:
        assert status == "2", errors
        assert [line for line in errors if not sentence.fullmatch(line)] == [] != errors


@pytest.mark.parametrize(
    ("name", "deleted"),
    [
        ("plain", [FAST_FORWARD, FAST_SAMPLING, *ALL_EXTRAS]),
        pytest.param("forward", [FAST_FORWARD], marks=pytest.mark.release),
        pytest.param("sampling", [FAST_SAMPLING], marks=pytest.mark.release),
    ],
)
def test_without_the_fast_ways_a_run_checks_trains_resumes_and_evaluates_with_the_numbers_of_one_that_has_them(
    name: str, deleted: Sequence[str], home: Path, tmp_path: Path
):
    runs = (whole_run(name), whole_run(f"fast-{name}"))
    said = said_without(deleted, home, tmp_path / "without", *runs[0])
    notes = (home / "runs" / name / "start.txt").read_text()
    missing = "outdo.models.fast" if FAST_FORWARD in deleted else "outdo.rollouts.fast"
    assert f"does not have {missing}" in " ".join(["\n".join(said[1][1]), notes])
    for status, errors in (*said, *said_without((), home, tmp_path / "with", *runs[1])):
        assert status == "0", errors
    plain, fast = steps_of(home, name), steps_of(home, f"fast-{name}")
    assert [step["step"] for step in plain] == [1, 2, 3]
    # The random numbers of an answer are those of its question, so that the first step samples the same tokens.
    for metric in ("reward", "entropy", "grad_norm"):
        assert plain[0][metric] == pytest.approx(fast[0][metric], rel=1e-3)


def test_without_the_fast_ways_what_needs_them_is_refused(home: Path, tmp_path: Path):
    calls = [(*TRAIN, f"run={number}", setting) for number, setting in enumerate(NEED_FAST)]
    for key, (status, errors) in zip(
        NEED_FAST.values(), said_without([FAST_FORWARD], home, tmp_path, *calls), strict=True
    ):
        assert status == "2", errors
        assert errors[-1].endswith(f"{key}: {NEEDS % 'outdo.models.fast'}")


@pytest.mark.parametrize(
    "extra", [pytest.param(each, marks=() if each == "record" else pytest.mark.release) for each in EXTRAS]
)
def test_without_an_extra_outdo_trains_and_refuses_what_needs_it(extra: str, home: Path, tmp_path: Path):
    arguments, key = NAMED_BY.get(extra, ((), ""))
    train = (*TRAIN, f"run={extra}", "steps=2")
    calls = (train, *([arguments] if arguments else []))
    (status, errors), *refused = said_without([f"extras/{extra}"], home, tmp_path, *calls)
    assert status == "0", errors
    needs = NEEDS % rf"outdo\.extras\.{extra}"
    for status, (line,) in refused:
        assert status == "2"
        assert re.fullmatch(rf"outdo: (command line: )?{re.escape(key)}: (.*: )?{needs}", line)
