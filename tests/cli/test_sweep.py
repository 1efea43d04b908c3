"""`outdo sweep`: every combination of settings is run once, and a run that fails does not end the sweep."""

import json

import pytest
from command_cases import SMALL

from outdo.cli import sweep
from outdo.cli.grid import combinations, split_settings
from outdo.distributed.launch import Ended, run_command
from outdo.storage.run_folder import read_metrics
from outdo.utils.errors import UserError

SETTINGS = [each for each in SMALL if not each.startswith(("steps", "optim", "train.prompts"))]


def results(folder):
    return json.loads((folder / "results.json").read_text())["runs"]


def test_values_are_divided_by_commas_and_ranges_are_counted():
    fixed, several = split_settings(["optim.lr=1e-6,1e-5", "seed=0..2,7", "steps=3", "data.eval_path="])
    assert (fixed, several) == (
        ["steps=3", "data.eval_path="],
        {"optim.lr": ["1e-6", "1e-5"], "seed": ["0", "1", "2", "7"]},
    )
    found = combinations(several)
    assert len(found) == 8
    assert found[:2] == [{"optim.lr": "1e-6", "seed": "0"}, {"optim.lr": "1e-6", "seed": "1"}]


@pytest.mark.parametrize(
    "setting", ['rewards=["math","format"]', 'train.stop={name="first_of",kl=0.1,reached=0.5}', "data.system='a,b'"]
)
def test_commas_in_brackets_and_quotes_do_not_divide(setting):
    assert split_settings([setting]) == ([setting], {})


def test_all_wrong_values_are_told_at_once():
    with pytest.raises(UserError) as error:
        split_settings(["seed=3..1", "optim.lr=1,1", "steps=1,", "beta=1", "beta=2", "a=0..99", "b=0..99"])
    problems = "\n".join(error.value.problems)
    assert "seed=3..1: expected a range that rises" in problems
    assert "optim.lr=1,1: a value is given twice" in problems
    assert "steps=1,: expected a value before and after each comma" in problems
    assert "beta: given twice" in problems
    assert "at most 1,000" in problems
    with pytest.raises(UserError, match="at most 1,000"):
        split_settings(["seed=0..100000000000"])


def test_every_fault_of_every_combination_is_told_before_anything_runs(outdo, model, sums, tmp_path, started):
    folder = tmp_path / "sweep"
    settings = (f"model={model}", f"data.path={sums}", f"run={folder}", *SMALL)
    done = outdo("sweep", *settings, "optim.momentum=1", "train.passes=2,0,x", "seed=0,1")
    assert done.status == 2
    assert done.error.count("optim.momentum") == 1
    assert done.error.count("train.passes:") == 2
    data = f"data.path={sums},{tmp_path}/none.jsonl"  # only the check opens it
    done = outdo("sweep", f"model={model}", data, f"run={folder}", *SMALL, "seed=0,1")
    assert (done.status, done.error.count("none.jsonl")) == (2, 1)
    assert "no setting has several values" in outdo("sweep", *settings).error
    assert "a sweep names its runs itself" in outdo("sweep", f"model={model}", f"data.path={sums}", "run=a,b").error
    assert not folder.exists()
    assert started == []


def test_a_dry_run_lists_the_runs_and_starts_none(outdo, model, sums, tmp_path, monkeypatch, started):
    monkeypatch.chdir(tmp_path)
    done = outdo("sweep", f"model={model}", f"data.path={sums}", *SMALL[1:], "steps=1,2", "seed=0..1", "--dry-run")
    assert done.status == 0, done.error
    assert f"run 2 of 4: steps=1 seed=1: new; runs/{model.name}-sweep/steps=1,seed=1" in done.out
    assert list(tmp_path.iterdir()) == []
    assert started == []


