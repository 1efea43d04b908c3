"""Test agents that call the policy over HTTP: what is trained is what the engine sampled for their calls."""

import asyncio
import errno
import gc
import itertools
import json
import os
import random
import socket
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest
from agent_cases import ADD, SAMPLING, agent, ask, play, use_tools
from episode_cases import TEMPLATE, call, question, tool_tokenizer
from run_cases import wait_until

from outdo.extras.agents.agent import Agent
from outdo.extras.agents.chat import ChatAnswer, ChatCall
from outdo.extras.agents.check import GIVEN as GIVEN_IN_A_RECIPE
from outdo.extras.agents.endpoint import Endpoint
from outdo.extras.agents.running import GIVEN
from outdo.models.completion_text import completion_text
from outdo.models.policy import Policy
from outdo.models.scorer import token_scores
from outdo.rewards import load_reward
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine, tiny_model
from outdo.types import Batch, FinishReason, Group, Rollout
from outdo.utils.errors import EngineError

Row = dict[str, Any]


def texts(environment: Agent, rollout: Rollout, *, sampled: bool) -> list[str]:
    """The text of each run of tokens that the policy sampled, or of those that it did not."""
    runs = itertools.groupby(zip(rollout.loss_mask, rollout.token_ids, strict=True), key=lambda each: each[0])
    decode = environment.template.tokenizer.decode
    return [str(decode([token for _, token in run])) for kind, run in runs if kind is sampled]


def complete(base_url: str, **request: Any) -> Any:
    """One call of a plain client."""
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(model="any", **request)
        return list(answer) if request.get("stream") else answer


# ---------------------------------------------------------------------------------------------------------- the tokens


def test_an_agent_with_the_openai_client_is_one_row_of_sampled_turns_and_results() -> None:
    environment = agent(use_tools)
    (rollout,) = play(environment, [call("add", a=2, b=3), "It is 5."])
    assert texts(environment, rollout, sampled=True) == [call("add", a=2, b=3) + "<|end|>", "It is 5.<|end|>"]
    assert texts(environment, rollout, sampled=False) == [
        "\n<|user|><tool_response>5</tool_response><|end|>\n<|assistant|>"
    ]
    assert (rollout.reward, rollout.text, rollout.finish_reason) == (1.0, "It is 5.", FinishReason.stop)
    assert +Counter(rollout.counts) == {"agents/calls": 2}
    assert all(
        logprob == (-1.0 if own else 0.0) for logprob, own in zip(rollout.logprobs, rollout.loss_mask, strict=True)
    )


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_the_same_in_one_piece_and_in_a_stream(stream: bool) -> None:
    seen: list[Any] = []

    def run(row: Row, base_url: str) -> float:
        request: Row = {"messages": row["messages"], "tools": [ADD], "logprobs": True}
        request["extra_body"] = {"return_token_ids": True}
        if not stream:
            answer = complete(base_url, **request)
            choice, usage = answer.choices[0], answer.usage
            message, ids, logprobs = choice.message, choice.token_ids, choice.logprobs  # pyright: ignore
            seen.append(message.tool_calls[0].function.model_dump())
            end = choice.finish_reason
        else:
            usage_wanted = {"include_usage": True}
            chunks = complete(base_url, **request, stream=True, stream_options=usage_wanted)
            first, last, summary = chunks
            seen.append(first.choices[0].delta.tool_calls[0].function.model_dump())
            ids, logprobs, usage = first.choices[0].token_ids, first.choices[0].logprobs, summary.usage
            end = last.choices[0].finish_reason
        seen.append((end, ids, [each.logprob for each in logprobs.content], usage.completion_tokens))
        return 1.0

    environment = agent(run)
    (rollout,) = play(environment, [call("add", a=2, b=3)])
    function, (end, ids, logprobs, count) = seen
    assert (function["name"], json.loads(function["arguments"])) == ("add", {"a": 2, "b": 3})
    assert (end, tuple(ids), tuple(logprobs), count) == ("tool_calls", rollout.token_ids, rollout.logprobs, len(ids))


