"""An answer without a verdict is neither right nor wrong: no number counts it, and each says how many it leaves out."""

import io
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from toys import batch_of, rollout

from outdo.algorithms.advantages import fill_right, pass_at_k, per_token, rejection
from outdo.cli.evaluate import _rates
from outdo.data.curriculum import Curriculum
from outdo.extras.doctor.outcome import _with_interval
from outdo.run.checkpoints.state import Progress
from outdo.run.display import Display
from outdo.run.evaluation.evaluation import Evaluation, compare_paired
from outdo.run.export.model_card import _number
from outdo.run.metrics.metrics import step_metrics
from outdo.types import Batch, Group, Prompt, Rollout, Sampled, Step
from outdo.utils.errors import RewardError

Verdicts = Sequence[Sequence[bool | None]]
"""Of the answers to each question."""


def answers(verdicts: Verdicts) -> list[Group]:
    """Groups of answers; one without a verdict has failed, as when its reward raised."""
    return [
        Group(
            prompt=Prompt(id=str(question), text="?", token_ids=(1,)),
            rollouts=tuple(
                rollout(1, float(right or 0), right=right, status="failed" if right is None else "ok") for right in each
            ),
        )
        for question, each in enumerate(verdicts)
    ]


def evaluation(*verdicts: Sequence[bool | None]) -> Evaluation:
    return Evaluation(
        groups=answers(verdicts), k=max(map(len, verdicts)), majority=[g.rollouts[0] for g in answers(verdicts)]
    )


tables = st.lists(st.lists(st.sampled_from([True, False, None]), min_size=4, max_size=4), min_size=1, max_size=5)


@given(tables)
def test_every_number_of_an_evaluation_is_that_of_the_answers_with_a_verdict(verdicts):
    """By a second implementation, which draws all sets of k answers."""
    judged = [[right for right in each if right is not None] for each in verdicts]
    asked = [each for each in judged if each]
    found = evaluation(*verdicts).summary()
    missing = sum(right is None for each in verdicts for right in each)
    assert (found.get("without_verdict", 0) if asked else missing) == missing == found["unscored"]
    if not asked:
        assert not {"pass@1", "maj@4", "ci95"} & found.keys()
        return
    for k in (1, 2, 4):
        draws = [list(itertools.combinations(each, k)) for each in judged if len(each) >= k]
        expected = [sum(map(any, each)) / len(each) for each in draws]
        assert found.get(f"pass@{k}") == (pytest.approx(sum(expected) / len(expected)) if expected else None)
        assert found.get(f"left_out_of_pass@{k}", 0) == (len(verdicts) - len(draws) if k > 1 else 0)
    elected = [each[0] for each in verdicts if each[0] is not None]
    assert found.get("maj@4") == (pytest.approx(sum(elected) / len(elected)) if elected else None)
    assert found.get("left_out_of_maj@4", 0) == len(verdicts) - len(elected)
    assert {rate.id: (rate.right, rate.k) for rate in _rates(evaluation(*verdicts))} == {
        str(question): (sum(each), len(each)) for question, each in enumerate(judged) if each
    }


@given(tables.flatmap(lambda first: st.tuples(st.just(first), st.permutations(first))))
def test_pairs_are_questions_with_a_verdict_from_both_models(pair):
    both = [(a, b) for a, b in zip(*pair, strict=True) if {*a} != {None} and {*b} != {None}]
    whole = compare_paired(*(evaluation(*each) for each in pair))
    assert (whole is None) == (not both)
    if whole is not None:
        alone = compare_paired(*(evaluation(*each) for each in zip(*both, strict=True)))
        assert whole == replace(alone, left_out=len(pair[0]) - len(both))


def test_a_reward_that_times_out_makes_no_question_worse():
    first = evaluation(*[[True]] * 10)
    second = evaluation(*[[True]] * 4, *[[None]] * 6)
    found = compare_paired(first, second)
    assert (found.difference, found.better, found.worse, found.questions, found.left_out) == (0.0, 0, 0, 4, 6)
    assert str(found).endswith("; left out: 6 of 10 questions, without a verdict from both")
    rewarded = [replace(each, rollouts=(rollout(1, 0.5),)) for each in first.groups]
    assert compare_paired(first, Evaluation(groups=rewarded, k=1)).by == "reward"


@given(tables)
def test_the_shares_of_a_step_are_those_of_its_answers_with_a_verdict(verdicts):
    groups = [
        Group(prompt=each.prompt, rollouts=tuple(replace(answer, status="ok") for answer in each.rollouts))
        for each in answers(verdicts)
    ]
    found = step_metrics(Step(index=1, sampled=Sampled(groups=groups), batch=Batch.from_groups(groups), updates=[]))
    judged = [[right for right in each if right is not None] for each in verdicts]
    asked = [each for each in judged if each]
    names = ("right", "frac_all_right", "frac_all_wrong", "num_without_verdict")
    if not asked:
        assert not {*names} & found.keys()
        return
    expected = [sum(map(sum, asked)) / sum(map(len, asked)), sum(map(all, asked)) / len(asked)]
    expected.append(sum(not any(each) for each in asked) / len(asked))
    missing = sum(map(len, verdicts)) - sum(map(len, asked))
    assert [found[name] for name in names[:3]] == pytest.approx(expected)
    assert found.get("num_without_verdict", 0) == missing == found["num_scored"] - sum(map(len, asked))


