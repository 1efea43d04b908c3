"""Test episodes of several turns: what is trained is what was sampled, and no fault of an environment is a reward."""

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from episode_cases import TEMPLATE, add, call, dialogue, fail, question, tool_tokenizer, wait_for
from moods import llama, mood

from outdo.extras.episodes.adapt import adapt
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Reply
from outdo.models.completion_text import completion_text
from outdo.models.policy import Policy
from outdo.models.scorer import token_scores
from outdo.rewards import load_reward
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine, tiny_model
from outdo.types import Batch, FinishReason, Group, Rollout
from outdo.utils.errors import UserError

SAMPLING = SamplingParams(max_tokens=400)


class Counting:
    """Answers every turn until it has answered `replies` of them; the last answer ends the episode."""

    def __init__(self, replies: int = 2, reward: float | None = None) -> None:
        self.left = replies
        self.reward = reward

    def reply(self, message: dict[str, Any]) -> Reply | str:
        self.left -= 1
        if self.left == 0:
            return Reply(reward=self.reward, done=True)
        return Reply(messages=[{"role": "user", "content": f"{self.left} left."}], reward=self.reward)


def play(environment: Dialogue, script: Any, *, n: int = 1, sampling: SamplingParams = SAMPLING) -> list[Rollout]:
    """The rollouts of one question."""
    engine = ScriptedEngine(script, environment.template.tokenizer)
    prompt = question(environment.template)
    (group,) = environment.rollouts(engine, [prompt], n, sampling, step=1, purpose="train")
    return list(group.rollouts)


def text(environment: Dialogue, rollout: Rollout, *, sampled: bool) -> list[str]:
    """The text of each run of tokens that the policy sampled, or of those that it did not."""
    tokenizer = environment.template.tokenizer
    runs = itertools.groupby(zip(rollout.loss_mask, rollout.token_ids, strict=True), key=lambda each: each[0])
    return [str(tokenizer.decode([token for _, token in run])) for kind, run in runs if kind is sampled]


# ---------------------------------------------------------------------------------------------------------- the tokens


def test_a_rollout_is_the_sampled_turns_with_the_messages_between_them() -> None:
    environment = dialogue(tools=[add])
    (rollout,) = play(environment, [call("add", a=2, b=3), "It is 5."])
    assert text(environment, rollout, sampled=True) == [call("add", a=2, b=3) + "<|end|>", "It is 5.<|end|>"]
    assert text(environment, rollout, sampled=False) == [
        "\n<|user|><tool_response>5</tool_response><|end|>\n<|assistant|>"
    ]
    assert rollout.text == "It is 5."
    assert rollout.finish_reason is FinishReason.stop
    assert +Counter(rollout.counts) == {"tools/calls": 1}
    assert all(
        logprob == (-1.0 if own else 0.0) for logprob, own in zip(rollout.logprobs, rollout.loss_mask, strict=True)
    )


def test_what_was_sampled_is_trained_even_where_no_tokenizer_would_write_it_so() -> None:
    environment = dialogue(lambda: Counting(2))
    tokenizer = environment.template.tokenizer
    odd = [*tokenizer.encode("a"), tokenizer.pad_token_id, *tokenizer.encode(" b"), tokenizer.eos_token_id]
    (rollout,) = play(environment, [odd, "c"])
    assert list(rollout.token_ids[: len(odd)]) == odd


def test_a_turn_is_cut_at_its_own_limit_closed_and_answered() -> None:
    environment = dialogue(lambda: Counting(2), turn_tokens=4)
    (rollout,) = play(environment, ["Far too long.", "Yes."])
    assert text(environment, rollout, sampled=True) == ["Far ", "Yes."]
    assert text(environment, rollout, sampled=False) == ["<|end|>\n<|user|>1 left.<|end|>\n<|assistant|>"]
    assert rollout.finish_reason is FinishReason.stop  # the environment declared it over


