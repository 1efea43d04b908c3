"""Runs that are asked to stop, that are complete, and that go on for longer."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest
from checkpoint_faults import ended_process
from run_cases import (
    MAY_MOUNT,
    PATIENCE,
    Command,
    cold,
    contents,
    metrics,
    outdo_,
    saved,
    steps_done,
    timeless,
    wait_until,
    weights,
    write_home,
)

import outdo.run.training as run_module
from outdo.config.file import load
from outdo.run.assemble.assemble import assemble_run
from outdo.run.check.preflight import Report
from outdo.run.checkpoints import save_times
from outdo.run.display import Display
from outdo.run.interrupt import Interrupted, stop_requested
from outdo.utils.errors import RewardError

HANGS = """
import time
from pathlib import Path

def score(completion, answer):
    if completion and not completion.isdigit():  # not the answers that are tried before the run
        Path("hanging").touch()
        time.sleep(6000)
    return 0.0
"""
MAY_HANG = """
import time
from pathlib import Path

LINES = Path("run/metrics.jsonl")

def score(completion, answer):
    if Path("hang").exists() and LINES.exists() and LINES.read_bytes().count(b"\\n") >= 2:  # in the third step
        Path("hanging").touch()
        time.sleep(6000)
    return len(completion)
"""
HANGING = ("checkpoint.every=20", "reward_limits.timeout=5000", "eval.every=0", "steps=6")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def each_signal(quick: signal.Signals):
    """A test for each signal; all but the `quick` one are for `make test-long`."""
    tried = [pytest.param(each, marks=() if each is quick else pytest.mark.long, id=each.name) for each in SIGNALS]
    return pytest.mark.parametrize("number", tried)


@each_signal(signal.SIGINT)
def test_after_a_signal_the_last_finished_step_is_saved(home, straight, number):
    run = home / f"stopped-{number}"
    command = Command(home, "train", "recipe.toml", f"run=./{run.name}", "steps=12", "checkpoint.every=20")
    wait_until(lambda: steps_done(run) >= 3, command)
    os.kill(command.pid, number)
    assert command.wait() == 128 + number, command.said
    step = steps_done(run)
    assert 3 <= step < 12
    assert saved(run) == [step]
    assert f"stopped after step {step}; continue with `outdo resume {run.name}`" in command.said
    resumed = cold(home, "resume", run.name)  # as a user starts it: with other hashes of strings, for example
    said, _ = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, said
    assert weights(run) == weights(straight)
    assert timeless(run) == timeless(straight)


@pytest.fixture(scope="module")
def never_hung(tmp_path_factory):
    """A run of six steps whose reward could hang, and does not. Not to be changed."""
    home = write_home(tmp_path_factory.mktemp("never-hung"))
    (home / "score.py").write_text(MAY_HANG)
    outdo_(home, "train", "recipe.toml", "run=./run", *HANGING)
    return home / "run"


@each_signal(signal.SIGTERM)
def test_a_reward_that_hangs_does_not_delay_the_end(own_home, never_hung, number):
    """The steps before are saved although the last checkpoint is older, and no weight of the step under way counts."""
    (own_home / "score.py").write_text(MAY_HANG)
    (own_home / "hang").touch()
    command = Command(own_home, "train", "recipe.toml", "run=./run", *HANGING)
    wait_until(lambda: (own_home / "hanging").exists(), command)
    os.kill(command.pid, number)
    assert command.wait() == 128 + number, command.said
    assert "Traceback" not in command.said
    assert saved(own_home / "run") == [steps_done(own_home / "run")] == [2]
    (own_home / "hang").unlink()
    outdo_(own_home, "resume", "run")
    assert weights(own_home / "run") == weights(never_hung)
    assert timeless(own_home / "run") == timeless(never_hung)


def test_a_model_that_was_not_evaluated_has_no_results_of_an_earlier_one_on_its_card(own_home):
    (own_home / "score.py").write_text(MAY_HANG)
    (own_home / "hang").touch()
    command = Command(own_home, "train", "recipe.toml", "run=./run", *HANGING)
    wait_until(lambda: (own_home / "hanging").exists(), command)
    os.kill(command.pid, signal.SIGINT)
    assert command.wait() == 130, command.said
    assert json.loads((own_home / "run/summary.json").read_text())["after"]  # the evaluation before the first step
    outdo_(own_home, "export", "run", "exported")
    card = (own_home / "exported/README.md").read_text()
    assert "The run was not evaluated after step 2, so its held-out results are not known." in card
    assert "model-index" not in card


def test_a_signal_before_the_first_step_is_finished_saves_nothing(own_home):
    (own_home / "score.py").write_text(HANGS)
    command = Command(own_home, "train", "recipe.toml", "run=./run", "reward_limits.timeout=5000")
    wait_until(lambda: (own_home / "hanging").exists(), command)
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == 143, command.said
    assert saved(own_home / "run") == []


SLOW_UPDATE = """
import time
from pathlib import Path
import outdo.run.checkpoints.save_times
import outdo.run.checkpoints.state
from outdo.algorithms.objectives.presets import grpo

