"""The memory that `outdo check` expects teachers to take of the policy's device."""

from pathlib import Path

import pytest
import torch

from outdo.config.file import load
from outdo.models.inspect_folder import inspect_folder
from outdo.models.limits import SUM_BYTES
from outdo.run.check.teachers import BUFFERS, teacher_memory
from outdo.testing import tiny_model

WEIGHTS, LOGITS = "weights of the teachers", "logits of policy and teachers while training"
STATES = "hidden states of the teachers while training"
NEEDED = ("data.path=x.jsonl", "rewards=exact", "train.prompts=2", "train.group_size=3", "device=cpu")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a larger teacher in float32 and in bfloat16."""
    home = tmp_path_factory.mktemp("teachers")
    tiny_model(home / "model")
    tiny_model(home / "teacher", hidden=48)
    narrow, _ = tiny_model(home / "narrow", hidden=48)
    narrow.to(torch.bfloat16).save_pretrained(home / "narrow")
    return home


def memory(home: Path, teachers: str, *settings: str) -> dict[str, int]:
    recipe = load(None, [f"model={home / 'model'}", *NEEDED, f"teachers={teachers}", *settings])
    return teacher_memory(recipe, inspect_folder(home / "model"), longest=100)


def test_it_is_that_of_the_weights_as_they_are_stored_and_of_states_and_logits(home):
    parameters = inspect_folder(home / "teacher").parameters
    found = memory(home, f"{home}/teacher", "train.objective=gkd")
    assert found == {
        WEIGHTS: 4 * parameters,
        LOGITS: BUFFERS * SUM_BYTES["cpu"],
        STATES: 4 * 48 * 2 * 3 * 100,
    }
    assert memory(home, f"{home}/narrow", "train.objective=gkd")[WEIGHTS] == 2 * parameters


def test_the_sampled_token_needs_neither_states_nor_logits(home):
    assert memory(home, f"{home}/teacher", "train.objective=distillation").keys() == {WEIGHTS}


def test_what_is_elsewhere_or_counted_already_takes_nothing(home):
    elsewhere = f'{{model = "{home}/teacher", device = "cuda:1"}}'
    assert WEIGHTS not in memory(home, elsewhere, "train.objective=gkd")
    assert WEIGHTS not in memory(home, "reference", "train.objective=gkd")
    hint = '{model = "policy", hint = "{prompt} {answer}"}'
    assert memory(home, hint, "train.objective=gkd")[WEIGHTS] == 4 * 32 * 264  # its output layer


def test_a_teacher_that_is_not_used_takes_nothing(home):
    assert memory(home, f"{home}/teacher") == {}