def test_a_result_that_does_not_fit_ends_the_episode_and_the_tokens_before_it_are_trained() -> None:
    environment = dialogue(tools=[add], reward=load_reward("last_number"))
    script = [call("add", a=2, b=3), "never"]
    calls = len(environment.template.tokenizer.encode(script[0])) + 1
    (rollout,) = play(environment, script, sampling=SamplingParams(max_tokens=calls + 10))
    assert text(environment, rollout, sampled=True) == [call("add", a=2, b=3) + "<|end|>"]
    assert all(rollout.loss_mask)
    assert rollout.finish_reason is FinishReason.length
    assert rollout.scored


def test_an_episode_ends_at_its_limit_of_turns_after_its_environment_has_seen_the_last_one() -> None:
    environment = dialogue(lambda: Counting(9, reward=1.0), turns=3)
    (rollout,) = play(environment, ["a", "b", "c", "d"])
    assert len(text(environment, rollout, sampled=True)) == 3
    assert rollout.reward == 3.0
    assert rollout.finish_reason is FinishReason.turns


@pytest.mark.parametrize("trl", [False, True])
def test_an_episode_that_changes_its_row_changes_that_of_no_other_sample(trl: bool) -> None:
    begun: list[tuple[Any, Any]] = []

    def begin_with(text: list[Any], known: list[str]) -> None:
        begun.append((list(text), list(known)))
        text.append({"role": "user", "content": "Go on."})
        known.append("Rome")

    class Native:
        def begin(self, prompt: Any) -> None:
            begin_with(prompt.text, prompt.columns["known"])

    class OfTrl:
        def reset(self, prompt: Any, known: Any, **row: Any) -> None:
            begin_with(prompt, known)

    environment = dialogue(lambda: adapt(OfTrl() if trl else Native()))
    prompt = question(environment.template)
    text = [{"role": "user", "content": str(prompt.text)}]
    prompt = replace(prompt, text=list(text), columns={"known": ["Paris"]})
    engine = ScriptedEngine(lambda _: "a", environment.template.tokenizer)
    environment.rollouts(engine, [prompt], 2, SAMPLING, step=1, purpose="train")
    assert begun == [(text, ["Paris"])] * 2
    assert (prompt.text, prompt.columns) == (text, {"known": ["Paris"]})


# --------------------------------------------------------------------------------------------------------- the rewards


def test_the_rewards_of_turns_stand_on_their_last_tokens_and_add_up_to_the_reward() -> None:
    environment = dialogue(lambda: Counting(3, reward=0.25), reward=load_reward("last_number"))
    engine = ScriptedEngine(["a", "b", "5"], environment.template.tokenizer)
    prompt = question(environment.template)
    (group,) = environment.rollouts(engine, [prompt], 1, SAMPLING, step=1, purpose="train")
    (rollout,) = group.rollouts
    assert rollout.token_rewards is not None
    ends = [t for t, reward in enumerate(rollout.token_rewards) if reward]
    assert [rollout.token_rewards[t] for t in ends] == [0.25, 0.25, 1.25]
    assert all(rollout.loss_mask[t] and not (*rollout.loss_mask, False)[t + 1] for t in ends)
    assert sum(rollout.token_rewards) == rollout.reward == 1.75
    assert rollout.reward_parts == {"last_number": 1.0, "environment": 0.75}
    batch = Batch.from_groups([group])
    assert batch.token_rewards is not None
    assert [int(turn) for turn in batch.turn[batch.token_rewards != 0]] == [0, 1, 2]


def test_a_final_reward_counts_and_an_episode_without_any_reward_has_the_reward_0() -> None:
    class Final(Counting):
        def final_reward(self) -> float:
            return 0.5

    (rollout,) = play(dialogue(lambda: Final(1)), ["a"])
    assert (rollout.reward, rollout.token_rewards) == (0.5, None)
    (rollout,) = play(dialogue(lambda: Counting(1)), ["a"])
    assert (rollout.status, rollout.reward) == ("ok", 0.0)