def test_a_line_a_card_and_the_doctor_say_how_many_answers_are_left_out():
    said = io.StringIO()
    display = Display(Console(file=said, width=200))
    numbers = evaluation([True], [False], [None], [True]).metrics("greedy")
    assert (numbers["greedy_without_verdict"], numbers["greedy_without_reward"], numbers["greedy_answers"]) == (1, 1, 4)
    display.evaluated(6, numbers)
    line = "held-out questions right after step 6: greedy 66.7% (20.8% to 93.9%; 1 of 4 without a verdict)"
    assert said.getvalue().splitlines()[1:] == [line]
    assert _number(numbers, "greedy") == "66.7% [20.8%, 93.9%], 1 of 4 without a verdict"
    in_a_run = {f"eval/{name}": value for name, value in numbers.items()}
    assert _with_interval(in_a_run, "eval/greedy") == "66.7% (20.8% to 93.9%; 1 of 4 without a verdict)"
    assert _with_interval(in_a_run, "eval/greedy_reward").endswith("; 1 of 4 without a reward)")
    assert not any("without" in name for name in evaluation([True], [False]).metrics("greedy"))


def test_an_evaluation_without_any_verdict_says_so_where_the_rewards_give_verdicts():
    said = io.StringIO()
    numbers = evaluation([None], [None]).metrics("greedy", defined=True)
    assert numbers == {"greedy_without_verdict": 2, "greedy_without_reward": 2, "greedy_answers": 2}
    Display(Console(file=said, width=200)).evaluated(4, numbers)
    assert "questions right after step 4: greedy 2 of 2 without a verdict\n" in said.getvalue()
    assert "greedy_without_verdict" not in evaluation([None], [None]).metrics("greedy")


def evaluated(*evaluations: dict[str, float], before: dict[str, float]) -> Progress:
    progress = Progress(before=before)
    for step, numbers in enumerate(evaluations, 1):
        progress.evaluated(numbers, step, best_by="greedy")
    return progress


def test_an_evaluation_without_a_verdict_is_not_the_best_one_and_no_sign_of_patience():
    right = {"greedy": 0.5, "greedy_reward": 0.5}
    graded = {"greedy_reward": 0.9, "greedy_without_verdict": 4.0, "greedy_answers": 4.0}
    found = evaluated(right, graded, graded, before={"greedy": 0.25})
    assert (found.best_step, found.since_best) == (1, 0)
    assert evaluated(graded, {"greedy": 0.3}, before={"greedy": 0.25}).best_step == 2
    assert evaluated(graded, before={"greedy": 0.25}).best_step is None
    never = evaluated({"greedy_reward": 0.5}, {"greedy_reward": 0.4}, before={"greedy_reward": 0.1})
    assert (never.best_step, never.since_best) == (1, 1)


def test_advantages_that_count_right_answers_leave_out_those_without_a_verdict():
    group = [rollout(1, 1.0, right=True), rollout(1, 0.0, right=False), rollout(1, 0.5, right=None)]
    alone = per_token(pass_at_k)(batch_of(group[:2] * 3))
    mixed = per_token(pass_at_k)(batch_of(group * 3))
    judged = torch.tensor([True, True, False] * 3)
    assert torch.equal(mixed.advantages.sum(1)[judged], alone.advantages.sum(1))
    assert not mixed.advantages[~judged].any()
    kept = rejection(batch_of(group))
    assert kept.loss_mask.any(1).tolist() == [True, False, False]


@pytest.mark.parametrize("advantage", [per_token(pass_at_k), rejection])
def test_a_step_in_which_no_answer_has_a_verdict_trains_nothing(advantage):
    batch = fill_right(batch_of([rollout(1, 1.0), rollout(1, 0.0), rollout(1, 0.5), rollout(1, 1.0)]))
    found = advantage(batch)
    assert not found.advantages.any()
    assert fill_right(batch) is batch


def level(*rollouts: Rollout) -> Curriculum:
    levels = {number: [Prompt(id=str(number), text="?", token_ids=(1,))] for number in (1, 2)}
    curriculum = Curriculum(levels, window=1, threshold=0.6, per_step=1)
    curriculum.observe([Group(prompt=levels[1][0], rollouts=rollouts)])
    return curriculum


def test_a_curriculum_counts_answers_with_a_verdict():
    right, wrong, none = (rollout(1, 1.0, right=verdict) for verdict in (True, False, None))
    assert level(right, none, none).level == 2
    assert level(right, wrong, none).level == 1
    with pytest.raises(RewardError, match="no reward tells what is right"):
        level(none, none)