def test_an_agent_that_changes_its_row_changes_that_of_no_other_sample() -> None:
    seen: list[Row] = []

    def run(row: Row, base_url: str) -> float:
        seen.append(json.loads(json.dumps(row)))
        for messages in (row["prompt"], row["messages"]):
            answer = complete(base_url, messages=messages).choices[0].message
            messages.append(answer.model_dump(exclude_none=True))
        row["cities"]["known"].append("Rome")
        return 1.0

    environment = agent(run, at_once=1)
    prompt = question(environment.template)
    text = [{"role": "user", "content": str(prompt.text)}]
    prompt = replace(prompt, text=text, columns={"cities": {"known": ["Paris"]}})
    rollouts = play(environment, lambda _: "a", n=2, prompts=[prompt])
    assert seen[0] == seen[1] == {"messages": text, "prompt": text, "answer": "5", "cities": {"known": ["Paris"]}}
    assert rollouts[0].token_ids == rollouts[1].token_ids
    assert (prompt.text, prompt.columns) == (
        [{"role": "user", "content": "What is 2 + 3?"}],
        {"cities": {"known": ["Paris"]}},
    )


def test_a_history_that_is_rewritten_begins_a_conversation_which_is_trained_too() -> None:
    def run(row: Row, base_url: str) -> float:
        messages = list(row["messages"])
        for _ in range(3):
            answer = complete(base_url, messages=messages).choices[0].message
            messages += [answer.model_dump(exclude_none=True), {"role": "user", "content": "Go on."}]
        messages[1] = {"role": "assistant", "content": "(left out)"}
        complete(base_url, messages=messages)
        return 1.0

    environment = agent(run)
    (rollout,) = play(environment, ["one", "two", "three", "four"])
    assert texts(environment, rollout, sampled=True) == ["one<|end|>", "two<|end|>", "three<|end|>", "four<|end|>"]
    assert "(left out)" in texts(environment, rollout, sampled=False)[-1]
    assert rollout.reward == 1.0
    assert rollout.counts["agents/forks"] == 1
    assert rollout.counts["agents/forked_tokens"] == len("four") + 1


def test_agents_that_write_different_prompts_share_what_is_equal_in_them() -> None:
    words = iter(["red", "green"])

    def run(row: Row, base_url: str) -> float:
        messages = [{"role": "user", "content": f"What is {next(words)}?"}]
        complete(base_url, messages=messages)
        return 1.0

    environment = agent(run, at_once=1)
    engine = ScriptedEngine(lambda _: "a", environment.template.tokenizer)
    (group,) = environment.rollouts(engine, [question(environment.template)], 2, SAMPLING, step=1, purpose="train")
    assert completion_text(engine.tokenizer, group.prompt.token_ids) == "What is "
    assert [texts(environment, each, sampled=False) for each in group.rollouts] == [
        ["red?<|end|>\n<|assistant|>"],
        ["green?<|end|>\n<|assistant|>"],
    ]
    batch = Batch.from_groups([group])
    assert batch.loss_mask.sum(1).tolist() == [2, 2]


# ---------------------------------------------------------------------------------------------------------- the limits


def loop(row: Row, base_url: str) -> float:
    """Ask without end; give up at an answer that was cut."""
    messages = list(row["messages"])
    while True:
        choice = complete(base_url, messages=messages).choices[0]
        if choice.finish_reason == "length":
            return 0.5
        messages += [choice.message.model_dump(exclude_none=True), {"role": "user", "content": "Go on."}]


def test_an_agent_that_has_had_its_calls_gets_an_empty_answer_and_then_an_error() -> None:
    environment = agent(loop, calls=3)
    (rollout,) = play(environment, lambda _: "a")
    assert len(texts(environment, rollout, sampled=True)) == 3
    assert (rollout.reward, rollout.finish_reason) == (0.5, FinishReason.turns)

    def stubborn(row: Row, base_url: str) -> float:
        while True:
            complete(base_url, messages=row["messages"])

    (rollout, _) = play(agent(stubborn, calls=3, max_failed=1), lambda _: "a", n=2)
    assert rollout.status == "failed"


def test_messages_that_do_not_fit_get_an_empty_answer_and_the_tokens_before_them_are_trained() -> None:
    environment = agent(loop)
    (rollout,) = play(environment, lambda _: "abc", sampling=SamplingParams(max_tokens=30))
    assert len(rollout.token_ids) <= 30
    assert set(texts(environment, rollout, sampled=True)) == {"abc<|end|>"}
    assert (rollout.reward, rollout.scored, rollout.finish_reason) == (0.5, True, FinishReason.length)
    (rollout,) = play(agent(loop, longest_prompt=5, max_failed=1), lambda _: "abc")
    assert rollout.status == "failed"
    environment = agent(loop, context=len(question(environment.template).token_ids) + 9)
    (rollout,) = play(environment, lambda _: "abcdefghijk")
    assert len(rollout.token_ids) == 9