def test_a_sweep_ends_with_a_table_and_goes_on_where_it_was_stopped(outdo, model, sums, run, tmp_path, started):
    folder = tmp_path / "sweep"
    settings = (f"model={model}", f"data.path={sums}", "data.eval_rows=4", f"run={folder}", *SETTINGS)
    settings = (*settings, "optim.lr=1e-3,1e-4")
    done = outdo("sweep", *settings, "steps=1", "seed=0..1", "train.prompts=2")
    assert done.status == 0, done.error
    assert "means over seeds" in done.out
    assert "2 of 2" in done.out
    rows = results(folder)
    assert [row["settings"] for row in rows[:2]] == [{"optim.lr": "1e-3", "seed": n} for n in "01"]
    first = folder / "optim.lr=1e-3,seed=0"
    summary = json.loads((first / "summary.json").read_text())
    assert (rows[0]["run"], rows[0]["state"]) == (str(first), "finished")
    assert (rows[0]["accuracy"], rows[0]["reward"]) == (summary["accuracy_after"], summary["reward_after"])
    assert rows[0]["seconds"] == summary["seconds"]

    assert outdo("sweep", *settings, "steps=1", "seed=0..1", "train.prompts=2").out.count("it is finished") == 4
    assert len(started) == 4

    longer = outdo("sweep", *settings, "steps=2", "seed=0,2", "train.prompts=2")
    assert longer.status == 0, longer.error
    assert longer.out.count("resumed after step 1 of 2") == 2
    assert [line["step"] for line in read_metrics(first / "metrics.jsonl")] == [1, 2]
    assert [row["settings"]["seed"] for row in results(folder)] == ["0", "2"] * 2

    other = outdo("sweep", *settings, "steps=2", "seed=0,2", "train.prompts=4")
    assert other.status == 2
    assert f"{first.parent}" in other.error
    assert "train.prompts: 2 in the saved run, 4 now; name another folder with run=NAME" in other.error
    own = outdo("sweep", f"model={model}", f"data.path={sums}", f"run={run}", "seed=0,1")
    assert "a sweep needs a folder of its own" in own.error


def test_a_run_that_was_killed_before_its_page_is_ended(outdo, model, sums, tmp_path, started):
    folder = tmp_path / "sweep"
    settings = ("sweep", f"model={model}", f"data.path={sums}", f"run={folder}", *SMALL[1:], "steps=1", "seed=0,1")
    assert outdo(*settings).status == 0
    page = folder / "seed=0/report.html"
    page.unlink()
    done = outdo(*settings)
    assert (done.status, len(started)) == (0, 3)
    assert "complete: all 1 steps are done" in done.out
    assert page.exists()


def test_a_failed_run_is_told_and_the_others_go_on(outdo, model, sums, tmp_path, started):
    folder = tmp_path / "sweep"
    (folder / "seed=0/history.jsonl").mkdir(parents=True)  # where a file has to be
    settings = (f"model={model}", f"data.path={sums}", f"run={folder}", *SMALL[1:], "steps=1")
    done = outdo("sweep", *settings, "seed=0,1")
    assert done.status == 1
    assert "run 1 of 2: seed=0: failed with status 1" in done.out
    failed, finished = results(folder)
    assert (failed["state"], failed["accuracy"]) == ("failed with status 1", None)
    assert finished["state"] == "finished"
    assert finished["reward"] == read_metrics(folder / "seed=1/metrics.jsonl")[-1]["reward"]


def test_a_signal_ends_the_sweep(outdo, model, sums, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sweep, "run_command", lambda arguments: asked.append(arguments) or Ended(130, "", True))
    settings = (f"model={model}", f"data.path={sums}", f"run={tmp_path / 'sweep'}", *SMALL, "seed=0,1")
    done = outdo("sweep", *settings)
    assert (done.status, len(asked)) == (130, 1)
    assert "the same command goes on with it" in done.out
    assert [row["state"] for row in results(tmp_path / "sweep")] == ["not begun", "not begun"]


def test_names_of_folders_are_short_and_differ():
    names = [sweep._name({"data.path": path}) for path in ("a/b", "a?b", "x" * 300, "x" * 301)]
    assert len(set(names)) == 4
    assert all(len(name) < 120 and "/" not in name for name in names)


def test_a_command_is_run_in_a_process_of_its_own(capfd):
    assert run_command(["--version"]) == Ended(0, "", interrupted=False)
    assert "outdo" in capfd.readouterr().out
    assert run_command(["check", "none.toml"]).status == 2
    assert "none.toml: no such file" in capfd.readouterr().err