class Slow:
    \"\"\"GRPO whose second pass over the batch `at` waits for a file `go`.\"\"\"

    def __init__(self, at: int = 3, copies: bool = True):
        self.formula, self.at = grpo(beta=0.0), at
        if copies:
            outdo.run.checkpoints.save_times.CHECKPOINT_SHARE = float("inf")  # copy every step, however long it takes
        else:
            outdo.run.checkpoints.state.free_memory = lambda device: 0
        self.requires = self.formula.requires
        self.batches = self.calls = 0

    def prepare(self, batch):
        self.batches, self.calls = self.batches + 1, 0
        return self.formula.prepare(batch)

    def __call__(self, scores, batch):
        self.calls += 1  # the second one of a pass measures what is clipped
        if self.batches == self.at and self.calls == 3:
            Path("updating").touch()
            while not Path("go").exists():
                time.sleep(0.01)
        return self.formula(scores, batch)
"""
SLOW = ("steps=5", "train.passes=2", "checkpoint.every=20", "eval.every=0")
WITH_COPIES = "train.objective=slow.py:Slow"
WITHOUT_COPIES = 'train.objective={name = "slow.py:Slow", copies = false}'


def in_an_update(home, objective):
    """The command, whose weights have changed in the first of two passes; it waits for `go`."""
    (home / "slow.py").write_text(SLOW_UPDATE)
    command = Command(home, "train", "recipe.toml", "run=./run", objective, *SLOW)
    wait_until(lambda: (home / "updating").exists(), command)
    return command


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """The same run, which waits for nothing and is not stopped. Not to be changed."""
    home = write_home(tmp_path_factory.mktemp("never-stopped"))
    (home / "slow.py").write_text(SLOW_UPDATE)
    (home / "go").touch()
    outdo_(home, "train", "recipe.toml", "run=./run", WITH_COPIES, *SLOW)
    return home / "run"


def send(command, number, answer):
    os.kill(command.pid, number)
    wait_until(lambda: answer in command.said, command)


@each_signal(signal.SIGTERM)
def test_a_signal_in_an_update_ends_it_at_once_and_the_last_finished_step_is_saved(own_home, never_stopped, number):
    """A preemption leaves half a minute, and an update may take longer."""
    command = in_an_update(own_home, WITH_COPIES)
    os.kill(command.pid, number)
    assert command.wait() == 128 + number, command.said
    assert "stopped after step 2; continue with `outdo resume run`" in command.said
    assert saved(own_home / "run") == [2]
    assert json.loads((own_home / "run/summary.json").read_text())["steps"] == 2
    (own_home / "go").touch()
    outdo_(own_home, "resume", "run")
    assert weights(own_home / "run") == weights(never_stopped)
    assert timeless(own_home / "run") == timeless(never_stopped)


def test_without_memory_for_a_copy_the_step_is_finished_and_a_second_signal_does_not_throw_it_away(
    own_home, never_stopped
):
    command = in_an_update(own_home, WITHOUT_COPIES)
    send(command, signal.SIGTERM, "finishing this step and saving")
    send(command, signal.SIGINT, "a third signal ends at once")
    (own_home / "go").touch()
    assert command.wait() == 143, command.said
    assert saved(own_home / "run") == [3]
    outdo_(own_home, "resume", "run")
    assert weights(own_home / "run") == weights(never_stopped)


@pytest.mark.release
def test_a_third_signal_in_an_update_ends_at_once_and_saves_no_half_step(own_home):
    command = in_an_update(own_home, WITHOUT_COPIES)
    send(command, signal.SIGTERM, "finishing this step and saving")
    send(command, signal.SIGTERM, "a third signal ends at once")
    os.kill(command.pid, signal.SIGINT)
    assert command.wait() == 130, command.said
    assert "Traceback" not in command.said
    assert saved(own_home / "run") == []


@pytest.mark.release
def test_a_signal_in_an_evaluation_keeps_the_step_and_a_resumed_run_evaluates_it(own_home):
    """Held-out questions have the answer 5 and more: the reward waits at them, after the first evaluation."""
    waits = (
        "import time\nfrom pathlib import Path\n"
        "def score(prompt, completion):\n"
        "    if '5=' in prompt and Path('hang').exists() and Path('run/metrics.jsonl').exists():\n"
        "        Path('hanging').touch()\n"
        "        time.sleep(6000)\n"
        "    return len(completion) % 3\n"
    )
    (own_home / "score.py").write_text(waits)
    settings = ("steps=6", "eval.every=2", "checkpoint.every=20", "reward_limits.timeout=5000")
    (own_home / "hang").touch()
    command = Command(own_home, "train", "recipe.toml", "run=./run", *settings)
    wait_until(lambda: (own_home / "hanging").exists(), command)
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == 143, command.said
    assert saved(own_home / "run") == [steps_done(own_home / "run")] == [2]
    assert "eval/greedy" not in metrics(own_home / "run")[-1]
    (own_home / "hang").unlink()
    outdo_(own_home, "resume", "run")
    outdo_(own_home, "train", "recipe.toml", "run=./straight", *settings)
    assert timeless(own_home / "run") == timeless(own_home / "straight")
    summaries = [json.loads((own_home / name / "summary.json").read_text()) for name in ("run", "straight")]
    assert summaries[0]["after"] == summaries[1]["after"]
    assert summaries[0]["best"] == summaries[1]["best"]


def test_an_ignored_signal_stays_ignored():
    """As under nohup: a closed terminal must not stop the run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requested() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not signals
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_came_earlier_interrupts_what_may_be_interrupted():
    with stop_requested() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted), signals.interrupting():
            pytest.fail("the block must not begin")
    assert signals.exit_status == 143


