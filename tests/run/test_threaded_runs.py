"""Whole runs with two threads in one process: the same bits, straight, killed and resumed; also of a loop in Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kill_cases import assert_same, killed_and_resumed
from run_cases import SOURCE, outdo_, write_home, write_rows
from thread_cases import HIDDEN, different_bits, python_loop

from outdo.testing import tiny_model

CROWD = (
    *("threads=2", "steps=8", "train.prompts=1", "train.group_size=256", "sampling.max_tokens=2"),
    *("eval.every=0", "data.eval_path="),
)
"""512 tokens, of which half are predicted by one state."""
METHODS = {
    "grpo": ("train.objective={name='grpo', beta=0.0}",),
    "ppo": ("train.objective=ppo", "train.critic={name='model', lr=1e-3}"),
    "target": ("train.objective=target",),
}
OWN = """
import torch

from outdo import Terms


def puts(scores, batch):
    values = scores.logprobs[batch.loss_mask]
    values = values.put(torch.tensor([0]), values[:1].detach())
    loss = -values.sum()
    return Terms(policy=-loss, divergence=0 * loss, entropy=0 * loss, loss=loss)
"""


@pytest.fixture(scope="module")
def wide_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose model is wide enough for torch to divide its work."""
    home = write_home(tmp_path_factory.mktemp("wide"))
    tiny_model(home / "model", hidden=HIDDEN, layers=1)
    (home / "own.py").write_text(OWN)
    return home


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("grpo", marks=pytest.mark.release),
        *(pytest.param(each, marks=pytest.mark.long) for each in ("ppo", "target")),
    ],
)
def test_a_run_with_two_threads_that_is_killed_is_the_uninterrupted_one(wide_home: Path, method: str):
    settings = (*CROWD, *METHODS[method])
    outdo_(wide_home, "train", "recipe.toml", f"run=./{method}", *settings)
    killed_and_resumed(wide_home, wide_home / f"{method}-killed", 2, *settings)
    assert_same(wide_home / f"{method}-killed", wide_home / method)


def test_a_loop_in_python_has_the_same_weights_each_time(tmp_path: Path):
    """Without the switch: outdo's own operations need none."""
    assert different_bits(tmp_path, python_loop, 2, times=3) == {"weights": 1}


@pytest.mark.release
def test_an_evaluation_with_two_threads_gives_the_same_answers(wide_home: Path):
    write_rows(wide_home / "asked.jsonl", [{"prompt": f"{a}+5=", "answer": str(a + 5)} for a in range(8)])
    asked = ("--data", "asked.jsonl", "--k", "32", "--max-tokens", "4", "--device", "cpu", "--rewards", "last_number")
    for name in ("first", "second"):  # a new interpreter reads OMP_NUM_THREADS
        arguments = [sys.executable, "-m", "outdo", "eval", "model", *asked, "--answers", f"{name}.parquet"]
        variables = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": SOURCE}
        subprocess.run(arguments, cwd=wide_home, env=variables, check=True)
    assert (wide_home / "first.parquet").read_bytes() == (wide_home / "second.parquet").read_bytes()


def test_an_operation_without_a_deterministic_algorithm_is_named_in_one_sentence(wide_home: Path):
    said = outdo_(wide_home, "train", "recipe.toml", "run=./put", *CROWD, "train.objective=own.py:puts", status=1)
    assert re.search(r"outdo: the operation put_.*own\.py, line 9,.* no deterministic algorithm", said)
