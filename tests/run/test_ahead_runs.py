"""Runs whose sampling is ahead of training: killed, stopped and failing ones are the run that was not disturbed."""

import json
import os
import signal
from pathlib import Path

import pytest
from ahead_cases import ACROSS, COPYING, sampled_by, write_ahead
from kill_cases import assert_same, killed_and_resumed
from run_cases import Command, metrics, outdo_, saved, timeless, wait_until, weights

from outdo.extras.record.parquet import read

LAG = 2
STEPS = 8
AHEAD = (f"steps={STEPS}", f"train.max_staleness={LAG}", "eval.every=3")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home, in which one run was not disturbed; not to be changed."""
    home = write_ahead(tmp_path_factory.mktemp("ahead"))
    outdo_(home, "train", "recipe.toml", "run=./straight", COPYING, *AHEAD)
    (home / "sampled.txt").rename(home / "straight.txt")
    return home


@pytest.fixture(scope="module")
def across(home: Path) -> Path:
    """A run whose answers go on across updates, which was not disturbed."""
    outdo_(home, "train", "recipe.toml", "run=./across", ACROSS, *AHEAD)
    (home / "sampled.txt").rename(home / "across.txt")
    return home / "across"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_ahead(tmp_path)


def test_each_step_is_sampled_by_the_weights_that_the_lag_says(home):
    lines = [tuple(map(int, line.split())) for line in (home / "straight.txt").read_text().splitlines()]
    assert lines == [(step, max(0, step - 1 - LAG)) for step in range(1, STEPS + 1)]
    run = metrics(home / "straight")
    assert [line["staleness/mean"] for line in run] == [min(step, LAG) for step in range(STEPS)]
    assert [line["staleness/max"] for line in run] == [min(step, LAG) for step in range(STEPS)]
    assert all(line["time/wait"] >= 0 and line["time/ahead"] > 0 and "time/sample" not in line for line in run)
    assert run[0]["sampling/effective_sample_size"] > 0.999  # of the first weights
    assert all(line["sampling/effective_sample_size"] < 0.999 for line in run[1:])
    assert all(line["sampling/corrected"] > 0 for line in run[1:])


def test_the_summary_says_what_became_of_the_questions(home):
    questions = json.loads((home / "straight/summary.json").read_text())["questions"]
    assert questions == {"asked": 16, "answered": 16, "trained": 16, "dropped": 0, "why": {}}


@pytest.mark.long
def test_a_run_that_is_killed_again_and_again_equals_an_uninterrupted_one(home):
    kills = killed_and_resumed(home, home / "killed", 4, COPYING, *AHEAD)
    assert len({kill.saved for kill in kills}) > 1
    assert_same(home / "killed", home / "straight")


@pytest.mark.release
@pytest.mark.parametrize("fault", [pytest.param("hangs", marks=pytest.mark.release), "lost"])
def test_a_batch_that_is_not_sampled_when_the_run_ends_is_sampled_by_its_weights_afterwards(home, own, fault):
    """Step 5 is sampled by the weights after step 2, which have changed when the run is saved."""
    command = Command(
        own, "train", "recipe.toml", "run=./run", f'engine={{name="engine.py:Copying",{fault}=5}}', *AHEAD
    )
    if fault == "hangs":
        wait_until(lambda: (5, 2) in sampled_by(own), command)
        os.kill(command.pid, signal.SIGTERM)
        assert command.wait() == 128 + signal.SIGTERM, command.said
        assert not (own / "restarted").exists()
    else:
        assert command.wait() == 75, command.said
        assert "it has ended" in command.said
        assert saved(own / "run")[-1] == 4
    before = sampled_by(own)
    (own / "mended").touch()
    outdo_(own, "resume", "run")
    assert sampled_by(own)[len(before) :] == [(5, 2), (6, 3), (7, 4), (8, 5)]
    assert weights(own / "run") == weights(home / "straight")
    assert timeless(own / "run") == timeless(home / "straight")


def test_answers_go_on_with_newer_weights_and_the_record_has_the_version_of_each_token(home, across):
    assert [line["staleness/max"] for line in metrics(across)] == [min(step, LAG) for step in range(STEPS)]
    assert all(1 < line["staleness/mean"] < LAG for line in metrics(across)[LAG:])
    rows = read(across, STEPS).to_pylist()
    assert {row["policy_version"] for row in rows} == {STEPS - 2}
    for row in rows:
        versions = row["policy_versions"]
        assert versions == [STEPS - 3] * 4 + [STEPS - 2] * (len(row["token_ids"]) - 4)
    assert {row["policy_version"] for row in read(home / "straight", STEPS).to_pylist()} == {STEPS - 3}
    assert read(home / "straight", STEPS).column("policy_versions").null_count == len(rows)
    questions = json.loads((across / "summary.json").read_text())["questions"]
    assert questions == {"asked": 16, "answered": 16, "trained": 16, "dropped": 0, "why": {}}


@pytest.mark.release
def test_a_killed_run_whose_answers_go_on_across_updates_equals_an_uninterrupted_one(home, across):
    kills = killed_and_resumed(home, home / "killed-across", 3, ACROSS, *AHEAD)
    assert any(kill.saved for kill in kills)
    assert_same(home / "killed-across", across)


@pytest.mark.release
def test_unfinished_answers_go_on_after_an_engine_was_lost_and_other_settings_are_refused(own, across):
    engine = 'engine={name="engine.py:Copying",lost=5,partial_rollouts=true}'
    assert outdo_(own, "train", "recipe.toml", "run=./run", engine, *AHEAD, status=75)
    assert saved(own / "run")[-1] == 4
    said = outdo_(own, "resume", "run", "--changed", "train.max_staleness=3", status=1)
    assert "answers are unfinished: train.max_staleness and engine.partial_rollouts cannot change" in said
    (own / "mended").touch()
    outdo_(own, "resume", "run")
    assert weights(own / "run") == weights(across)
    assert timeless(own / "run") == timeless(across)
