"""`outdo runs`, `outdo compare` and `outdo train --dry-run`."""

import json
import os
from pathlib import Path

import pytest
from command_cases import SMALL


def test_runs_are_listed_with_state_step_outcome_size_and_age(outdo, run, tmp_path):
    folder = run.parent
    (row,) = json.loads(outdo("runs", folder, "--json").out)
    assert (row["run"], row["state"], row["step"], row["steps"]) == ("shared", "finished", 2, 2)
    summary = json.loads((run / "summary.json").read_text())
    assert (row["outcome"], row["value"]) == ("eval/greedy", summary["accuracy_after"])
    assert row["bytes"] == sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    table = outdo("runs", folder).out
    assert "shared" in table
    assert "2/2" in table

    stopped = tmp_path / "deep/er/half"
    stopped.mkdir(parents=True)
    (stopped / "recipe.toml").write_text("steps = 9")
    (stopped / "metrics.jsonl").write_text('{"step": 4, "reward": 0.25}\n')
    (tmp_path / "recipe.toml").write_text("steps = 3")  # the user's own, beside the runs
    (row,) = json.loads(outdo("runs", tmp_path, "--json").out)
    assert (row["run"], row["state"], row["step"], row["steps"]) == ("deep/er/half", "stopped", 4, 9)
    assert (row["outcome"], row["value"]) == ("reward", 0.25)
    assert "no such folder" in outdo("runs", tmp_path / "none").error
    (tmp_path / "empty").mkdir()
    assert "no run is in" in outdo("runs", tmp_path / "empty").out


def test_a_run_that_removes_a_checkpoint_meanwhile_is_listed(outdo, tmp_path, monkeypatch):
    removed = tmp_path / "run/checkpoints/.tmp-step_000001-1-pruned"
    removed.mkdir(parents=True)
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 4, "reward": 0.25}\n')
    scan = os.scandir

    def vanishing(folder):
        if Path(folder) == removed and removed.exists():
            removed.rmdir()
        return scan(folder)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", vanishing)
        (row,) = json.loads(outdo("runs", tmp_path, "--json").out)
    assert row["bytes"] == (tmp_path / "run/metrics.jsonl").stat().st_size
    assert not removed.exists()


def test_two_runs_are_compared_by_what_differs(outdo, tmp_path):
    for name, lr, reward in (("a", 1e-6, 0.25), ("b", 2e-6, 0.5)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "recipe.toml").write_text(f'model = "m"\nseed = 1\nrun = "{name}"\n[optim]\nlr = {lr}\n')
        lines = [{"step": 1, "reward": 0.0, "eval/greedy": 0.1}, {"step": 2, "reward": reward}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = json.loads(outdo("compare", tmp_path / "a", tmp_path / "b", "--json").out)
    assert found["settings"] == {"optim.lr": ["1e-06", "2e-06"]}
    assert found["metrics"] == {"step": [2, 2], "reward": [0.25, 0.5], "eval/greedy": [0.1, 0.1]}
    table = outdo("compare", tmp_path / "a", tmp_path / "b").out
    assert "settings that differ" in table
    assert "seed" not in table
    for wrong in ((tmp_path / "a",), (tmp_path / "a", tmp_path / "a")):
        assert "give two runs or more, each once" in outdo("compare", *wrong).error
    assert "no such folder" in outdo("compare", tmp_path / "a", tmp_path / "c").error


def test_a_dry_run_shows_one_scored_group_and_writes_nothing(outdo, model, sums, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = outdo("train", f"model={model}", f"data.path={sums}", *SMALL, "train.dynamic_sampling=3", "--dry-run")
    assert done.status == 0, done.error
    assert "question " in done.out
    assert "answer 2: reward 0.000, wrong, 8 tokens, cut off" in done.out
    assert "answer 3" not in done.out
    assert "the group: it would teach nothing: the advantage group_standardised is 0 for all of its answers" in done.out
    assert list(tmp_path.iterdir()) == []


TAUGHT = [
    ("train.advantage=reward", "it would teach nothing: the advantage reward is 0 for all"),
    ("train.objective=ppo", "what it would teach is known in a step: the advantage gae needs values"),
    ("rewards=mine.py:paid", "it would teach something: the advantage group_standardised is not 0"),
    ("rewards=mine.py:none", "no answer has a reward, so it would teach nothing"),
]


@pytest.mark.parametrize(("setting", "said"), TAUGHT)
def test_a_dry_run_asks_the_advantage_what_its_group_teaches(outdo, model, sums, tmp_path, monkeypatch, setting, said):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "def paid(completion): return sum(map(ord, completion)) * 1.0\ndef none(completion): return None\n"
    )
    done = outdo("train", f"model={model}", f"data.path={sums}", *SMALL, setting, "--dry-run")
    assert f"the group: {said}" in done.out, done.error


@pytest.mark.parametrize("option", ["--profile", "--resume", "--restarts=1"])
def test_an_option_that_has_no_effect_on_a_dry_run_is_refused(outdo, option):
    done = outdo("train", "model=m", "data.path=d.jsonl", "run=r", "--dry-run", option)
    assert done.status == 2
    assert "--dry-run trains nothing, so that --profile, --resume and --restarts have no effect" in done.error


SUGGESTING = [("doctor", "s1"), ("inspect", "s1"), ("compare", "s1", "s2"), ("resume", "s1")]
SUGGESTING += [
    ("eval", "s1", "--data", "a.jsonl"),
    ("chat", "s1"),
    ("export", "s1", "m"),
    ("generate", "s1", "--data", "a.jsonl", "--out", "b.jsonl"),
]


@pytest.mark.parametrize("command", SUGGESTING)
def test_a_run_that_is_called_by_its_name_alone_is_suggested_with_its_folder(outdo, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for name in ("s1", "s2", "sx"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.toml").touch()
    (tmp_path / "s").mkdir()  # its name is similar, too
    done = outdo(*command)
    assert done.status == 2
    assert "; did you mean runs/s1?" in done.error