def test_a_reward_function_reads_the_last_turn_and_may_read_all_messages() -> None:
    def score(completion: str, messages: list[dict[str, Any]]) -> float:
        assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]
        return float(completion == "It is 5.")

    def trl(prompts: list[Any], completions: list[Any]) -> list[float]:
        return [float(completion[1]["content"] == "5") for completion in completions]

    environment = dialogue(tools=[add], reward=load_reward([score, trl]))
    (rollout,) = play(environment, [call("add", a=2, b=3), "It is 5."])
    assert rollout.reward_parts == {"score": 1.0, "trl": 1.0}


# ------------------------------------------------------------------------------------------- what goes wrong with tools


@pytest.mark.parametrize(
    ("written", "metric", "answer"),
    [
        (call("ad", a=1, b=2), "unknown", "error: there is no tool ad; did you mean add?"),
        (call("multiply", a=1, b=2), "unknown", "error: there is no tool multiply; there are add, fail, wait_for"),
        ("<tool_call>{add}</tool_call>", "unparsed", "error: the call is not valid"),
        (call("add", a=1), "unparsed", "error: add: b is missing"),
        (call("add", a=1, b=2, c=3), "unparsed", "error: add: there is no argument c"),
        (call("add", a="1", b=2), "unparsed", "error: add: a must be of type integer"),
        (call("fail", reason="out of ink"), "raised", "error: RuntimeError: out of ink"),
        (call("wait_for", seconds=20), "timed_out", "error: wait_for had no result after 0.2 s"),
    ],
)
def test_a_call_that_fails_is_a_message_to_the_policy_and_counted(written: str, metric: str, answer: str) -> None:
    seconds = 0.2 if metric == "timed_out" else 600.0
    environment = dialogue(tools=[add, fail, wait_for], timeout=seconds, reward=load_reward("last_number"))
    engine = ScriptedEngine([written, "5"], environment.template.tokenizer)
    prompt = question(environment.template)
    (group,) = environment.rollouts(engine, [prompt], 1, SAMPLING, step=1, purpose="train")
    (rollout,) = group.rollouts
    (result,) = text(environment, rollout, sampled=False)
    assert f"<tool_response>{answer}" in result
    assert +Counter(rollout.counts) == {"tools/calls": 1, f"tools/{metric}": 1}
    called = {"raised": "fail", "timed_out": "wait_for"}.get(metric)  # else no tool was
    assert {name: len(seconds) for name, seconds in rollout.tool_seconds.items()} == {
        name: int(name == called) for name in ("add", "fail", "wait_for")
    }
    assert metric != "timed_out" or rollout.tool_seconds["wait_for"][0] >= seconds
    assert rollout.reward == 1.0


def test_a_tool_may_be_asynchronous_and_is_cancelled_at_its_deadline() -> None:
    ended = threading.Event()

    async def look_up(word: str) -> str:
        """Look up a word.

        Args:
            word: The word.
        """
        try:
            await asyncio.sleep(600 if word == "slow" else 0)
        except asyncio.CancelledError:
            ended.set()
            raise
        return word.upper()

    environment = dialogue(tools=[look_up], timeout=0.3)
    script = [call("look_up", word="fast") + call("look_up", word="slow"), "done"]
    (rollout,) = play(environment, script)
    (results,) = text(environment, rollout, sampled=False)
    assert "<tool_response>FAST</tool_response><tool_response>error: look_up had no result" in results
    assert +Counter(rollout.counts) == {"tools/calls": 2, "tools/timed_out": 1}
    assert ended.wait(600)


# ---------------------------------------------------------------------------------- what goes wrong with environments