def test_a_call_may_ask_for_fewer_tokens_and_for_texts_at_which_the_answer_ends() -> None:
    seen: list[Any] = []

    def run(row: Row, base_url: str) -> float:
        for limit in ({"max_tokens": 2}, {"max_completion_tokens": 3}, {"stop": ["c"]}):
            request = {"messages": row["messages"], **limit}
            seen.append(complete(base_url, **request).choices[0])
        return 1.0

    environment = agent(run)
    engine = ScriptedEngine(["abcdef", "abcdef", "abc"], environment.template.tokenizer)
    stops: list[Any] = []
    generate = engine.generate
    engine.generate = lambda requests, sampling: stops.append(sampling.stop) or generate(requests, sampling)  # type: ignore
    environment.rollouts(engine, [question(environment.template)], 1, SAMPLING, step=1, purpose="train")
    assert [(each.message.content, each.finish_reason) for each in seen] == [
        ("ab", "length"),
        ("abc", "length"),
        ("ab", "stop"),
    ]
    assert stops == [(), (), ("c",)]


# ------------------------------------------------------------------------------------------------------------ the wire


def request_of(session: str, body: Any, **changes: Any) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.request(
        "POST", f"{session}/chat/completions", content=content, timeout=600, trust_env=False, **changes
    )


def test_the_endpoint_answers_nobody_who_does_not_know_the_session_or_its_name() -> None:
    found: dict[str, Any] = {}

    def run(row: Row, base_url: str) -> float:
        body = {"messages": row["messages"]}
        head, session, _ = base_url.rsplit("/", 2)
        found["wrong session"] = request_of(f"{head}/{session[:-1]}x/v1", body)
        found["no session"] = request_of(f"{head}/v1", body)
        found["foreign host"] = request_of(base_url, body, headers={"Host": f"evil.example:{head.rsplit(':')[-1]}"})
        found["other path"] = request_of(f"{base_url}/files", body)
        found["get"] = httpx2.get(f"{base_url}/chat/completions", trust_env=False)
        found["models"] = httpx2.get(f"{base_url}/models", trust_env=False).json()["data"][0]["id"]
        found["address"] = base_url
        found["right"] = request_of(base_url, body)
        return 1.0

    environment = agent(run)
    (rollout,) = play(environment, ["5"])
    assert {name: each.status_code for name, each in found.items() if not isinstance(each, str)} == {
        "wrong session": 404,
        "no session": 404,
        "foreign host": 400,
        "other path": 404,
        "get": 404,
        "right": 200,
    }
    assert found["models"] == "policy"
    assert len(found["address"].split("/")[3]) >= 40
    assert rollout.counts["agents/calls"] == 1
    assert request_of(found["address"], {"messages": []}).status_code == 404  # its episode has ended
    host, port = found["address"].split("/")[2].split(":")
    assert host == "127.0.0.1"
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2", int(port)))


def test_the_server_ends_with_its_environment_and_episodes_leave_no_descriptor() -> None:
    addresses: list[str] = []

    async def run(row: Row, base_url: str, http_client: Any) -> float:
        addresses.append(base_url)
        await http_client.post(f"{base_url}/chat/completions", json={"messages": row["messages"]})
        return 1.0

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    environment = agent(run)
    play(environment, lambda _: "a")
    before = descriptors()
    play(environment, lambda _: "a", n=20)
    wait_until(lambda: descriptors() <= before)
    del environment
    gc.collect()
    port = int(addresses[0].split("/")[2].split(":")[1])

    def refuses() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED

    wait_until(refuses)  # the collector may have run in the server's own thread, which then ends later


