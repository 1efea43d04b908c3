"""A home where every method of the family can run, and what its checkpoints hold."""

import itertools
import json
from pathlib import Path
from typing import Any

from run_cases import outdo_, write_home, write_rows
from safetensors.torch import load_file
from torch import Tensor

from outdo.run.checkpoints import checkpoint
from outdo.testing import tiny_model

REWARDS = '''
def rare(completion):
    """Right if the answer begins with a letter or a digit."""
    return float(completion[:1].isalnum())


def small(completion):
    """A reward of another size."""
    return 0.01 * len(set(completion))
'''
OWN = '''
"""What a user might write: a surrogate, an advantage, objectives."""

import json

import torch

from outdo import Terms, grpo


def share_of(log_ratio, logprobs, advantages, batch, *, share=1.0):
    return share * advantages * log_ratio.exp()


def three(rewards, group):
    return torch.full_like(rewards, 3.0)


def nothing(scores, batch):
    none = 0 * scores.logprobs[batch.loss_mask].sum()
    return Terms(policy=none, divergence=none, entropy=none, loss=none)


class Seen:
    """GRPO that writes down, a line a batch, what it is given."""

    def __init__(self, *, file):
        self.file, self.formula = file, grpo(beta=0.0)
        self.requires = self.formula.requires

    def prepare(self, batch):
        names = ("rewards", "group", "advantages", "loss_mask", "truncated")
        seen = {name: getattr(batch, name).tolist() for name in names}
        seen["parts"] = {name: part.tolist() for name, part in batch.reward_parts.items()}
        with open(self.file, "a") as lines:
            lines.write(json.dumps(seen) + "\\n")
        return self.formula.prepare(batch)

    def __call__(self, scores, batch):
        return self.formula(scores, batch)
'''
ENDING = f"sampling.stop={list(range(20, 60))}"
"""Some answers of the untrained model end by themselves, at different lengths; others are cut off."""


def write_family(folder: Path) -> Path:
    """What `write_home` writes; a `teacher`, a `judge`, what a user might write, and the quickstart's names."""
    write_home(folder)
    tiny_model(folder / "teacher", seed=1)
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "own.py").write_text(OWN)
    write_rows(folder / "pairs.jsonl", [{"prompt": "1+1=", "chosen": "11", "rejected": "..."}] * 4)
    (folder / "quickstart").mkdir()
    for name, made in {"warm": "model", "questions.jsonl": "train.jsonl", "held_out.jsonl": "held_out.jsonl"}.items():
        link = folder / "quickstart/seed-0" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(folder / made)
    (folder / "quickstart/reward-model").symlink_to(folder / "judge")
    asked = ("--steps", "2", "--lr", "1e-3", "--holdout", "0", "--device", "cpu")
    outdo_(folder, "reward-model", "model", "--data", "pairs.jsonl", "--out", "judge", *asked)
    return folder


class Trained:
    """`outdo train` in a home, each time in a new folder, without evaluation, every checkpoint kept."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.numbers = itertools.count(1)

    def __call__(self, *settings: str, steps: int = 2) -> Path:
        """The run's folder."""
        run = self.home / f"run-{next(self.numbers)}"
        usual = ("eval.every=0", "data.eval_path=", "checkpoint.keep=9", f"steps={steps}")
        outdo_(self.home, "train", "recipe.toml", f"run=./{run.name}", *usual, *settings)
        return run


def state(run: Path, step: int) -> dict[str, Any]:
    """What the checkpoint of a step holds besides the policy's weights."""
    return checkpoint.load_state(run / "checkpoints" / f"step_{step:06d}")


def policy_weights(model: Path) -> dict[str, Tensor]:
    """The tensors of a model folder."""
    return load_file(model / "model.safetensors")


def seen(path: Path) -> list[dict[str, Any]]:
    """What `own.py:Seen` wrote down."""
    return [json.loads(line) for line in path.read_text().splitlines()]
