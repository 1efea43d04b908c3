"""Reward functions written for TRL, for verl, or for nobody run unchanged, told apart by their parameters' names."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from outdo.rewards import RewardInput, Status, load_reward
from outdo.utils.errors import UserError

Sample = Callable[..., RewardInput]
CHAT = [{"role": "user", "content": "1?"}]


def values(function: Callable[..., Any], answered: list[RewardInput]) -> list[float]:
    reward = load_reward(function)
    scored = reward(answered)
    reward.close()
    assert [one.reason for one in scored if one.status is Status.failed] == []
    return [one.value for one in scored]


def test_a_plain_function_gets_what_it_names(sample: Sample):
    def score(completion, answer, prompt, level, completion_ids, unknown=7):
        return [completion, answer, prompt, level, completion_ids, unknown] == ["a", "b", "1?", 3, [1, 2], 7]

    assert values(score, [sample("a", "b", level=3)]) == [1.0]


def test_a_plain_function_may_take_every_column(sample: Sample):
    assert values(lambda completion, **columns: columns["level"] + len(columns), [sample("a", level=3)]) == [7.0]


def test_a_trl_function_gets_lists_and_the_columns(sample: Sample):
    def score(prompts, completions, completion_ids, answer, level, **kwargs):
        assert prompts == ["1?", "1?"]
        assert completion_ids == [[1, 2], [1, 2]]
        assert (answer, level, kwargs) == (["1", "2"], [3, None], {})
        return [len(completion) for completion in completions]

    assert values(score, [sample("a", "1", level=3), sample("bb", "2")]) == [1.0, 2.0]


def test_a_trl_function_gets_messages_where_the_prompt_is_messages():
    def score(completions, log_extra=None, **kwargs):
        return [completion == [{"role": "assistant", "content": "a"}] for completion in completions]

    assert values(score, [RewardInput(prompt=CHAT, completion="a", answer=None)]) == [1.0]


def test_a_trl_reward_of_trl_itself_runs_unchanged():
    def think_format_reward(completions: list[list[dict[str, str]]], **kwargs) -> list[float]:
        return [float(completion[0]["content"].startswith("<think>")) for completion in completions]

    answered = [RewardInput(prompt=CHAT, completion=text, answer=None) for text in ("<think>", "no")]
    assert values(think_format_reward, answered) == [1.0, 0.0]


def test_none_from_a_trl_function_is_not_applicable(sample: Sample):
    statuses = [one.status for one in load_reward(lambda completions, **_: [None, 1.0])([sample("a"), sample("b")])]
    assert statuses == ["not_applicable", "ok"]


def test_a_verl_function_gets_its_four_arguments_and_may_return_a_dict(sample: Sample):
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return {"score": [data_source, solution_str, ground_truth, extra_info] == ["gsm8k", "a", "1", {"index": 3}]}

    assert values(compute_score, [sample("a", data_source="gsm8k", extra_info={"index": 3})]) == [1.0]


def test_a_verl_dict_without_a_score_has_failed(sample: Sample):
    scored = load_reward(lambda solution_str: {"acc": 1.0})([sample("a")])[0]
    assert (scored.status, '"score"' in scored.reason) == ("failed", True)


def test_asynchronous_calls_wait_at_the_same_time(sample: Sample):
    waiting = []

    async def score(completion):
        waiting.append(completion)
        while len(waiting) < 3:  # would wait for ever if the calls came one after another
            await asyncio.sleep(0)
        return len(completion)

    assert values(score, [sample("a"), sample("bb"), sample("ccc")]) == [1.0, 2.0, 3.0]


def test_every_convention_may_be_asynchronous_and_any_callable_will_do(sample: Sample):
    async def trl(completions, **columns):
        return [1.0 for _ in completions]

    async def verl(data_source, solution_str, ground_truth, extra_info):
        return 1.0

    class Judge:
        async def __call__(self, completion, answer):
            return True

    async def plain(completion, weight):
        return weight

    for function in (trl, verl, Judge(), partial(plain, weight=1.0), lambda completion: Judge()(completion, "1")):
        assert values(function, [sample("a"), sample("b")]) == [1.0, 1.0]


def test_one_event_loop_serves_every_call(sample: Sample):
    loops = []

    async def score(completion):
        loops.append(asyncio.get_running_loop())
        return 1.0

    reward = load_reward(score)
    reward([sample("a")]), reward([sample("b")])
    reward.close()
    assert loops[0] is loops[1]


def test_asynchronous_rewards_work_inside_a_running_loop(sample: Sample):
    async def score(completion):
        return 1.0

    async def notebook_cell():
        return values(score, [sample("a")])

    assert asyncio.run(notebook_cell()) == [1.0]


def test_a_batch_that_raises_is_repeated_so_that_only_the_guilty_fail(sample: Sample):
    def score(completions, **columns):
        return [1 / len(completion) for completion in completions]

    scored = load_reward(score)([sample("a"), sample(""), sample("bb")])
    assert [(one.value, one.status) for one in scored] == [(1.0, "ok"), (0.0, "failed"), (0.5, "ok")]
    assert scored[1].reason.startswith("ZeroDivisionError: division by zero (test_reward_signatures.py, line")


@pytest.mark.parametrize("leave", [SystemExit(0), MemoryError(), RecursionError("deep"), StopIteration()])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_function_raises_is_the_verdict_of_that_completion(
    sample: Sample, leave: BaseException, asynchronous: bool
):
    def score(completion):
        if completion == "bad":
            raise leave
        return 1.0

    async def score_later(completion):
        return score(completion)

    reward = load_reward(score_later if asynchronous else score)
    assert [one.status for one in reward([sample("a"), sample("bad"), sample("b")])] == ["ok", "failed", "ok"]
    reward.close()


def test_a_column_that_the_data_lacks_is_named(sample: Sample):
    def score(completion, solution):
        return 1.0

    reason = load_reward(score)([sample("a", level=1)])[0].reason
    assert "score needs solution; the data has level, prompt, completion" in reason


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda c, a: 1.0, r"reward\(c, a\) has no known signature.*completion, answer.*as in TRL.*as in verl"),
        (lambda *args, **kwargs: 1.0, "no known signature"),
        (lambda completions, trainer_state: [1.0], "trainer_state, which only TRL's trainer can pass"),
        (print, "no known signature"),
        (7, "not a function but of type int"),
    ],
)
def test_an_unknown_signature_is_refused_with_the_known_ones(function: Any, said: str):
    with pytest.raises(UserError, match=f"(?s){said}"):
        load_reward(function)


def test_a_lambda_has_a_name_fit_for_a_metric(sample: Sample):
    assert load_reward(lambda completion: 1.0)([sample("a")])[0].parts == {"reward": 1.0}


def test_an_interrupt_of_the_person_is_nobodys_verdict(sample: Sample):
    def score(completion):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_reward(score)([sample("a")])
    assert sys.exc_info() == (None, None, None)
