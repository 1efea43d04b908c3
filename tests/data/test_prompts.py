"""The order of the questions: different in every epoch, and resumed from the position alone."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice

import pytest

from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import Question
from outdo.rewards import Reward
from outdo.rewards.types import RewardInput, RewardOutput, to_output
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Completion, FinishReason, Prompt, Request
from outdo.utils.errors import UserError
from outdo.utils.rng import Stream

TEN = [Prompt(id=str(number), text=f"{number}?", token_ids=(number + 1,)) for number in range(10)]


def take_ids(prompts: Prompts, steps: int) -> list[list[str]]:
    return [[prompt.id for prompt in batch] for batch in islice(prompts, steps)]


def epochs(seed: int, steps: int = 10, per_step: int = 4) -> list[list[str]]:
    ids = list(chain.from_iterable(take_ids(Prompts(TEN, per_step=per_step, seed=seed), steps)))
    return [ids[start : start + len(TEN)] for start in range(0, len(ids), len(TEN))]


@pytest.mark.parametrize("per_step", [1, 4, 10, 25])  # 25: a step longer than two epochs
def test_every_epoch_has_each_question_once(per_step):
    everything = sorted(prompt.id for prompt in TEN)
    assert all(sorted(epoch) == everything for epoch in epochs(0, steps=100 // per_step, per_step=per_step))


def test_orders_differ_by_epoch_and_by_seed():
    orders = [tuple(epoch) for seed in range(3) for epoch in epochs(seed)]
    assert len(set(orders)) == len(orders) == 12


def test_without_shuffling_the_order_is_that_of_the_file():
    prompts = Prompts(TEN, per_step=4, shuffle=False)
    assert take_ids(prompts, 3) == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9", "0", "1"]]


@pytest.mark.parametrize("steps", range(8))
def test_the_position_is_the_whole_state(steps):
    uninterrupted = take_ids(Prompts(TEN, per_step=3, seed=1), 12)
    interrupted = Prompts(TEN, per_step=3, seed=1)
    before = take_ids(interrupted, steps)
    resumed = Prompts(TEN, per_step=3, seed=1)
    resumed.load_state(interrupted.state())
    assert before + take_ids(resumed, 12 - steps) == uninterrupted


def test_prompts_taken_between_two_steps_are_not_in_the_next():
    prompts = Prompts(TEN, per_step=3, shuffle=False)
    steps = iter(prompts)
    assert [prompt.id for prompt in next(steps)] == ["0", "1", "2"]
    assert [prompt.id for prompt in prompts.take(2)] == ["3", "4"]
    assert prompts.take(0) == []
    assert [prompt.id for prompt in next(steps)] == ["5", "6", "7"]
    assert prompts.state() == {"position": 8}


class RecordingEngine:
    """An engine that answers every request with one token, and records the streams."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        self.streams += [request.stream for request in requests]
        only = Completion(token_ids=(5,), logprobs=(-1.0,), finish_reason=FinishReason.stop, policy_version=0)
        return [only for _ in requests]

    tokenizer = byte_bpe_tokenizer([])


class ConstantReward(Reward):
    """A reward of 0.5 for every completion."""

    name = "half"

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        return [to_output(0.5, self.name) for _ in inputs]

    def close(self) -> None: ...


def test_a_question_that_is_twice_in_a_step_gets_different_random_numbers():
    engine, questions = RecordingEngine(), [TEN[0], TEN[1], TEN[0]]
    environment = SingleTurn(ConstantReward())
    groups = environment.rollouts(engine, questions, 4, SamplingParams(), step=3, purpose="train")
    assert [group.prompt.id for group in groups] == ["0", "1", "0"]
    assert [len(group.rollouts) for group in groups] == [4, 4, 4]
    assert len(set(engine.streams)) == 12
    assert {stream.sample for stream in engine.streams if stream.prompt_id == "0"} == set(range(8))


@pytest.mark.parametrize("chat_template", ["{% for m in messages %}{{ m.content }}{% endfor %}", None])
def test_tools_that_the_prompt_has_no_place_for_are_refused_by_what_brings_them(chat_template):
    tokenizer = byte_bpe_tokenizer(["1+1="])
    tokenizer.chat_template = chat_template
    tool = {"type": "function", "function": {"name": "add"}}
    plain = Question(id="1", text="1+1=", answer="2", columns={})
    with_column = replace(plain, id="2", tools=(tool,))
    for questions, without in (([plain], "an environment of your own"), ([with_column], "remove the column tools")):
        with pytest.raises(UserError) as caught:
            tokenise(questions, tokenizer, tools=lambda row: [tool])
        (problem,) = caught.value.problems
        assert f"question {questions[0].id} has tools" in problem
        assert without in problem


def test_rows_in_the_place_of_questions_are_refused():
    with pytest.raises(TypeError, match=r"expected the questions of outdo.questions_from, found dict"):
        tokenise([{"question": "1+1=", "answer": "2"}], byte_bpe_tokenizer([]))  # type: ignore[list-item]


def test_a_step_without_prompts_is_refused():
    with pytest.raises(ValueError, match="per_step: expected 1 or more prompts, found 0"):
        Prompts(["a"], per_step=0)