class Broken:
    """Fails in the way that its name tells."""

    def __init__(self, way: str) -> None:
        if way == "init":
            raise ValueError("cannot be made")
        self.way = way

    def begin(self, prompt: Any) -> None:
        if self.way == "begin":
            raise ValueError("cannot begin")

    def reply(self, message: Any) -> Any:
        if self.way == "late":
            time.sleep(600)
        if self.way == "raises":
            raise ValueError("cannot reply")
        wrong: dict[str, Any] = {
            "type": 7,
            "role": Reply(messages=[{"role": "assistant", "content": "no"}]),
            "nan": Reply(reward=float("nan")),
        }
        return wrong.get(self.way)

    def final_reward(self) -> float:
        if self.way == "final":
            raise ValueError("cannot score")
        return 1.0


@pytest.mark.parametrize("way", ["init", "raises", "late", "role", "nan", "final"])
def test_an_environment_that_fails_is_a_verdict_and_never_a_reward(way: str) -> None:
    ways = iter([way, "sound", "sound"])
    environment = dialogue(lambda: Broken(next(ways)), timeout=0.5 if way == "late" else 60)
    rollouts = play(environment, lambda _: "a", n=3)
    statuses = sorted(rollout.status for rollout in rollouts)
    assert statuses == sorted(["timed_out" if way == "late" else "failed", "ok", "ok"])
    assert sorted(rollout.reward for rollout in rollouts) == [0.0, 1.0, 1.0]
    failed = next(rollout for rollout in rollouts if not rollout.scored)
    assert not Batch.from_groups([Group(prompt=question(environment.template), rollouts=(failed,))]).loss_mask.any()


def test_episodes_are_closed_whatever_happens() -> None:
    closed: list[int] = []

    class Closing(Counting):
        def close(self) -> None:
            closed.append(1)

    play(dialogue(lambda: Closing(2)), lambda _: "a", n=3)
    assert len(closed) == 3
    with pytest.raises(Exception, match="the script has 0 answers"):
        play(dialogue(lambda: Closing(2)), [], n=3)
    assert len(closed) == 6


# ---------------------------------------------------------------------------------------------------------- the prompt


class Begins:
    def __init__(self, added: Any) -> None:
        self.added = added

    def begin(self, prompt: Any) -> Any:
        return self.added


@pytest.mark.parametrize(
    ("added", "prompt"),
    [(" Ready?", ["What is 2 + 3? Ready?", ""]), ([{"role": "user", "content": "Go."}], ["What is 2 + 3?", "Go.", ""])],
)
def test_an_episode_may_add_text_or_messages_to_its_prompt(added: Any, prompt: list[str]) -> None:
    environment = dialogue(lambda: Begins(added), reward=load_reward("last_number"))
    engine = ScriptedEngine(lambda _: "5", environment.template.tokenizer)
    (group,) = environment.rollouts(engine, [question(environment.template)], 2, SAMPLING, step=1, purpose="train")
    assert completion_text(engine.tokenizer, group.prompt.token_ids).split("\n") == prompt
    assert {request.token_ids for request in engine.requests} == {group.prompt.token_ids}


def test_all_samples_of_a_question_begin_with_the_same() -> None:
    words = iter(["a", "b"])
    with pytest.raises(UserError, match="`begin` returned something else to other samples of the same question"):
        play(dialogue(lambda: Begins(next(words))), lambda _: "5", n=2)


# ---------------------------------------------------------------------------------------------- exactly what is sampled


def model_and_environment(arch: str, **options: Any) -> tuple[Policy, Dialogue]:
    model, _ = tiny_model(arch=arch)
    policy = Policy(model, tool_tokenizer(TEMPLATE))
    sound = {"turns": 4, "turn_tokens": 12, "reward": load_reward("last_number"), **options}
    return policy, dialogue(lambda: Counting(9, reward=1.0), tokenizer=policy.tokenizer, **sound)


