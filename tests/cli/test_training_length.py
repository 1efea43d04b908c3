"""`outdo sft` and `outdo reward-model` train for epochs, say how long, and can be cut short."""

import json
import os
import re
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import outdo.extras.reward_models.command
import outdo.extras.sft.command

COMMANDS = pytest.mark.parametrize("command", ["sft", "reward-model"])
MAKERS = {"sft": outdo.extras.sft.command, "reward-model": outdo.extras.reward_models.command}
STEPS_OF = {"sft": "sft", "reward-model": "fit"}
USUAL = ("--batch", 4, "--lr", 1e-3, "--device", "cpu")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Ten rows that both commands read."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    lines = [json.dumps({"prompt": f"{n}?", "chosen": "12", "rejected": "13"}) + "\n" for n in range(10)]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def training(outdo, model, rows, tmp_path):
    """A training of a command, into the folder `out`."""

    def run(command, *more, out="out", status=0, data=("--data", rows)):
        whole = ("--holdout", 0) if command == "reward-model" else ()
        done = outdo(command, model, *data, "--out", tmp_path / out, *USUAL, *whole, *more)
        assert done.status == status, done.error
        return done.out + done.error

    return run


@pytest.fixture
def interrupted(training, tmp_path, monkeypatch):
    """A training of six steps that gets SIGTERM after its second; return what it printed."""

    def run(command, *more):
        name, module = STEPS_OF[command], MAKERS[command]
        steps = getattr(module, name)

        def stopped(*arguments, **how):
            for step in steps(*arguments, **how):
                yield step
                if step.index == 2:
                    os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, stopped)
            said = training(command, "--steps", 6, *more, status=143)
        assert (tmp_path / "out.unfinished/checkpoints/step_000002").is_dir()
        return said

    return run


def changed_settings(folder, change):
    path = folder / "settings.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


@COMMANDS
def test_a_training_lasts_three_epochs_and_says_so_before_its_first_step(command, training):
    said = training(command)
    assert "plan: 10 examples, 4 per step, 8 steps, 3.2 epochs\n" in said
    assert said.index("plan:") < said.index("step 1/8")
    assert "step 8/8" in said
    assert "warning" not in said


@COMMANDS
def test_a_step_says_how_much_time_is_left(command, training):
    said = training(command, "--epochs", 0.5)
    assert re.search(r"^step 1/2 .* loss [\d.]+  \d+ s left$", said, re.MULTILINE)


@COMMANDS
def test_more_than_ten_epochs_are_warned_of(command, training):
    said = training(command, "--steps", 26)
    assert "26 steps, 10.4 epochs\nwarning: examples are trained on 10.4 times" in said
    assert "warning" not in training(command, "--steps", 25, out="fewer")


def test_the_file_that_weights_repeat_most_is_warned_of(training, rows, tmp_path):
    (tmp_path / "few.jsonl").write_text(rows.read_text().splitlines()[0])
    both = ("--data", rows, "--data", tmp_path / "few.jsonl", "--weight", 1, "--weight", 1)
    said = training("sft", data=both)
    assert "plan: 11 examples, 4 per step, 9 steps, 3.27 epochs\nwarning: examples are trained on 18 times" in said


@COMMANDS
def test_epochs_and_steps_exclude_each_other(command, training):
    assert "--steps and --epochs: give one of them" in training(command, "--steps", 2, "--epochs", 2, status=2)


@COMMANDS
def test_threads_are_those_that_are_asked_for(command, training):
    before = torch.get_num_threads()
    try:
        training(command, "--steps", 1, "--threads", before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@COMMANDS
def test_an_interrupted_training_is_exported_as_it_is(command, interrupted, outdo, tmp_path):
    said = interrupted(command)
    folder = tmp_path / "out.unfinished"
    assert f"the model after step 2 can be used as it is: `outdo export {folder} FOLDER`" in said
    kind = {"sft": AutoModelForCausalLM, "reward-model": AutoModelForSequenceClassification}[command]
    expected = kind.from_pretrained(folder / "checkpoints/step_000002").state_dict()
    for dtype in ("source", "bfloat16"):
        done = outdo("export", folder, tmp_path / dtype, "--dtype", dtype)
        assert (done.status, done.error) == (0, "")
        assert f"{folder} after step 2 is now in {tmp_path / dtype}" in done.out
        found = kind.from_pretrained(tmp_path / dtype, dtype="auto")
        assert found.dtype == {"source": torch.float32, "bfloat16": torch.bfloat16}[dtype]
        assert all(torch.equal(expected[name].to(found.dtype), each) for name, each in found.state_dict().items())
        assert not (tmp_path / dtype / "manifest.json").exists()


@COMMANDS
def test_an_interrupted_training_is_resumed_with_other_steps_and_threads(command, interrupted, outdo, tmp_path):
    interrupted(command)
    before = torch.get_num_threads()
    try:
        done = outdo("resume", tmp_path / "out", "epochs=1", f"threads={before + 1}")
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert done.status == 0, done.error
    assert f"threads: unset in the saved run, {before + 1} now" in done.out
    assert "plan: 10 examples, 4 per step, 3 steps, 1.2 epochs" in done.out
    assert "step 3/3" in done.out
    assert (tmp_path / "out/config.json").is_file()


def test_a_training_that_is_resumed_with_fewer_steps_than_it_has_done_is_complete(interrupted, outdo, tmp_path):
    interrupted("sft")
    done = outdo("resume", tmp_path / "out", "steps=1")
    assert done.status == 0, done.error
    assert "resumed after step 2; no step is left" in done.out
    assert (tmp_path / "out/config.json").is_file()


def test_all_changes_that_a_resumed_training_cannot_have_are_told_at_once(interrupted, outdo, tmp_path):
    interrupted("sft")
    done = outdo("resume", tmp_path / "out", "lr=1", "threads=0", "steps=two", "epochs=2")
    assert done.status == 2
    told = done.error.removeprefix("outdo: ").splitlines()
    assert told == [
        "lr: of a training that is resumed, only device, threads, checkpoint_every, steps, epochs may change",
        "threads: expected 1 or more, found 0",
        'steps: expected a whole number, found "two"',
        "steps and epochs: give one of them",
    ]


@COMMANDS
def test_a_training_that_was_saved_before_there_were_epochs_is_resumed(command, interrupted, outdo, tmp_path):
    interrupted(command)
    changed_settings(
        tmp_path / "out.unfinished",
        lambda settings: {name: value for name, value in settings.items() if name not in ("epochs", "threads")},
    )
    done = outdo("resume", tmp_path / "out")
    assert done.status == 0, done.error
    assert "step 6/6" in done.out
