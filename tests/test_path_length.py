"""Test which files of outdo one training step executes, from the prompt to the weight update, and how many."""

import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from engine_cases import fresh

import outdo
from outdo.algorithms.advantages import group_standardised, per_token

SOURCE = Path(outdo.__file__).parent
CONTRIBUTING = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAX_FILES = 38
FASTER = ("models/fast/", "rollouts/fast/")


def executed(run: Callable[[], Any]) -> set[str]:
    """Return the files of outdo in which `run` executes a function; imports do not count."""
    paths = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            paths.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return {str(Path(path).relative_to(SOURCE)) for path in paths if path.startswith(str(SOURCE))}


def steps() -> Iterator[outdo.Step]:
    """Run GRPO with one process, the built-in engine and a plain reward function."""
    policy = fresh(optimiser=outdo.OptimiserSettings(lr=1e-3))
    prompts = [
        outdo.Prompt(id=str(number), text="", token_ids=tuple(policy.tokenizer.encode(f"question {number}")))
        for number in range(4)
    ]
    reward = outdo.load_reward(lambda completion: float(len(completion) % 2))
    sampling = outdo.SamplingParams(max_tokens=8)
    sample = outdo.GroupSampler(outdo.BuiltinEngine(policy), outdo.SingleTurn(reward), group_size=4, sampling=sampling)
    objective = outdo.grpo(beta=0)
    models = outdo.Models.of(policy, objective)
    rollouts = outdo.in_turn(policy, islice(outdo.Prompts(prompts, per_step=4), 2), sample)
    return outdo.train(models, rollouts, per_token(group_standardised), objective)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step executes where the faster ways were deleted."""
    for chooser in ("models.choose_forward", "rollouts.engines.choose_batching"):
        monkeypatch.setattr(f"outdo.{chooser}.fast", lambda spec: None)


@pytest.mark.usefixtures("plain")
def test_a_plain_step_executes_few_files_and_nothing_of_the_faster_ways():
    training, done = steps(), []
    done.append(next(training))  # the first step also prepares the run
    files = executed(lambda: done.append(next(training)))
    assert done[1].update.metrics["grad_norm"] > 0
    print(*sorted(files), len(files), sep="\n")
    assert not [file for file in files if file.startswith(FASTER)]
    assert len(files) <= MAX_FILES, sorted(files)


def test_a_step_executes_nothing_of_the_extras():
    assert not [file for file in executed(lambda: list(steps())) if file.startswith("extras/")]


@pytest.mark.usefixtures("plain")
def test_the_reading_path_is_short_and_a_plain_step_executes_every_file_of_it():
    path = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", CONTRIBUTING, flags=re.MULTILINE)
    assert len(path) == 18
    assert sum((SOURCE / file).read_text(encoding="utf-8").count("\n") for file in path) <= 3_775
    assert set(path) <= executed(lambda: list(steps()))


def test_the_files_to_begin_with_exist():
    named = re.findall(
        r"`([a-z_]+/[\w/]+\.py)`", CONTRIBUTING.partition("## The reading path")[2].partition("## The folders")[0]
    )
    assert named
    assert not [file for file in named if file != "examples/one_file.py" and not (SOURCE / file).is_file()]
