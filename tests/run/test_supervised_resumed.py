"""`outdo sft` and `outdo reward-model` that are killed or stopped are resumed, and become the same model."""

import json
import os
import re
import signal
from contextlib import contextmanager

import pytest
from run_cases import Command, outdo_, wait_until, write_home
from supervised_cases import arguments, assert_same_model, killed_and_continued, saved_steps, steps_said


def straight(home, command):
    """The name of a folder whose model was trained without a pause."""
    out = f"straight-{command}"
    if not (home / out).exists():
        outdo_(home, *arguments(home, command, out))
    return out


@pytest.mark.parametrize("command", ["sft", pytest.param("reward-model", marks=pytest.mark.release)])
def test_a_training_that_is_killed_and_resumed_becomes_the_same_model(home, command):
    moments = killed_and_continued(home, command, f"killed-{command}", 3)
    assert moments[0] == "before the first checkpoint"
    assert {"after a checkpoint", "while saving"} & set(moments)
    assert_same_model(home, f"killed-{command}", straight(home, command))


def stopped(home, command, out, number, *more):
    """Stop a training by a signal after its tenth step; return what it printed, and the step that it saved."""
    running = Command(home, *arguments(home, command, out, *more))
    wait_until(lambda: steps_said(running) >= 10, running)
    os.kill(running.pid, number)
    assert running.wait() == 128 + number, running.said
    assert "Traceback" not in running.said
    (step,) = saved_steps(home / out)
    return running.said, step


@pytest.mark.parametrize(
    ("command", "number"),
    [("sft", signal.SIGTERM), pytest.param("reward-model", signal.SIGINT, marks=pytest.mark.release)],
)
def test_after_a_signal_the_last_finished_step_is_saved(home, command, number):
    out = f"{command}-{number}"
    said, step = stopped(home, command, out, number, "--checkpoint-every", 1000)
    assert f"stopped after step {step}; continue with `outdo resume {out}`" in said
    assert f"resumed after step {step} of 80" in outdo_(home, "resume", f"{out}.unfinished")
    assert_same_model(home, out, straight(home, command))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A home with a fine-tuning that was stopped; tests leave it as it is."""
    home = write_home(tmp_path_factory.mktemp("interrupted"))
    stopped(home, "sft", "tuned", signal.SIGTERM)
    return home


def test_a_resumed_training_is_compared_with_the_one_that_was_saved(interrupted):
    settings, data = interrupted / "tuned.unfinished/settings.json", interrupted / "train.jsonl"
    with kept(settings) as before:
        settings.write_text(json.dumps(json.loads(before) | {"lr": 0.5, "device": "auto"}))
        said = outdo_(interrupted, "resume", "tuned", status=2)
    assert "lr: 0.001 in the saved run, 0.5 now; this changes the run" in said
    assert "`outdo resume tuned --changed` if they are meant" in said
    assert "device" not in said
    with kept(data) as before:
        data.write_bytes(before + b'{"prompt": "7+7=", "answer": "14"}\n')
        said = outdo_(interrupted, "resume", "tuned", status=2)
    assert "--data: the file has changed since the run was started; this changes the run" in said


def test_a_training_is_not_begun_again_over_its_saved_steps(interrupted):
    said = outdo_(interrupted, *arguments(interrupted, "sft", "tuned"), status=2)
    assert "tuned.unfinished: an unfinished training; `outdo resume tuned` continues it, or remove this folder" in said


@pytest.mark.parametrize("folder", ["tuned", "tuned.unfinished"])
def test_a_training_that_is_resumed_keeps_its_settings(interrupted, folder):
    said = outdo_(interrupted, "resume", folder, "lr=0.5", status=2)
    assert "lr: of a training that is resumed, only device, threads, checkpoint_every, steps, epochs may change" in said


def test_a_training_that_is_damaged_on_disk_is_not_resumed(interrupted):
    settings = interrupted / "tuned.unfinished/settings.json"
    for broken, reason in ((b"", "not JSON"), (b'{"command": "rm"}', "no command is called 'rm'")):
        with kept(settings):
            settings.write_bytes(broken)
            assert reason in outdo_(interrupted, "resume", "tuned", status=2)
    (weights,) = interrupted.glob("tuned.unfinished/checkpoints/step_*/model.safetensors")
    with kept(weights) as content:
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        said = outdo_(interrupted, "resume", "tuned", status=1)
    assert "no checkpoint is whole" in said
    assert "model.safetensors: the SHA-256 is not the manifest's" in said


@contextmanager
def kept(path):
    """Yield what a file holds, and write it there again at the end."""
    content = path.read_bytes()
    yield content
    path.write_bytes(content)


def test_two_trainings_of_one_folder_exclude_each_other(own_home):
    first = Command(own_home, *arguments(own_home, "sft", "tuned", "--steps", 100_000, "--checkpoint-every", 20))
    for has_begun in (
        lambda: steps_said(first) >= 1 or re.search("first example", first.said),
        lambda: any((own_home / "tuned.unfinished/checkpoints").glob("step_*")),
    ):
        wait_until(has_begun, first)
        said = outdo_(own_home, *arguments(own_home, "sft", "tuned"), status=1)
        assert f"in use by process {first.pid}" in said
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait() == 143


def test_a_pipe_in_the_place_of_the_settings_is_refused_and_not_waited_for(own_home):
    (own_home / "tuned.unfinished").mkdir()
    os.mkfifo(own_home / "tuned.unfinished/settings.json")
    assert "settings.json: expected a file" in outdo_(own_home, "resume", "tuned", status=2)


def test_a_folder_without_a_run_has_nothing_to_resume(own_home):
    assert "no run is there" in outdo_(own_home, "resume", "nothing", status=2)
