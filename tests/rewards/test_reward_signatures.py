"""Reward functions for TRL, for verl and plain ones run unchanged; the names of their parameters identify them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from outdo.rewards import RewardInput, Status, load_reward
from outdo.utils.errors import UserError

Sample = Callable[..., RewardInput]


def values(function: Callable[..., Any], inputs: list[RewardInput]) -> list[float]:
    reward = load_reward(function)
    outputs = reward(inputs)
    reward.close()
    assert [output.reason for output in outputs if output.status is Status.failed] == []
    return [output.value for output in outputs]


def test_a_plain_function_gets_the_arguments_it_names(sample: Sample):
    def score(completion, answer, prompt, level, completion_ids, unknown=7):
        return [completion, answer, prompt, level, completion_ids, unknown] == ["a", "b", "1?", 3, [1, 2], 7]

    assert values(score, [sample("a", "b", level=3)]) == [1.0]


def test_a_plain_function_may_take_every_column(sample: Sample):
    assert values(lambda completion, **columns: columns["level"] + len(columns), [sample("a", level=3)]) == [10.0]


def test_messages_are_those_of_the_episode_and_else_the_column(sample: Sample):
    def count(completion, messages):
        return len(messages)

    one_turn, row = sample("a"), sample("a", messages=[{"role": "user", "content": "?"}])
    episode = replace(row, messages=[{"role": "assistant", "content": "a"}] * 3)
    assert values(count, [one_turn, row, episode]) == [0.0, 1.0, 3.0]


def test_a_trl_function_gets_lists_and_the_columns(sample: Sample):
    def score(prompts, completions, completion_ids, answer, level, **kwargs):
        assert prompts == ["1?", "1?"]
        assert completion_ids == [[1, 2], [1, 2]]
        assert (answer, level, kwargs) == (["1", "2"], [3, None], {})
        return [len(completion) for completion in completions]

    assert values(score, [sample("a", "1", level=3), sample("bb", "2")]) == [1.0, 2.0]


def test_a_function_of_cs336_runs_unchanged(sample: Sample):
    def r1_zero_reward_fn(response, ground_truth, fast=True):
        right = float(response == ground_truth)
        return {"format_reward": 1.0, "answer_reward": right, "reward": right if fast else -1.0}

    assert values(r1_zero_reward_fn, [sample("1", "1"), sample("2", "1")]) == [1.0, 0.0]
    slow = load_reward({"name": r1_zero_reward_fn, "fast": False})
    assert slow([sample("1")])[0].value == -1.0
    with pytest.raises(UserError, match="ground_truth: outdo sets it itself: it belongs to the completion"):
        load_reward({"name": r1_zero_reward_fn, "ground_truth": "1"})


@pytest.mark.parametrize(("returned", "value"), [({"score": 1, "reward": 2}, 1.0), ({"reward": True, "acc": 0}, 1.0)])
def test_of_a_dict_the_score_counts_or_else_the_reward(sample: Sample, returned: dict[str, float], value: float):
    assert values(lambda completion: returned, [sample("a")]) == [value]
    assert values(lambda completions: [returned for _ in completions], [sample("a")] * 2) == [value] * 2


def test_none_from_a_trl_function_is_not_applicable(sample: Sample):
    outputs = load_reward(lambda completions, **_: [None, 1.0])([sample("a"), sample("b")])
    assert [output.status for output in outputs] == ["not_applicable", "ok"]


def test_a_verl_function_gets_its_four_arguments_and_may_return_a_dict(sample: Sample):
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return {"score": [data_source, solution_str, ground_truth, extra_info] == ["gsm8k", "a", "1", {"index": 3}]}

    assert values(compute_score, [sample("a", data_source="gsm8k", extra_info={"index": 3})]) == [1.0]


def test_a_verl_function_of_a_batch_gets_lists_of_the_same_arguments(sample: Sample):
    def compute_score(data_sources, solution_strs, ground_truths, extra_infos, scale=1):
        assert (data_sources, extra_infos) == (["gsm8k", ""], [{"index": 3}, {}])
        pairs = zip(solution_strs, ground_truths, strict=True)
        return [{"score": scale * (answer == wanted)} for answer, wanted in pairs]

    inputs = [sample("a", "a", data_source="gsm8k", extra_info={"index": 3}), sample("b", "1")]
    assert values(compute_score, inputs) == [1.0, 0.0]
    assert [each.value for each in load_reward({"name": compute_score, "scale": 3})(inputs)] == [3.0, 0.0]
    with pytest.raises(UserError, match="ground_truths: outdo sets it itself"):
        load_reward({"name": compute_score, "ground_truths": ["1"]})


def test_the_reference_of_a_verl_function_is_that_of_the_row_whatever_column_is_the_answer(sample: Sample):
    def one(solution_str, ground_truth):
        return solution_str == ground_truth

    def batch(solution_strs, ground_truths):
        return [answer == wanted for answer, wanted in zip(solution_strs, ground_truths, strict=True)]

    row = {"reward_model": {"style": "rule", "ground_truth": "506"}}
    others: list[dict[str, Any]] = [{}, {"reward_model": None}, {"reward_model": {"style": "model"}}]
    for function in (one, batch):
        assert values(function, [sample("506", "141 and 365 is 506 #### 506", **row)]) == [1.0]
        assert [values(function, [sample("506", "506", **each)]) for each in others] == [[1.0]] * 3


def test_asynchronous_calls_run_concurrently(sample: Sample):
    waiting = []

    async def score(completion):
        waiting.append(completion)
        while len(waiting) < 3:  # would wait for ever if the calls came one after another
            await asyncio.sleep(0)
        return len(completion)

    assert values(score, [sample("a"), sample("bb"), sample("ccc")]) == [1.0, 2.0, 3.0]


def test_every_signature_may_be_asynchronous_and_any_callable_is_accepted(sample: Sample):
    async def trl(completions, **columns):
        return [1.0 for _ in completions]

    async def verl(data_source, solution_str, ground_truth, extra_info):
        return 1.0

    class Scorer:
        async def __call__(self, completion, answer):
            return True

    async def plain(completion, weight):
        return weight

    for function in (
        trl,
        verl,
        Scorer(),
        partial(plain, weight=1.0),
        lambda completion: Scorer()(completion, "1"),
    ):
        assert values(function, [sample("a"), sample("b")]) == [1.0, 1.0]


def test_asynchronous_rewards_work_inside_a_running_loop(sample: Sample):
    async def score(completion):
        return 1.0

    async def notebook_cell():
        return values(score, [sample("a")])

    assert asyncio.run(notebook_cell()) == [1.0]


def test_a_batch_that_raises_is_retried_one_by_one(sample: Sample):
    def score(completions, **columns):
        return [1 / len(completion) for completion in completions]

    outputs = load_reward(score)([sample("a"), sample(""), sample("bb")])
    assert [(output.value, output.status) for output in outputs] == [(1.0, "ok"), (0.0, "failed"), (0.5, "ok")]
    assert outputs[1].reason.startswith("ZeroDivisionError: division by zero (test_reward_signatures.py, line")


@pytest.mark.parametrize("leave", [SystemExit(0), MemoryError(), RecursionError("deep"), StopIteration()])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exception_fails_only_its_completion(sample: Sample, leave: BaseException, asynchronous: bool):
    def score(completion):
        if completion == "bad":
            raise leave
        return 1.0

    async def score_later(completion):
        return score(completion)

    reward = load_reward(score_later if asynchronous else score)
    assert [output.status for output in reward([sample("a"), sample("bad"), sample("b")])] == ["ok", "failed", "ok"]
    reward.close()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda c, a: 1.0, r"reward\(c, a\) has no known signature.*completion, answer.*as in TRL.*as in verl"),
        (lambda *args, **kwargs: 1.0, r"reward\(\*args, \*\*kwargs\) has no known signature; known are"),
        (lambda completion, /, answer="secret": 1.0, r"reward\(completion, /, answer\) has no known signature"),
        (lambda completon, answer: 1.0, r"no known signature; did you mean completion\?; known are"),
        (Fraction, "the reward Fraction is a class: give an instance that can be called, or a function"),
        (lambda completions, trainer_state: [1.0], "trainer_state, which only TRL's trainer can pass"),
        (print, "no known signature"),
        (7, "not a function but of type int"),
    ],
)
def test_an_unknown_signature_is_refused_with_a_list_of_the_known_ones(function: Any, message: str):
    with pytest.raises(UserError, match=f"(?s){message}"):
        load_reward(function)
