"""What goes wrong inside a step: losses that are no numbers, and rewards that fail, hang or say nothing."""

import math
from pathlib import Path

import pytest
from kill_cases import assert_same
from run_cases import Command, metrics, outdo_, saved, timeless, weights
from safetensors.torch import load_file

from outdo.run.checkpoints.run_state import run_state

NAN = '''
from dataclasses import replace
from outdo.algorithms.objectives.presets import grpo

class Nan:
    """GRPO whose loss is no number in the first pass over the batches 2 and 4 to 6."""

    def __init__(self):
        self.formula = grpo(beta=0.0)
        self.requires = self.formula.requires
        self.batches = self.passes = 0

    def prepare(self, batch):
        self.batches, self.passes = self.batches + 1, 0
        return self.formula.prepare(batch)

    def __call__(self, scores, batch):
        terms = self.formula(scores, batch)
        self.passes += 1
        broken = self.batches in (2, 4, 5, 6) and self.passes == 1
        return replace(terms, loss=terms.loss * float("nan")) if broken else terms
'''


def train(home: Path, *settings: str, status: int = 0, reward: str | None = None) -> str:
    if reward:
        (home / "score.py").write_text(reward)
    return outdo_(home, "train", "recipe.toml", "run=./run", "checkpoint.keep=9", *settings, status=status)


def test_updates_that_are_not_finite_are_refused_with_their_batches_and_three_in_a_row_stop_the_run(own_home):
    (own_home / "nan.py").write_text(NAN)
    said = train(own_home, "steps=9", "train.objective=nan.py:Nan", status=1)
    run = own_home / "run"
    assert "update refused: not finite" in said
    assert [line["updates/refused"] for line in metrics(run)] == [0, 1, 0, 1, 1]
    assert metrics(run)[1]["loss"] is None
    assert weights(run, 2) == weights(run, 1) != weights(run, 3) == weights(run, 5)
    kept = load_file(run / "refused/step_000002.safetensors")
    assert {"token_ids", "loss_mask", "rewards", "advantages"} <= kept.keys()
    assert kept["loss_mask"].any(1).all()
    assert "3 updates in a row had a loss (nan)" in said
    assert f"saved after step 5; continue with `outdo resume {run.name}`" in said
    newest = load_file(run / "checkpoints/step_000005/model.safetensors")
    assert all(tensor.isfinite().all() for tensor in newest.values())


def test_a_refusal_in_an_earlier_pass_is_not_overlooked(own_home):
    (own_home / "nan.py").write_text(NAN)
    train(own_home, "steps=2", "train.passes=2", "train.objective=nan.py:Nan", "eval.every=0", "data.eval_path=")
    assert (own_home / "run/refused/step_000002.safetensors").exists()


