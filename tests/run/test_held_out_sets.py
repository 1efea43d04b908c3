"""Held-out sets with names, each with its own numbers, and runs that end early by one of them."""

import json
import os
import signal

import pytest
from run_cases import Command, metrics, outdo_, steps_done, wait_until, write_rows

from outdo.cli.recipe import recipe_of
from outdo.config.file import load
from outdo.run.check.preflight import check
from outdo.run.checkpoints.run_state import run_state
from outdo.run.checkpoints.state import Progress
from outdo.run.evaluation import held_out_completions
from outdo.run.evaluation.held_out import early_end
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.errors import UserError

EVALUATED = '''
import json
from pathlib import Path

def right(prompt, completion):
    """Questions of the set `late` are right in the evaluations that `evaluations.json` lists, others always."""
    if "+7=" not in prompt:
        return float("+5=" in prompt)
    done = Path("evaluations.txt")
    with done.open("a") as file:
        file.write("x")
    return float(len(done.read_text()) in json.loads(Path("evaluations.json").read_text()))
'''
"""The held-out set `late` has one question, and each evaluation asks for one greedy answer to it."""

TWO_REWARDS = 'rewards=["evaluated.py:right", "score.py:score"]'
SETS = 'data.eval_path={early="held_out.jsonl",late=["late.jsonl"]}'
HOW = ("steps=12", "eval.every=2", "eval.samples=0", "rewards=evaluated.py:right", "eval.right=right", SETS)


@pytest.fixture
def sets(own_home):
    """Two held-out sets of three questions and of one; the late one is right in the second evaluation only."""
    (own_home / "evaluated.py").write_text(EVALUATED)
    (own_home / "evaluations.json").write_text("[2]")
    write_rows(own_home / "held_out.jsonl", [{"prompt": f"{a}+5=", "answer": "5"} for a in range(3)])
    write_rows(own_home / "late.jsonl", [{"prompt": "1+7=", "answer": "8"}, {"prompt": "9+9=", "answer": "18"}])
    return own_home


def evaluations(run):
    return [line for line in metrics(run) if "eval/questions" in line]


def test_each_set_has_its_own_numbers_and_they_add_up(sets):
    said = outdo_(sets, "train", "recipe.toml", "run=./run", "steps=2", *HOW[1:])
    (line,) = evaluations(sets / "run")
    assert (line["eval/questions"], line["eval/early/questions"], line["eval/late/questions"]) == (5, 3, 2)
    assert (line["eval/early/greedy"], line["eval/late/greedy"], line["eval/greedy"]) == (1.0, 0.5, 0.8)
    assert line["eval/late/greedy_low"] < 0.5 < line["eval/late/greedy_high"]
    assert "held-out questions right after step 2, late: greedy 50.0%" in said
    answers = held_out_completions.read(sets / "run", 2)
    assert {(answer["set"], answer["id"]) for answer in answers} == {
        *(("early", f"early:{row}") for row in ("1", "2", "3")),
        *(("late", f"late:{row}") for row in ("1", "2")),
    }
    assert "eval/late/greedy" in (sets / "run/report.html").read_text()

    numbers = json.loads(outdo_(sets, "eval", "run", "--json").splitlines()[-1])
    assert (numbers["early"]["n"], numbers["late"]["n"], numbers["early"]["pass@1"]) == (3, 2, 1.0)
    outdo_(sets, "export", "run", "exported")
    card = (sets / "exported/README.md").read_text()
    assert "| late: right, greedy |" in card
    assert "name: late\n" in card.partition("---\n# ")[0]
    told = outdo_(sets, "eval", "run", "--answers", "a.jsonl", status=2)
    assert "to one data set; name it with --data" in told