def test_only_the_first_signal_interrupts_and_the_third_ends():
    with stop_requested() as signals:
        with pytest.raises(Interrupted), signals.interrupting():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_while_weights_may_change_interrupts_nothing():
    with stop_requested() as signals:
        with signals.interrupting():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.exit_status == 143


def test_a_checkpoint_that_is_long_ago_is_followed_by_one_out_of_turn(own_home, monkeypatch):
    """Whatever `checkpoint.every` is, at most some minutes are lost."""
    monkeypatch.chdir(own_home)
    monkeypatch.setattr(save_times, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(save_times, "CHECKPOINT_SHARE", math.inf)
    recipe = load("recipe.toml", ["steps=3", "checkpoint.every=20", "checkpoint.keep=9", "eval.every=0"])
    assert run_module.start(Report(recipe=recipe, errors=()), own_home / "run", Display(live=False)) == 0
    assert saved(own_home / "run") == [1, 2, 3]
    monkeypatch.setattr(save_times, "CHECKPOINT_SHARE", 1e-9)  # unless saving takes too large a share of the time
    recipe = load("recipe.toml", ["steps=3", "checkpoint.every=20", "checkpoint.keep=9", "eval.every=0"])
    assert run_module.start(Report(recipe=recipe, errors=()), own_home / "slow", Display(live=False)) == 0
    assert saved(own_home / "slow") == [1, 3]  # the first save is out of turn: nothing is known about its time


def test_resuming_a_complete_run_changes_nothing(home, six_steps):
    before = contents(six_steps)
    assert "complete: step 6 was the last" in outdo_(home, "resume", "six")
    assert contents(six_steps) == before


@pytest.mark.skipif(not MAY_MOUNT, reason="no permission to mount a folder")
def test_a_run_on_a_read_only_file_system_is_read_and_not_resumed(home, six_steps):
    run = shutil.copytree(six_steps, home / "read-only")
    mounted = "mount --bind $0 $0 && mount -o remount,bind,ro $0"
    commands = [f"{sys.executable} -m outdo {command} $0" for command in ("doctor", "runs", "resume")]
    script = " && ".join([mounted, *commands])
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, run.name], cwd=home, capture_output=True, text=True)
    assert "read-only: 6 steps" in done.stdout
    assert (done.returncode, done.stderr) == (
        1,
        "outdo: read-only/lock: cannot be used as a run folder: Read-only file system\n",
    )