@pytest.mark.parametrize("arch", ["qwen3", "gemma3_text", "mamba"])
def test_the_policy_gives_the_sampled_tokens_of_four_turns_the_engines_probabilities(arch: str) -> None:
    policy, environment = model_and_environment(arch)
    prompts = [question(environment.template, f"{n}?", str(n)) for n in range(2)]
    groups = environment.rollouts(BuiltinEngine(policy), prompts, 2, SAMPLING, step=1, purpose="train")
    batch = Batch.from_groups(groups)
    scored = token_scores(policy.forward, batch).logprobs
    assert (scored - batch.rollout_logprobs)[batch.loss_mask].abs().max() <= 1e-5
    assert int(batch.turn.max()) == 3
    assert scored[~batch.loss_mask].abs().max() == 0


def test_every_turn_of_an_episode_is_sampled_with_the_inputs_of_its_question() -> None:
    policy = Policy(llama(), tool_tokenizer(TEMPLATE))
    environment = dialogue(lambda: Counting(9), tokenizer=policy.tokenizer, turns=3, turn_tokens=8)
    prompts = [replace(question(environment.template), inputs=mood(number)) for number in range(2)]
    groups = environment.rollouts(BuiltinEngine(policy), prompts, 2, SAMPLING, step=1, purpose="train")
    batch = Batch.from_groups(groups)
    assert int(batch.turn.max()) == 2
    scored = token_scores(policy.forward, batch).logprobs
    assert (scored - batch.rollout_logprobs)[batch.loss_mask].abs().max() <= 1e-4
    others = token_scores(policy.forward, batch.with_(inputs=batch.inputs[::-1])).logprobs
    assert (others - batch.rollout_logprobs)[batch.loss_mask & (batch.turn == 2)].abs().max() > 0.1


def test_tokens_depend_neither_on_company_nor_on_order_nor_on_the_time_that_tools_take() -> None:
    class Slow(Counting):
        def reply(self, message: dict[str, Any]) -> Reply | str:
            time.sleep(random.random() * 0.1)
            return super().reply(message)

    policy, environment = model_and_environment("qwen3")
    prompts = [question(environment.template, f"{n}?", str(n)) for n in range(4)]
    engine = BuiltinEngine(policy)

    def tokens(environment: Dialogue, chosen: list[Any]) -> dict[str, list[tuple[int, ...]]]:
        groups = environment.rollouts(engine, chosen, 2, SAMPLING, step=1, purpose="train")
        return {group.prompt.id: [rollout.token_ids for rollout in group.rollouts] for group in groups}

    together = tokens(environment, prompts)
    environment.make, quick = dialogue(lambda: Slow(9), tokenizer=policy.tokenizer).make, environment.make
    assert tokens(environment, prompts) == together
    environment.make = quick
    assert tokens(environment, prompts[::-1]) == together
    assert all(tokens(environment, [prompt])[prompt.id] == together[prompt.id] for prompt in prompts)


def test_no_random_number_is_used_twice_in_an_episode() -> None:
    environment = dialogue(lambda: Counting(3))
    engine = ScriptedEngine(["abc", "de", "f"], environment.template.tokenizer)
    environment.rollouts(engine, [question(environment.template)], 1, SAMPLING, step=1, purpose="train")
    assert [request.position for request in engine.requests] == [0, 4, 7]
    assert len({request.stream for request in engine.requests}) == 1


def test_a_slow_tool_does_not_keep_the_other_episodes_waiting() -> None:
    class One(Counting):
        def __init__(self, slow: bool) -> None:
            super().__init__(3, reward=1.0)
            self.slow = slow

        def reply(self, message: dict[str, Any]) -> Reply | str:
            if self.slow and self.left == 3:
                assert released.wait(600)
            return super().reply(message)

    released, sampled = threading.Event(), []
    slow = iter([True, *[False] * 7])
    environment = dialogue(lambda: One(next(slow)), timeout=600)

    def script(request: Any) -> str:
        sampled.append(request.stream.sample)
        if len(sampled) == 8 + 7 + 7:  # all turns of the seven others
            released.set()
        return "a"

    rollouts = play(environment, script, n=8)
    assert [rollout.reward for rollout in rollouts] == [3.0] * 8
    assert torch.tensor(sampled[-2:]).unique().numel() == 1
