"""`outdo sft` and `outdo reward-model` that are killed or stopped are resumed, and become the same model."""

import json
import os
import re
import signal

import pytest
from kill_cases import assert_fell_everywhere
from run_cases import Command, outdo_, wait_until
from supervised_cases import arguments, assert_same_model, killed_and_continued, saved_steps, steps_said

COMMANDS = pytest.mark.parametrize("command", ["sft", "reward-model"])


def straight(home, command):
    """The name of a folder whose model was trained without a pause."""
    out = f"straight-{command}"
    if not (home / out).exists():
        outdo_(home, *arguments(home, command, out))
    return out


@COMMANDS
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


@pytest.mark.long
@COMMANDS
def test_twenty_five_kills_change_nothing(home, command):
    long = ("--steps", 400)
    outdo_(home, *arguments(home, command, f"long-{command}", *long))
    moments = killed_and_continued(home, command, f"long-killed-{command}", 25, *long)
    assert_fell_everywhere(moments)
    assert_same_model(home, f"long-killed-{command}", f"long-{command}")


@pytest.mark.parametrize(("command", "number"), [("sft", signal.SIGTERM), ("reward-model", signal.SIGINT)])
def test_after_a_signal_the_last_finished_step_is_saved(home, command, number):
    out = f"{command}-{number}"
    said, step = stopped(home, command, out, number, "--checkpoint-every", 1000)
    assert f"stopped after step {step}; continue with `outdo resume {out}`" in said
    assert step >= 10
    assert f"resumed after step {step} of 80" in outdo_(home, "resume", out)
    assert_same_model(home, out, straight(home, command))


def test_a_resumed_training_is_compared_with_the_one_that_was_saved(own_home):
    said, step = stopped(own_home, "sft", "tuned", signal.SIGTERM)
    settings = own_home / "tuned.unfinished/settings.json"
    before = settings.read_text()
    settings.write_text(json.dumps(json.loads(before) | {"lr": 0.5, "device": "auto"}))
    said = outdo_(own_home, "resume", "tuned", status=2)
    assert "lr: 0.001 in the saved run, 0.5 now; this changes the run" in said
    assert "`outdo resume tuned --changed` if they are meant" in said
    assert "device" not in said
    settings.write_text(before)
    with (own_home / "train.jsonl").open("a") as file:
        file.write('{"prompt": "7+7=", "answer": "14"}\n')
    said = outdo_(own_home, "resume", "tuned", status=2)
    assert "--data: the file has changed since the run was started; this changes the run" in said
    assert saved_steps(own_home / "tuned") == [step]
    said = outdo_(own_home, "resume", "tuned", "--changed")
    assert "--data: the file has changed" in said
    assert "the fine-tuned model is in tuned" in said


def test_a_training_is_not_begun_again_over_its_saved_steps(own_home):
    _, step = stopped(own_home, "sft", "tuned", signal.SIGTERM)
    said = outdo_(own_home, *arguments(own_home, "sft", "tuned"), status=2)
    assert "tuned.unfinished: an unfinished training; `outdo resume tuned` continues it, or remove this folder" in said
    said = outdo_(own_home, "resume", "tuned", "steps=90", status=2)
    assert "the settings of `outdo sft` and `outdo reward-model` stay as they are on resume" in said
    assert saved_steps(own_home / "tuned") == [step]


def test_a_training_that_is_damaged_on_disk_is_not_resumed(own_home, home):
    _, step = stopped(own_home, "sft", "tuned", signal.SIGTERM)
    settings = own_home / "tuned.unfinished/settings.json"
    whole = settings.read_text()
    for broken, reason in (
        ("", "not JSON"),
        ("[]", "expected the settings of"),
        ('{"command": "rm"}', "no command is called 'rm'"),
        ('{"command": "sft"}', "not the settings of `outdo sft`"),
    ):
        settings.write_text(broken)
        assert reason in outdo_(own_home, "resume", "tuned", status=2)
    settings.write_text(whole)
    weights = own_home / f"tuned.unfinished/checkpoints/step_{step:06d}/model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    said = outdo_(own_home, "resume", "tuned", status=1)
    assert "no checkpoint is whole" in said
    assert "model.safetensors: the SHA-256 is not the manifest's" in said
    weights.write_bytes(content)
    outdo_(own_home, "resume", "tuned")
    undisturbed = home / straight(home, "sft") / "model.safetensors"
    assert (own_home / "tuned/model.safetensors").read_bytes() == undisturbed.read_bytes()


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
