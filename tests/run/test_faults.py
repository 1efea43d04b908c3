"""What goes wrong inside a step: losses that are no numbers, and rewards that fail, hang or say nothing."""

import math
from pathlib import Path

import pytest
from kill_cases import assert_same
from run_cases import Command, metrics, outdo_, saved, timeless, weights
from safetensors.torch import load_file

NAN = '''
from dataclasses import replace
from outdo.algorithms.objectives.presets import grpo

class Nan:
    """GRPO whose loss is no number in the batches `first` to `last`; if `once`, in the first pass over each only."""

    def __init__(self, first: int = 1, last: int = 1000, once: bool = False):
        self.formula, self.first, self.last, self.once = grpo(beta=0.0), first, last, once
        self.requires = self.formula.requires
        self.batches = self.passes = 0

    def prepare(self, batch):
        self.batches, self.passes = self.batches + 1, 0
        return self.formula.prepare(batch)

    def __call__(self, scores, batch):
        terms = self.formula(scores, batch)
        self.passes += 1
        broken = self.first <= self.batches <= self.last and not (self.once and self.passes > 1)
        return replace(terms, loss=terms.loss * float("nan")) if broken else terms
'''


@pytest.fixture
def nan_home(own_home: Path) -> Path:
    (own_home / "nan.py").write_text(NAN)
    return own_home


def train(home: Path, *settings: str, status: int = 0, reward: str | None = None) -> str:
    if reward:
        (home / "score.py").write_text(reward)
    return outdo_(home, "train", "recipe.toml", "run=./run", "checkpoint.keep=9", *settings, status=status)


def test_an_update_that_is_not_finite_is_refused_and_its_batch_kept(nan_home):
    said = train(nan_home, "steps=4", 'train.objective={name = "nan.py:Nan", first = 2, last = 2}')
    run = nan_home / "run"
    assert "update refused: not finite" in said
    assert [line["updates/refused"] for line in metrics(run)] == [0, 1, 0, 0]
    assert metrics(run)[1]["loss"] is None
    assert weights(run, 2) == weights(run, 1)
    assert weights(run, 3) != weights(run, 2)
    assert [path.name for path in (run / "refused").iterdir()] == ["step_000002.safetensors"]
    kept = load_file(run / "refused/step_000002.safetensors")
    assert {"token_ids", "loss_mask", "rewards", "advantages"} <= kept.keys()
    assert kept["loss_mask"].any(1).all()


def test_a_refusal_in_an_earlier_pass_is_not_overlooked(nan_home):
    objective = 'train.objective={name = "nan.py:Nan", first = 2, last = 2, once = true}'
    train(nan_home, "steps=2", "train.passes=2", objective)
    assert (nan_home / "run/refused/step_000002.safetensors").exists()


def test_losses_that_stay_nan_stop_the_run_with_finite_weights(nan_home):
    said = train(nan_home, "steps=9", 'train.objective={name = "nan.py:Nan", first = 3}', status=1)
    run = nan_home / "run"
    assert "3 updates in a row had a loss (nan)" in said
    assert f"saved after step 4; continue with `outdo resume {run.name}`" in said
    assert saved(run) == [1, 2, 3, 4]
    assert weights(run, 4) == weights(run, 2)
    newest = load_file(run / "checkpoints/step_000004/model.safetensors")
    assert all(tensor.isfinite().all() for tensor in newest.values())


FAILS_LATE = '''
import outdo.run.checkpoints.saving
import outdo.run.checkpoints.state
from outdo import OutdoError
from outdo.algorithms.objectives.presets import grpo

class FailsLate:
    """GRPO that raises an error in the second pass over the batch `last`, unless a file `mended` is there.

    Without `copies`, memory has no room for a copy of the last finished step.
    """

    def __init__(self, last: int = 3, copies: bool = True):
        self.formula, self.last = grpo(beta=0.0), last
        outdo.run.checkpoints.saving.CHECKPOINT_SHARE = float("inf")  # copy every step, however long it takes
        if not copies:
            outdo.run.checkpoints.state.free_memory = lambda device: 0
        self.requires = self.formula.requires
        self.batches = self.passes = 0

    def prepare(self, batch):
        self.batches, self.passes = self.batches + 1, 0
        return self.formula.prepare(batch)

    def __call__(self, scores, batch):
        import os
        self.passes += 1
        if self.batches == self.last and self.passes == 2 and not os.path.exists("mended"):
            raise OutdoError("the second pass failed")
        return self.formula(scores, batch)
'''


