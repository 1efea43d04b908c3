"""Every method on one, two and four replicas: the same tokens and answers, and the same weights but for rounding."""

from pathlib import Path

import pytest
import torch
from family_cases import ENDING
from run_cases import cold, ended, outdo_, saved, timeless
from safetensors.torch import load_file

from outdo.config.names import OBJECTIVES
from outdo.extras.record.parquet import read

STEPS = 20
USUAL = (f"steps={STEPS}", "eval.every=10", "checkpoint.every=20", "optim.lr=1e-4", ENDING)
LARGER_EPS = 'optim.algorithm={name = "adamw", eps = 1e-5}'
"""Some gradients of these methods are rounding errors alone: of a pull on log π/π_rollout, 0 in the first pass,
and of a group whose probabilities are already those of the target. AdamW divides a gradient by its own size."""
NEEDED = {"ppo": ("train.advantage=gae", "train.critic=head")}
NEEDED |= dict.fromkeys(("distillation", "gkd"), ("teachers=teacher",))
NEEDED["rejection"] = ("rewards=rewards.py:rare", "eval.right=rare")
NEEDED |= dict.fromkeys(("prime_rl", "prime_rl_ipo", "tpo"), (LARGER_EPS,))
JUDGE = '{name = "reward_model", path = "judge", labels = "score.py:score", every = 5, replay = 0.5, lr = 1e-4}'
OTHERS = {
    "a critic with a body of its own": ("train.objective=ppo", "train.passes=2"),
    "an adapter": ('train.adapter={name = "lora", rank = 4, alpha = 8}', 'train.objective={name = "grpo", beta = 0.1}'),
    "a reward model that is refreshed": (f"rewards={JUDGE}", "train.objective=grpo", "train.objective.beta=0.1"),
    "a reference that follows": ("train.objective=grpo", "train.objective.beta=0.1", "reference.sync.every=4"),
}
ATTAINED = {"unreachable", "attained", "overshoot", "target_reached"}
CASES = {name: (f"train.objective={name}", *NEEDED.get(name, ())) for name in OBJECTIVES} | OTHERS


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_replicas_samples_the_same_tokens_and_learns_the_same_weights(family: Path, case: str):
    settings, name = (*USUAL, *CASES[case]), case.replace(" ", "-")
    alone = family / f"{name}-1"
    outdo_(family, "train", "recipe.toml", f"run=./{alone.name}", *settings)
    for replicas in (2, 4):
        run = family / f"{name}-{replicas}"
        command = cold(family, "train", "recipe.toml", f"run=./{run.name}", f"cluster.replicas={replicas}", *settings)
        status, said = ended(command)
        assert status == 0, said
        for step in range(1, STEPS + 1):
            for column in ("token_ids", "reward"):
                assert read(run, step).column(column).equals(read(alone, step).column(column)), (step, column)
        assert furthest_apart(run, alone) <= 3e-6
        assert names(run) == names(alone)


def names(run: Path) -> list[set[str]]:
    """The metrics of each step, without those that are missing where every target is attained, up to rounding."""
    return [line.keys() - ATTAINED for line in timeless(run)]


def furthest_apart(one: Path, other: Path) -> float:
    """The largest difference of two trained weights."""
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    return max((mine[name] - theirs[name]).abs().max().item() for name in mine)


def weights(run: Path) -> dict[str, torch.Tensor]:
    (path,) = (run / "checkpoints" / f"step_{saved(run)[-1]:06d}").glob("*model.safetensors")
    return load_file(path)