def test_a_server_may_be_collected_in_its_own_thread() -> None:
    outcome: Future[None] = Future()
    endpoint = Endpoint()

    def submit(call: ChatCall) -> "Future[ChatAnswer]":
        try:
            outcome.set_result(endpoint.close())
        except RuntimeError as error:
            outcome.set_exception(error)
        answer: Future[ChatAnswer] = Future()
        answer.cancel()
        return answer

    request_of(endpoint.open(submit), {"messages": [{"role": "user", "content": "?"}]})
    outcome.result()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the request is no JSON"),
        ([], "expected a JSON object"),
        ({}, "messages: expected a list"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "expected a role of system, developer, user"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "the last one is the assistant's"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "the model reads text alone"),
        ({"n": 2}, "n: one call has one answer"),
        ({"tool_choice": "required"}, 'tool_choice: expected "auto" or "none"'),
        ({"response_format": {"type": "json_object"}}, "response_format: answers are sampled freely"),
        ({"max_tokens": 0}, "max_tokens: expected a whole number"),
        ({"tools": [{"name": "a"}]}, "tools: expected a list"),
        ({"stop": [7]}, "stop: expected a text"),
    ],
)
def test_a_request_that_cannot_be_trained_is_refused_in_one_sentence(body: Any, message: str) -> None:
    answers: list[httpx2.Response] = []

    def run(row: Row, base_url: str) -> float:
        whole = {"messages": row["messages"], **body} if isinstance(body, dict) and body else body
        answers.append(request_of(base_url, whole))
        complete(base_url, messages=row["messages"])
        return 1.0

    (rollout,) = play(agent(run), lambda _: "a")
    (answer,) = answers
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert rollout.reward == 1.0


# --------------------------------------------------------------------------------------------------------- the rewards


@pytest.mark.parametrize(
    ("returned", "reward", "right"), [(0.25, 0.25, None), (True, 1.0, True), ({"reward": 2}, 2.0, None)]
)
def test_an_agent_returns_its_reward_in_several_forms(returned: Any, reward: float, right: bool | None) -> None:
    async def run(row: Row, **given: Any) -> Any:
        assert set(given) == set(GIVEN)
        await ask(row, given["base_url"], given["api_key"], given["http_client"])
        return returned

    (rollout,) = play(agent(run), ["5"])
    assert (rollout.reward, rollout.right) == (reward, right)
    assert rollout.reward_parts == {"environment": reward}


def test_an_agent_without_a_reward_is_scored_by_the_recipe_and_otherwise_not_at_all() -> None:
    async def run(row: Row, base_url: str, http_client: Any) -> None:
        await ask(row, base_url, "any", http_client)

    (rollout,) = play(agent(run, reward=load_reward("exact")), ["5"])
    assert (rollout.reward, rollout.status) == (1.0, "ok")
    for reward in (None, load_reward("environment")):
        (rollout,) = play(agent(run, reward=reward), ["5"])
        assert (rollout.reward, rollout.status) == (0.0, "not_applicable")


async def broken(row: Row, base_url: str, http_client: Any) -> Any:
    """Fail in the way that the prompt names, after a call."""
    way = row["prompt"]
    if way == "no call":
        return 1.0
    await ask(row, base_url, "any", http_client)
    if way == "raises":
        raise ValueError("out of ink")
    if way == "exits":
        raise SystemExit(3)
    return {"nan": float("nan"), "text": "good", "sound": 1.0}[way]


@pytest.mark.parametrize("way", ["no call", "raises", "exits", "nan", "text"])
def test_an_agent_that_fails_is_a_verdict_and_never_a_reward(way: str) -> None:
    environment = agent(broken)
    prompts = [question(environment.template, each, each) for each in (way, "sound", "sound")]
    failed, *others = play(environment, lambda _: "a", prompts=prompts)
    assert (failed.status, failed.reward) == ("failed", 0.0)
    assert [each.reward for each in others] == [1.0, 1.0]
    assert not Batch.from_groups([Group(prompt=prompts[0], rollouts=(failed,))]).loss_mask.any()


def test_an_asynchronous_agent_that_is_late_is_cancelled_and_has_timed_out() -> None:
    cancelled = threading.Semaphore(0)

    async def run(row: Row, base_url: str) -> float:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.release()
            raise
        return 1.0

    rollouts = play(agent(run, timeout=0.2, max_failed=1), [], n=2)
    assert [(each.status, each.reward) for each in rollouts] == [("timed_out", 0.0)] * 2
    assert all(cancelled.acquire(timeout=600) for _ in range(2))


def test_an_engine_that_fails_leaves_no_agent_waiting() -> None:
    refused = threading.Semaphore(0)

    def run(row: Row, base_url: str) -> float:
        try:
            complete(base_url, messages=row["messages"])
        except openai.NotFoundError:
            refused.release()
        return 1.0

    with pytest.raises(EngineError, match="the script has 0 answers"):
        play(agent(run), [], n=4)
    assert all(refused.acquire(timeout=600) for _ in range(4))


