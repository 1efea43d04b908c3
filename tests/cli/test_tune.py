"""`outdo tune lr`: short runs that differ in the learning rate alone, and a suggestion."""

import json

from command_cases import SMALL

from outdo.cli import sweep
from outdo.config.file import load
from outdo.distributed.launch import Ended
from outdo.observability.record import parquet

SETTINGS = [each for each in SMALL if not each.startswith(("steps", "optim.lr", "eval", "rewards"))]
SCORE = """
def score(completion):
    return sum(each.isalnum() for each in completion) / 8
"""


def test_rates_are_tried_on_the_same_questions_and_drawn(outdo, model, sums, tmp_path, started):
    (tmp_path / "score.py").write_text(SCORE)
    common = (f"model={model}", f"data.path={sums}", "data.eval_rows=4", f"run={tmp_path / 'add'}", *SETTINGS)
    common = (*common, f"rewards={tmp_path / 'score.py'}:score")
    done = outdo("tune", "lr", *common, "steps=2", "optim.lr=1e-4,1e-2", "optim.schedule=cosine", "track=tensorboard")
    assert done.status == 0, done.error
    folder = tmp_path / "add-lr"
    found = json.loads((folder / "learning_rates.json").read_text())
    assert [trial["rate"] for trial in found["trials"]] == [1e-4, 1e-2]
    low, high = found["trials"]
    assert low["step_kl"] < high["step_kl"]  # the larger rate moves the policy farther
    assert ("no suggestion" if found["suggestion"]["rate"] is None else "suggestion: optim.lr=") in done.out
    assert (folder / "learning_rates.svg").exists() or "no picture" in done.out
    runs = [folder / f"optim.lr={rate}" for rate in ("1e-4", "1e-2")]
    asked = [parquet.read(run, 1).column("prompt_id").to_pylist() for run in runs]
    assert asked[0] == asked[1]
    for run in runs:
        recipe = load(run / "recipe.toml")
        assert (recipe.optim.schedule.name, recipe.data.eval_rows, recipe.track) == ("constant", 0, ())
        assert not (run / "checkpoints").exists()

    again = outdo("tune", "lr", *common, "steps=2", "optim.lr=1e-4,1e-2", "optim.schedule=cosine", "track=tensorboard")
    assert again.out.count("it is finished") == len(started) == 2


def test_only_the_learning_rate_may_have_several_values(outdo, model, sums, started):
    done = outdo("tune", "lr", f"model={model}", f"data.path={sums}", "seed=0,1")
    assert (done.status, started) == (2, [])
    assert "tune lr: seed has several values; only optim.lr may" in done.error


def test_the_rates_are_multiples_of_that_of_the_recipe(outdo, model, sums, tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(sweep, "run_command", lambda arguments: tried.append(arguments) or Ended(1, "", False))
    done = outdo(
        "tune", "lr", f"model={model}", f"data.path={sums}", f"run={tmp_path / 'add'}", *SETTINGS, "optim.lr=2e-6"
    )
    assert done.status == 1
    rates = [next(each for each in reversed(arguments) if each.startswith("optim.lr=")) for arguments in tried]
    assert rates == [f"optim.lr={rate}" for rate in ("2e-07", "6.32e-07", "2e-06", "6.32e-06", "2e-05", "6.32e-05")]
    assert all("steps=12" in arguments for arguments in tried)
    assert "no suggestion: no rate is within bounds; at 2e-07, only 0 of 12 steps were done" in done.out