def test_resuming_a_run_that_was_killed_before_its_summary_writes_it(home, six_steps):
    run = shutil.copytree(six_steps, home / "no-summary")
    (run / "summary.json").unlink()
    outdo_(home, "resume", run.name)
    assert (run / "summary.json").read_text().replace(run.name, "six") == (six_steps / "summary.json").read_text()


def test_resuming_a_run_that_was_killed_while_it_removed_a_checkpoint_removes_it(home, six_steps):
    run = shutil.copytree(six_steps, home / "half-removed")
    checkpoints = run / "checkpoints"
    shutil.copytree(checkpoints / "step_000006", checkpoints / f".tmp-step_000001-{ended_process()}-pruned")
    shutil.copytree(checkpoints / "step_000006", checkpoints / "step_000002")
    outdo_(home, "resume", run.name)
    assert contents(checkpoints) == contents(six_steps / "checkpoints")


def test_a_run_resumed_with_more_steps_equals_the_longer_run(home, straight, six_steps):
    run = shutil.copytree(six_steps, home / "longer")
    said = outdo_(home, "resume", run.name, "steps=12")
    assert "resumed after step 6 of 12" in said
    assert "steps: 6 in the saved run, 12 now" in said
    assert weights(run) == weights(straight)
    assert "eval/greedy_reward" in metrics(run)[5]  # the shorter run was evaluated at its end: the only difference
    longer = timeless(run)
    longer[5] = {name: value for name, value in longer[5].items() if not name.startswith("eval/")}
    assert longer == timeless(straight)


@pytest.mark.parametrize("fails", [False, True], ids=["it ends", "it fails"])
def test_a_run_ends_the_processes_that_it_has_started(own_home, monkeypatch, fails):
    """Also while somebody holds the run: nothing waits for the garbage collector."""
    runs = []

    def kept(*arguments, **settings):
        runs.append(assemble_run(*arguments, **settings))
        return runs[-1]

    monkeypatch.chdir(own_home)
    monkeypatch.setattr(run_module, "assemble_run", kept)
    if fails:
        (own_home / "score.py").write_text("def score(completion):\n    return 'no number'\n")
    recipe = load("recipe.toml", ["steps=1", "eval.every=0", "data.eval_path="])
    with pytest.raises(RewardError) if fails else contextlib.nullcontext():
        run_module.start(Report(recipe=recipe, errors=()), own_home / "run", Display(live=False))
    (worker,) = runs[0].reward.rewards[0]._workers
    assert worker._process is None