@pytest.mark.parametrize("copies", [True, False], ids=["copies", "no copies"])
def test_after_an_error_late_in_a_step_the_last_finished_step_is_saved_and_never_half_a_step(own_home, copies):
    """An update of the failing step was made already: its weights belong to no finished step."""
    (own_home / "late.py").write_text(FAILS_LATE)
    objective = f'train.objective={{name = "late.py:FailsLate", copies = {str(copies).lower()}}}'
    keys = ("steps=4", "train.passes=2", "checkpoint.every=20", "eval.every=0", objective)
    said = train(own_home, *keys, status=1)
    run = own_home / "run"
    assert "the second pass failed" in said
    assert ("saved after step 2; continue with `outdo resume run`" in said) == copies
    assert ("step 3 had already changed the weights" in said) != copies
    assert [line["step"] for line in metrics(run)] == [1, 2]
    assert saved(run) == [2] * copies
    (own_home / "mended").touch()
    assert f"resumed after step {2 * copies} of 4" in outdo_(own_home, "resume", "run")
    outdo_(own_home, "train", "recipe.toml", "run=./straight", *keys, "checkpoint.keep=9")
    assert_same(run, own_home / "straight")


CRITIC_FAILS_LATE = (
    "steps=5",
    "train.objective=ppo",
    'train.critic={name = "model", lr = 1e-3}',
    'train.kl_in_reward={name = "k1", beta = {start = 0.05, target = 0.01}}',
    "reference.sync.every=2",
    "checkpoint.every=20",
    "eval.every=0",
    "train.stop=fails.py:fails",
)


def test_the_copy_holds_critic_reference_and_coefficients_too(own_home):
    """The error comes after critic and policy have moved in step 4; the resumed run is that without the error."""
    (own_home / "fails.py").write_text(
        "import os\n"
        "import outdo.run.checkpoints.saving\n"
        "outdo.run.checkpoints.saving.CHECKPOINT_SHARE = float('inf')\n"  # copy every step, however long it takes
        "asked = 0\n"
        "def fails(batch, updates):\n"
        "    global asked\n"
        "    asked += 1\n"
        "    if asked == 4 and not os.path.exists('mended'):\n"
        "        raise RuntimeError('the rule failed')\n"
        "    return ''\n"
    )
    command = Command(own_home, "train", "recipe.toml", "run=./run", *CRITIC_FAILS_LATE)
    assert command.wait() == 1
    assert "the rule failed" in command.said
    assert saved(own_home / "run") == [3]
    (own_home / "mended").touch()
    outdo_(own_home, "resume", "run")
    outdo_(own_home, "train", "recipe.toml", "run=./straight", *CRITIC_FAILS_LATE)
    assert_same(own_home / "run", own_home / "straight")


def test_rewards_that_fail_too_often_stop_the_run_after_the_finished_steps_are_saved(own_home, home, straight):
    """The reward works for the evaluation and four steps, in each process anew."""
    whole = (own_home / "score.py").read_text()
    failing = "asked = 0\n" + whole.replace(
        "    return",
        "    global asked\n    asked += 1\n    if asked > 40:\n        raise KeyError('lost its key')\n    return",
    )
    said = train(own_home, "steps=6", "checkpoint.every=20", status=1, reward=failing)
    run = own_home / "run"
    assert "8 of 8 rewards of this step have no value (8 failed); allowed are 50%" in said
    assert "lost its key" in said
    assert "Its completion: " in said
    assert "saved after step 4; continue with `outdo resume run`" in said
    assert saved(run) == [4]
    assert "resumed after step 4 of 6" in outdo_(own_home, "resume", "run")
    assert [line["reward"] for line in metrics(run)] == [line["reward"] for line in metrics(straight)[:6]]