def test_at_most_so_many_agents_are_at_work_at_once() -> None:
    now, most, lock = 0, 0, threading.Lock()

    def run(row: Row, base_url: str) -> float:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        complete(base_url, messages=row["messages"])
        with lock:
            now -= 1
        return 1.0

    assert len(play(agent(run, at_once=2), lambda _: "a", n=6)) == 6
    assert most == 2


# ---------------------------------------------------------------------------------------------- exactly what is sampled


def test_32_agents_at_once_train_the_tokens_of_the_engine_whatever_the_order_in_which_they_call() -> None:
    model, _ = tiny_model()
    policy = Policy(model, tool_tokenizer(TEMPLATE))
    engine = BuiltinEngine(policy)
    answered: dict[str, list[tuple[int, ...]]] = {}

    async def run(row: Row, base_url: str, api_key: str, http_client: Any) -> float:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client)
        messages, wait = list(row["messages"]), random.Random(base_url)
        for turn in range(3):
            await asyncio.sleep(wait.random() * 0.1)
            answer = await client.chat.completions.create(
                model="any", messages=messages, tools=[ADD], extra_body={"return_token_ids": True}
            )
            answered.setdefault(base_url, []).append(tuple(answer.choices[0].token_ids))  # pyright: ignore
            messages += [answer.choices[0].message, {"role": "user", "content": f"{turn}."}]
        return 1.0

    environment = agent(run, tokenizer=policy.tokenizer, turn_tokens=8)
    prompts = [question(environment.template, f"{n}?", str(n)) for n in range(8)]

    def groups(prompts: list[Any]) -> dict[str, Group]:
        answered.clear()
        found = environment.rollouts(engine, prompts, 4, SamplingParams(max_tokens=120), step=1, purpose="train")
        return {group.prompt.id: group for group in found}

    first = groups(prompts)
    assert len(answered) == 32
    rollouts = [rollout for group in first.values() for rollout in group.rollouts]
    trained = [
        [tuple(token for _, token in run) for own, run in itertools.groupby(pairs, key=lambda pair: pair[0]) if own]
        for pairs in (zip(each.loss_mask, each.token_ids, strict=True) for each in rollouts)
    ]
    assert sorted(trained) == sorted(answered.values())
    assert len({each.token_ids for each in rollouts}) == 32
    assert sum(each.counts["agents/forks"] for each in rollouts) == 0
    read = sum(each.counts["engine/tokens_read"] for each in rollouts)
    prompts_of_rows = sum(len(group.prompt.token_ids) * len(group.rollouts) for group in first.values())
    assert read <= prompts_of_rows + sum(len(each.token_ids) for each in rollouts)  # each token once
    assert len(engine.batching.episode_cache) == 0
    again = groups(prompts[::-1])
    assert {name: [each.token_ids for each in group.rollouts] for name, group in first.items()} == {
        name: [each.token_ids for each in group.rollouts] for name, group in again.items()
    }
    batch = Batch.from_groups(list(first.values()))
    scored = token_scores(policy.forward, batch).logprobs
    assert (scored - batch.rollout_logprobs)[batch.loss_mask].abs().max() <= 1e-5
    assert int(batch.turn.max()) == 2


def test_calls_that_an_agent_makes_at_the_same_time_have_the_same_tokens_in_any_order() -> None:
    model, _ = tiny_model()
    policy = Policy(model, tool_tokenizer(TEMPLATE))
    found: list[dict[str, str]] = []

    def run_in(order: tuple[str, ...]) -> Any:
        async def run(row: Row, base_url: str, http_client: Any) -> float:
            client = openai.AsyncOpenAI(base_url=base_url, api_key="any", http_client=http_client)

            async def one(text: str) -> str:
                await asyncio.sleep(0.05 * order.index(text))
                answer = await client.chat.completions.create(
                    model="any", messages=[{"role": "user", "content": text}], max_tokens=8
                )
                return str(answer.choices[0].message.content)

            found.append(dict(zip(order, await asyncio.gather(*map(one, order)), strict=True)))
            return 1.0

        return run

    for order in (("a", "b", "a longer one"), ("a longer one", "b", "a")):
        environment = agent(run_in(order), tokenizer=policy.tokenizer)
        prompt = question(environment.template)
        environment.rollouts(BuiltinEngine(policy), [prompt], 1, SAMPLING, step=1, purpose="train")
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 3


def test_the_arguments_that_an_agent_is_given_are_those_that_a_recipe_may_not_set() -> None:
    assert tuple(GIVEN_IN_A_RECIPE) == GIVEN