def test_a_run_ends_early_by_the_number_of_one_set(sets):
    best = 'eval.best={name="late/greedy",patience=2}'
    said = outdo_(sets, "train", "recipe.toml", "run=./run", *HOW, best)
    assert "ended early: late/greedy has not risen in the last 2 evaluations; the best one is that after step 2" in said
    run = sets / "run"
    assert [line["eval/late/greedy"] for line in evaluations(run)] == [0.5, 0.0, 0.0]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["ended_early"], summary["best"]["step"]) == (6, True, 2)
    assert str(run_state(run)) == "finished after 6 steps"
    assert (run / "report.html").exists()

    longer = outdo_(sets, "resume", "run", "eval.best.patience=3")
    assert "ended early: late/greedy has not risen in the last 3 evaluations" in longer
    assert steps_done(run) == 8
    assert json.loads((run / "summary.json").read_text())["steps"] == 8


def test_evaluations_without_the_number_that_decides_end_no_run():
    """As where no reward applies to a held-out question."""
    given = ["model=m", "data.path=d.jsonl", "data.eval_rows=1", "eval.every=1", "eval.best.patience=2"]
    recipe, progress = load(None, given), Progress()
    for step in (1, 2, 3):
        progress.evaluated({"questions": 1.0}, step, best_by="greedy")
        assert early_end(recipe, progress) == ""
    for step in (4, 5, 6):
        progress.evaluated({"questions": 1.0, "greedy_reward": 0.5}, step, best_by="greedy")
    assert "the best one is that after step 4" in early_end(recipe, progress)


@pytest.mark.release
def test_a_killed_run_counts_the_evaluations_before_the_kill(sets):
    best = 'eval.best={name="late/greedy",patience=3}'
    run = sets / "run"
    command = Command(sets, "train", "recipe.toml", "run=./run", *HOW, best)
    wait_until(lambda: steps_done(run) >= 5, command)
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    (sets / "evaluations.txt").write_text("xxx")  # those before the first step, and after the steps 2 and 4
    said = outdo_(sets, "resume", "run")
    assert "ended early: late/greedy has not risen in the last 3 evaluations; the best one is that after step 2" in said
    assert [line["step"] for line in read_metrics(run / "metrics.jsonl")] == list(range(1, 9))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["eval.best=late/greedy"], "no held-out set is called late; data.eval_path names no set"),
        ([SETS, "eval.best=lat/greedy"], "no held-out set is called lat; the sets are early, late"),
        (
            [TWO_REWARDS, "eval.best=greedy_rewards/scroe/mean"],
            "part of the reward is called scroe; did you mean score?",
        ),
        (["eval.best=accuracy"], "expected greedy, sampled"),
        (['eval.best={name="greedy",patience=2}', "eval.every=0"], "patience = 2: needs evaluations during the run"),
        (["eval.best.patience=0"], "eval.best.patience: expected 1 or more"),
        (["eval.best=3"], "expected a name, or a table"),
        (["eval.best=sampled_reward", "eval.samples=0"], "eval.samples is 0, so these answers are never evaluated"),
        (['data.eval_path={greedy="held_out.jsonl"}'], "expected names of letters"),
        (["data.eval_path=[3]"], "expected a file, a list of files, or a table of them"),
        (['data.eval_path={a="none.jsonl"}'], "data.eval_path.a: none.jsonl: no such file"),
    ],
)
def test_what_cannot_work_is_refused(sets, settings, told, monkeypatch):
    monkeypatch.chdir(sets)
    try:
        errors = check(recipe_of(["recipe.toml", *settings])).errors
    except UserError as error:
        errors = error.problems
    assert told in "\n".join(errors)


def test_a_part_that_the_reward_does_not_have_is_refused_also_on_resume(sets):
    outdo_(sets, "train", "recipe.toml", "run=./run", *HOW, "steps=1")
    best = "eval.best=greedy_rewards/style/mean"
    for command in (["train", "recipe.toml", "run=./other", *HOW, best], ["resume", "run", "steps=2", best]):
        told = outdo_(sets, *command, status=2)
        assert "the reward has one part, whose mean is greedy_reward or sampled_reward" in told
    assert steps_done(sets / "run") == 1
