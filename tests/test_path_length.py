"""Test how many files of outdo one training step executes, from the prompt to the weight update."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from engine_cases import fresh

import outdo
from outdo.algorithms.advantages import group_standardised, per_token

SOURCE = Path(outdo.__file__).parent
MAX_FILES = 33


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
    rollouts = outdo.in_turn(policy, [prompts] * 2, sample)
    return outdo.train(models, rollouts, per_token(group_standardised), objective)


def test_a_step_executes_few_files():
    training, done = steps(), []
    done.append(next(training))  # the first step also prepares the run
    files = executed(lambda: done.append(next(training)))
    assert done[1].update.metrics["grad_norm"] > 0
    print(*sorted(files), len(files), sep="\n")
    assert len(files) <= MAX_FILES, sorted(files)


def test_a_single_process_executes_no_distributed_code():
    assert not [file for file in executed(lambda: list(steps())) if file.startswith("distributed/")]
