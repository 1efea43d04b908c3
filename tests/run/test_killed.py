"""A run that is killed at any moment and resumed is the run that was not."""

import pytest
from kill_cases import assert_fell_everywhere, assert_resumed_after, assert_same, killed_and_resumed
from run_cases import outdo_, timeless

RENEWED = 3
"""The step after which the reference is renewed for the first time."""
PLAIN = ("checkpoint.every=1", "steps=12")
FULL = (
    "steps=20",
    "checkpoint.every=2",
    "train.passes=3",
    "train.minibatches=2",
    'train.objective={name = "grpo", beta = 0.1}',
    f"reference.sync.every={RENEWED}",
    "optim.schedule={name = 'cosine', warmup = 10}",
)


@pytest.mark.long
def test_a_run_that_is_killed_again_and_again_equals_an_uninterrupted_one(home, straight):
    kills = killed_and_resumed(home, home / "killed", 5, *PLAIN)
    assert_resumed_after(kills, 1)
    assert_same(home / "killed", straight)


def test_so_does_one_with_a_reference_a_schedule_and_several_passes(home):
    outdo_(home, "train", "recipe.toml", "run=./straight-full", *FULL)
    kills = killed_and_resumed(home, home / "killed-full", 5, *FULL)
    assert_resumed_after(kills, RENEWED)  # the checkpoint holds a reference that is not the first policy
    assert_same(home / "killed-full", home / "straight-full")
    assert all(line["passes/done"] == 3 for line in timeless(home / "killed-full"))
    assert any(line["kl"] > 0 for line in timeless(home / "killed-full"))


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("settings", [PLAIN, FULL], ids=["plain", "full"])
def test_twenty_five_kills_change_nothing(home, settings, threads):
    """Each is compared with a run of as many threads: one and two give equal weights in runs this small only."""
    name = f"{len(settings)}-{threads}"
    more = (*settings, "checkpoint.every=4", "steps=160", f"threads={threads}")
    outdo_(home, "train", "recipe.toml", f"run=./long-{name}", *more)
    kills = killed_and_resumed(home, home / f"long-killed-{name}", 25, *more, apart=3)
    assert_fell_everywhere([kill.fell for kill in kills])
    assert_resumed_after(kills, RENEWED)
    assert_same(home / f"long-killed-{name}", home / f"long-{name}")