FAILS_LATE = '''
import outdo.run.checkpoints.save_times
import outdo.run.checkpoints.state
from outdo import OutdoError
from outdo.algorithms.objectives.presets import grpo

class FailsLate:
    """GRPO that raises an error in the second pass over the batch `last`, unless a file `mended` is there.

    Without `copies`, memory has no room for a copy of the last finished step.
    """

    def __init__(self, last: int = 3, copies: bool = True):
        self.formula, self.last = grpo(beta=0.0), last
        outdo.run.checkpoints.save_times.CHECKPOINT_SHARE = float("inf")  # copy every step, however long it takes
        if not copies:
            outdo.run.checkpoints.state.free_memory = lambda device: 0
        self.requires = self.formula.requires
        self.batches = self.calls = 0

    def prepare(self, batch):
        self.batches, self.calls = self.batches + 1, 0
        return self.formula.prepare(batch)

    def __call__(self, scores, batch):
        import os
        self.calls += 1  # the second one of a pass measures what is clipped
        if self.batches == self.last and self.calls == 3 and not os.path.exists("mended"):
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
    if copies:  # without them the run begins again
        outdo_(own_home, "train", "recipe.toml", "run=./straight", *keys, "checkpoint.keep=9")
        assert_same(run, own_home / "straight")


def test_a_run_that_fails_keeps_the_error_until_it_is_resumed(own_home):
    (own_home / "late.py").write_text(FAILS_LATE)
    objective = 'train.objective={name = "late.py:FailsLate", last = 2}'
    train(own_home, "steps=3", "train.passes=2", "eval.every=0", "data.eval_path=", objective, status=1)
    state = run_state(own_home / "run")
    assert (str(state), state.error) == ("failed at step 1 of 3", "the second pass failed")
    assert "run: failed: the second pass failed" in outdo_(own_home, "runs", ".")
    told = outdo_(own_home, "doctor", "run")
    assert "warning: step 1: the run failed after this step: the second pass failed. `outdo resume`" in told
    (own_home / "mended").touch()
    outdo_(own_home, "resume", "run")
    assert str(run_state(own_home / "run")) == "finished after 3 steps"
    assert "failed" not in outdo_(own_home, "runs", ".") + outdo_(own_home, "doctor", "run")


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


@pytest.mark.release
def test_the_copy_holds_critic_reference_and_coefficients_too(own_home):
    """The error comes after critic and policy have moved in step 4; the resumed run is that without the error."""
    (own_home / "fails.py").write_text(
        "import os\n"
        "import outdo.run.checkpoints.save_times\n"
        "outdo.run.checkpoints.save_times.CHECKPOINT_SHARE = float('inf')\n"  # copy every step, however long it takes
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
    """The reward works for the three answers that are tried first, the evaluation and four steps, in each process."""
    whole = (own_home / "score.py").read_text()
    failing = "asked = 0\n" + whole.replace(
        "    return",
        "    global asked\n    asked += 1\n    if asked > 43:\n        raise KeyError('lost its key')\n    return",
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


@pytest.mark.release
def test_rewards_that_hang_lose_only_their_own_answers(own_home):
    hanging = (
        "import time, zlib\n"
        "def score(completion, answer):\n"
        "    if completion and not completion.isdigit() and zlib.crc32(completion.encode()) % 8 == 0:\n"
        "        time.sleep(6000)\n"
        "    return len(completion) % 3\n"
    )
    limits = ("reward_limits.timeout=2", "reward_limits.max_failed=1.0")
    train(own_home, "steps=1", "eval.every=0", "data.eval_path=", *limits, reward=hanging)
    (line,) = metrics(own_home / "run")
    assert 0 < line["reward_status/timed_out"] < 8


def test_steps_with_few_equal_or_no_rewards_are_counted_and_metrics_stay_finite(own_home):
    """Some answers of the first step have no reward; those of the second have equal ones; those of the third none."""
    by_step = (
        "from pathlib import Path\n"
        "import zlib\n"
        "lines = Path('run/metrics.jsonl')\n"
        "def score(completion):\n"
        "    step = 1 + (lines.read_bytes().count(b'\\n') if lines.exists() else 0)\n"
        "    if step == 3 or step == 1 and zlib.crc32(completion.encode()) % 2:\n"
        "        return None\n"
        "    return 0.75\n"
    )
    train(own_home, "steps=3", "eval.every=0", "data.eval_path=", reward=by_step)
    run = own_home / "run"
    some, equal, none = metrics(run)
    assert 0 < some["reward_status/not_applicable"] < 8
    assert some["reward"] == some["rewards/score/mean"] == 0.75
    assert (equal["frac_reward_zero_std"], equal["reward_group_std"]) == (1.0, 0.0)
    assert (none["reward_status/not_applicable"], none["passes/done"]) == (8.0, 0.0)
    assert weights(run, 1) == weights(run, 2) == weights(run, 3)
    values = [value for line in timeless(run) for value in line.values()]
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


EXPLODING = """
import outdo
import torch

def exploding(policy):
    critic = outdo.own_head(policy)
    update = critic.update

    def explode(batch):
        metrics = update(batch)
        with torch.no_grad():
            next(critic.trained.parameters()).fill_(float("inf"))
        return metrics

    critic.update = explode
    return critic
"""


def test_a_critic_that_has_exploded_stops_the_run_and_is_not_saved(own_home):
    (own_home / "explode.py").write_text(EXPLODING)
    critic = "train.critic=explode.py:exploding"
    said = train(own_home, "steps=3", "train.objective=ppo", critic, "eval.every=0", status=1)
    assert "the critic: head." in said
    assert "numbers that are not finite; lower the lr of train.critic" in said
    assert saved(own_home / "run") == []