def test_rewards_that_hang_lose_only_their_own_answers(own_home):
    hanging = (
        "import time, zlib\n"
        "def score(completion, answer):\n"
        "    if completion and not completion.isdigit() and zlib.crc32(completion.encode()) % 8 == 0:\n"
        "        time.sleep(6000)\n"
        "    return len(completion) % 3\n"
    )
    train(own_home, "steps=3", "reward_limits.timeout=2", "reward_limits.max_failed=1.0", reward=hanging)
    timed_out = [line.get("reward_status/timed_out", 0) for line in metrics(own_home / "run")]
    assert len(timed_out) == 3
    assert 0 < sum(timed_out) < 24


def test_answers_a_reward_does_not_apply_to_are_left_out(own_home):
    some = "import zlib\ndef score(completion):\n    return 0.75 if zlib.crc32(completion.encode()) % 2 else None\n"
    train(own_home, "steps=3", reward=some)
    lines = metrics(own_home / "run")
    assert all(0 < line["reward_status/not_applicable"] < 8 for line in lines)
    assert [line["reward"] for line in lines] == [0.75] * 3
    assert [line["rewards/score/mean"] for line in lines] == [0.75] * 3
    assert_only_numbers(own_home / "run")


def test_groups_of_equal_rewards_change_nothing_and_all_metrics_are_finite(own_home):
    train(own_home, "steps=3", reward="def score(completion):\n    return 0.5\n")
    run = own_home / "run"
    assert [line["frac_reward_zero_std"] for line in metrics(run)] == [1.0] * 3
    assert [line["reward_std"] for line in metrics(run)] == [0.0] * 3
    assert weights(run, 1) == weights(run, 2) == weights(run, 3)
    assert_only_numbers(run)


def test_a_step_without_any_reward_is_counted_and_updates_nothing(own_home):
    train(own_home, "steps=2", reward="def score(completion):\n    return None\n")
    run = own_home / "run"
    assert [line["reward_status/not_applicable"] for line in metrics(run)] == [8.0] * 2
    assert [line["passes/done"] for line in metrics(run)] == [0.0] * 2
    assert weights(run, 1) == weights(run, 2)
    assert_only_numbers(run)


def assert_only_numbers(run: Path) -> None:
    values = [value for line in timeless(run) for value in line.values()]
    assert values
    assert all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def test_an_evaluation_that_fails_leaves_no_step_without_its_line(own_home):
    failing = (
        "from pathlib import Path\n"
        "def score(prompt, completion):\n"
        "    asked = Path('asked')\n"  # a file, because several processes score
        "    with asked.open('a') as file:\n"
        "        file.write('x' * ('5=' in prompt))\n"
        "    if asked.stat().st_size > 6 and '5=' in prompt:\n"
        "        raise RuntimeError('the judge is away')\n"
        "    return len(completion) % 3\n"
    )
    keys = ("steps=6", "eval.every=2", "eval.samples=0", "checkpoint.every=20")
    said = train(own_home, *keys, status=1, reward=failing)  # in the third evaluation, after step 4
    assert "saved after step 4" in said
    (own_home / "asked").unlink()
    outdo_(own_home, "resume", "run")
    lines = metrics(own_home / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "eval/greedy_reward" in line] == [2, 4, 6]


def test_weights_that_have_exploded_stop_the_run_and_are_not_saved(own_home):
    said = train(own_home, "steps=9", "optim.lr=1e30", "checkpoint.every=20", "eval.every=0", status=1)
    assert "step 2 (train): the logits of the model are not finite after 0 tokens of an answer to question" in said
    assert "optim.lr" in said
    assert "Traceback" not in said
    assert saved(own_home / "run") == []


def test_a_critic_that_has_exploded_stops_the_run_and_is_not_saved(own_home):
    critic = 'train.critic={name = "head", lr = 1e39}'
    said = train(own_home, "steps=3", "train.objective=ppo", critic, "eval.every=0", status=1)
    assert "the critic: head." in said
    assert "numbers that are not finite; lower the lr of train.critic" in said
    assert saved(own_home / "run") == []
