"""What else changes in a run (critics, coefficients, reward models, the place in the data) survives a kill as well."""

import pytest
from kill_cases import assert_resumed_after, assert_same, killed_and_resumed
from run_cases import outdo_, timeless

USUAL = ("steps=20", "eval.every=0", "data.eval_path=", "checkpoint.every=1")
JUDGE = '{name = "reward_model", path = "judge", labels = "score.py:score", every = 2, history = 7, lr = 1e-3}'
FAMILY = {
    "ppo": (
        "train.objective=ppo",
        'train.critic={name = "model", lr = 1e-3, warmup = 2}',
        'train.kl_in_reward={name = "k1", beta = {start = 0.05, target = 0.01}}',
        "train.passes=2",
    ),
    "judged": (
        f"rewards={JUDGE}",
        'train.objective={name = "grpo", beta = {start = 0.04, target = 0.01}, entropy_bonus = '
        "{start = 0.01, target = 4.9}}",
        *("reference.sync={every = 5, mix = 0.6}", "train.advantage=gae", "train.critic=head"),
    ),
    "dapo": (
        "train.objective=dapo",
        "rewards=rewards.py:rare",
        *("train.dynamic_sampling=2", "train.group_size=2", "train.passes=2"),
    ),
    "target": (
        "train.objective=target_essay",
        *("train.passes=4", "optim.lr=3e-3"),
        'train.stop={name = "first_of", attained = 0.35}',
    ),
}
CHANGES = {
    "ppo": ("coefficient/kl_in_reward", "value/loss"),
    "judged": ("coefficient/beta", "coefficient/entropy_bonus", "reward_model/replayed", "value/loss"),
    "dapo": ("dynamic_sampling/rounds",),
    "target": ("passes/stopped/attained", "passes/done"),
}
"""Metrics that must have taken more than one value, or the run was none to prove anything by."""


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.release if name == "judged" else pytest.mark.long) for name in FAMILY],
)
def test_a_run_that_is_killed_and_resumed_equals_an_uninterrupted_one(family, method):
    straight, killed = family / f"straight-{method}", family / f"killed-{method}"
    outdo_(family, "train", "recipe.toml", f"run=./{straight.name}", *USUAL, *FAMILY[method])
    for name in CHANGES[method]:
        assert len({line.get(name) for line in timeless(straight)}) > 1, name
    kills = killed_and_resumed(family, killed, 5, *USUAL, *FAMILY[method], apart=4)
    assert_resumed_after(kills, 1)
    assert_same(killed, straight)


EVERYTHING = (
    'train.objective={name = "grpo", beta = {start = 0.04, target = 0.01}}',
    "reference.sync={every = 2, mix = 0.6}",
    *("train.advantage=gae", "train.critic=head", "train.passes=2"),
)


@pytest.mark.release
def test_a_resumed_run_continues_with_all_that_its_steps_have_changed(own_home):
    """The reference, the critic, both optimisers, a coefficient, the place in the data, and the answers before."""
    outdo_(own_home, "train", "recipe.toml", "run=./straight", *USUAL, "steps=6", *EVERYTHING)
    assert len({line["coefficient/beta"] for line in timeless(own_home / "straight")}) > 1
    outdo_(own_home, "train", "recipe.toml", "run=./parts", *USUAL, "steps=3", *EVERYTHING)
    outdo_(own_home, "resume", "parts", "steps=6")
    assert_same(own_home / "parts", own_home / "straight")
