"""The quickstart from end to end, with so few steps that nothing is learnt: that is measured by the command itself."""

import json

import pytest


@pytest.mark.usefixtures("short_quickstart")
def test_the_quickstart_shows_before_and_after_and_next_commands_and_keeps_its_fine_tuned_model(outdo, tmp_path):
    home = tmp_path / "quickstart"
    done = outdo("quickstart", "--task", "sums", "--folder", home, "--seed", 3)
    assert done.status == 0, done.error
    run = home / "seed-3" / "run-1"
    for said in ("greedy", "sampled at temperature 1", f"chat {run}", f"eval {run}", str(run)):
        assert said in done.out
    summary = json.loads((run / "summary.json").read_text())
    accuracies = ["accuracy_before", "accuracy_after", "sampled_before", "sampled_after"]
    assert set(summary) >= {*accuracies, "steps", "seconds", "tokens_per_second", "run"}
    assert all(0 <= summary[name] <= 1 for name in accuracies)
    assert summary["steps"] == 2

    again = outdo("quickstart", "--task", "sums", "--folder", home, "--seed", 3, "--verbose")
    assert again.status == 0, again.error
    assert ["objective: grpo" in each.out for each in (done, again)] == [False, True]
    assert "is used again" in again.out
    assert (home / "seed-3" / "run-2" / "summary.json").exists()
    asked = outdo("eval", run, "--json")
    assert asked.status == 0, asked.error
    assert json.loads(asked.out)["n"] == 8
