"""The rewards of a recipe are tried on every reference answer, in the forms that a model's answer has."""

import json
from types import SimpleNamespace

import pytest

from outdo.config.file import load
from outdo.data.splits import load_questions
from outdo.rewards import load_reward
from outdo.run.check import reward_trials
from outdo.run.check.reward_trials import REFERENCES, try_rewards
from outdo.run.export.description import describe_run
from outdo.run.folder.run_folder import RunFolder

FORMAT = "rewards=['exact', {name='format', weight=0.1}]"


@pytest.fixture
def warnings(tmp_path):
    """Try the rewards on these reference answers, and return the warnings."""

    def tried(answers, *settings, score=None, references=REFERENCES):
        rows = [{"prompt": f"question {number}", "answer": answer} for number, answer in enumerate(answers)]
        (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
        if score:
            (tmp_path / "mine.py").write_text(score)
            settings = (*settings, f"rewards={tmp_path}/mine.py:score")
        recipe = load(None, ["model=m", f"data.path={tmp_path}/data.jsonl", "data.eval_rows=0", *settings])
        result = try_rewards(recipe, load_questions(recipe).train, references=references)
        assert result.errors == []
        return result.warnings

    return tried


def test_references_that_are_rewarded_in_some_form_give_no_warning(warnings):
    assert warnings([f"Count to it.\n#### {number}" for number in range(12)]) == []
    assert warnings([1.0, 2.0, 2.5], "rewards=exact") == []
    boxed = "def score(completion, answer):\n    return completion.endswith('boxed{' + answer + '}$.')\n"
    assert warnings([str(number) for number in range(12)], score=boxed) == [
        "rewards: the empty answer scores at least as much as the reference answer (0 and 0)",
        "rewards: the wrong answer scores at least as much as the reference answer (0 and 0)",
    ]


def test_rows_that_are_never_rewarded_are_named(warnings):
    score = "def score(completion, answer):\n    return answer.isdigit() and answer in completion\n"
    answers = [str(number) for number in range(20, 40)]
    answers[3], answers[11] = "none\x1b[2J", "twelve"
    (said,) = warnings(answers, score=score)
    assert said.startswith("rewards: 2 of 20 reference answers score like a wrong one in each of 6 forms")
    assert said.endswith("these questions are never rewarded: 4 (none\\x1b[2J), 12 (twelve)")


def test_a_reward_that_rewards_no_reference_is_one_warning(warnings):
    said = warnings(["1", "2", "3"], score="def score(completion, answer):\n    return len(completion) % 2\n")
    assert "rewards: each of 3 reference answers scores like a wrong one in each of 6 forms" in said[-1]


def test_a_constant_part_of_the_reward_is_a_warning(warnings, tmp_path):
    (tmp_path / "same.py").write_text("def same(completion):\n    return 0.5\n")
    answers = [f"#### {number}" for number in range(12)]
    (said,) = warnings(answers, f"rewards=['exact', '{tmp_path}/same.py:same']")
    assert said.startswith("rewards: same is 0.5 for each of ")
    overlong = "{name='overlong', max_tokens=64, cache=16}"
    for rewards in (FORMAT, f"rewards=['exact', {overlong}]"):
        assert warnings(answers, rewards, "sampling.max_tokens=64") == []


@pytest.mark.parametrize("references", [REFERENCES, 0])
def test_a_reward_that_never_returns_a_number_is_a_warning(warnings, references):
    score = "def score(completion):\n    return None\n"
    (said,) = warnings(["1", "2", "3"], score=score, references=references)
    assert said.startswith("rewards: score returned None for each ")
    assert said.endswith("; an answer to which no reward applies is not trained on")


def test_a_slow_reward_is_not_tried_on_every_reference(warnings, monkeypatch):
    monkeypatch.setattr(reward_trials, "SECONDS", 0.0)
    assert "not every reference answer was tried" in warnings(["1", "2", "3"])[-1]


def test_without_references_to_try_only_the_first_question_is_scored(warnings, tmp_path):
    calls = f"open({str(tmp_path / 'calls')!r}, 'a')"
    calls = f"open({str(tmp_path / 'calls')!r}, 'a')"
    counting = f"def score(completion):\n    with {calls} as file:\n        file.write('x')\n    return 0\n"
    warnings(["1", "2", "3"], score=counting, references=0)
    assert (tmp_path / "calls").read_text() == "xxx"


def test_programs_are_not_tried_on_their_tests_and_the_sandbox_is_named(tmp_path):
    rows = [{"prompt": "double", "answer": ["assert double(2) == 4"]}, {"prompt": "half", "answer": "assert half(2)"}]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = ["model=m", f"data.path={tmp_path}/data.jsonl", "data.eval_rows=0", "device=cpu"]
    recipe = load(None, [*settings, "rewards=[{name='code', unsafe_local=true}]"])
    result = try_rewards(recipe, load_questions(recipe).train, references=REFERENCES)
    assert (list(result.errors), list(result.warnings)) == ([], [])
    assert [(trial.kind, trial.scored.value) for trial in result.trials] == [("empty", 0.0), ("wrong", 0.0)]
    reason = "the only reward that compares it with the reference"
    assert result.notes[0] == f"an answer is right if code accepts it ({reason})"
    assert result.notes[1].startswith("the reward code runs programs in ")
    folder = RunFolder(tmp_path)
    reward = load_reward([spec for spec, _ in recipe.reward_functions])
    describe_run(folder, SimpleNamespace(recipe=recipe, data=SimpleNamespace(commits={}), reward=reward), 0, [])  # type: ignore[arg-type]
    (sandbox,) = json.loads(folder.environment.read_text())["sandboxes"]
    assert result.notes[1].endswith(sandbox)
    reward.close()
