"""Test that no call of an agent ends the run: what cannot be answered is refused with one sentence."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from agent_cases import agent, play
from episode_cases import question
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outdo.extras.agents.endpoint import LONGEST_REQUEST
from outdo.rollouts.engines.sampling import SamplingParams

Row = dict[str, Any]

SHORT = SamplingParams(max_tokens=100_000)
USER = {"role": "user", "content": "a"}
DEEP = '{"messages": ' + "[" * 100_000


CLIENT = httpx2.Client(timeout=600, trust_env=False)


@pytest.fixture(scope="module", autouse=True)
def closed_client() -> Iterator[None]:
    yield
    CLIENT.close()


def post(base_url: str, content: Any) -> httpx2.Response:
    if not isinstance(content, bytes | str):
        content = json.dumps(content)  # which writes a lone surrogate as an escape
    content = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    return CLIENT.post(f"{base_url}/chat/completions", content=content)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"messages": [{"role": "user", "content": "a\ud800b"}]}, 400, "the request is no JSON"),
        ({"messages": [USER], "stop": "\ud800"}, 400, "the request is no JSON"),
        ({"messages": [USER], "model": "\udfff"}, 400, "the request is no JSON"),
        (DEEP, 400, "the request is no JSON: recursion limit exceeded"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, 400, "expected a role of system"),
        ({"messages": [USER], "stop": 5}, 400, "stop: expected a text or a list of texts"),
        ({"messages": [USER], "stop": ["a"] * 17}, 400, "stop: expected at most 16 texts, found 17"),
        ({"messages": [{"role": "tool", "content": "5", "tool_call_id": ["x"]}]}, 400, "tool_call_id: expected a text"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}, USER]}, 400, "tool_calls: expected a list of calls"),
        ({"messages": [USER], "tools": [{"function": {"name": 7}}]}, 400, "tools: expected a list"),
        (b" " * (LONGEST_REQUEST + 1), 413, f"the request has more than {LONGEST_REQUEST} bytes"),
    ],
)
def test_a_call_that_nobody_can_answer_is_refused_in_one_sentence(body: Any, status: int, message: str) -> None:
    answers: list[httpx2.Response] = []

    def run(row: Row, base_url: str) -> float:
        answers.extend(post(base_url, each) for each in (body, {"messages": [USER]}))
        return 1.0

    (rollout,) = play(agent(run), lambda _: "a")
    refused, answered = answers
    assert refused.status_code == status
    assert message in refused.json()["error"]["message"]
    assert answered.status_code == 200
    assert rollout.reward == 1.0


def test_a_call_at_which_the_tokenizer_fails_is_refused_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(row: Row, base_url: str) -> float:
        answers.append(post(base_url, {"messages": [USER]}))
        return 1.0

    answers: list[httpx2.Response] = []
    environment = agent(run, max_failed=1.0)
    monkeypatch.setattr(environment, "_template_of", lambda tools: [].index(tools))
    (rollout,) = play(environment, lambda _: "a")
    assert answers[0].status_code == 400
    assert "this call cannot be answered: ValueError" in answers[0].json()["error"]["message"]
    assert rollout.status == "failed"  # no call was answered


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROLE = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
FUNCTION = st.fixed_dictionaries({"name": st.text() | JSON}, optional={"arguments": JSON | st.text()})
TOOL_CALL = JSON | st.fixed_dictionaries({"function": FUNCTION | JSON}, optional={"id": st.text() | JSON})
MESSAGE = JSON | st.fixed_dictionaries(
    {"role": ROLE | JSON},
    optional={
        "content": st.text() | JSON | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()})),
        "tool_calls": st.lists(TOOL_CALL, max_size=3) | JSON,
        "tool_call_id": st.text() | JSON,
        "name": st.text() | JSON,
        "reasoning_content": st.text() | JSON,
    },
)
OPTIONS = ("stop", "n", "max_tokens", "tool_choice", "response_format", "stream", "stream_options", "logprobs", "model")
ANY_BODY = JSON | st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=4) | JSON},
    optional={"tools": st.lists(st.fixed_dictionaries({"function": FUNCTION})) | JSON, **dict.fromkeys(OPTIONS, JSON)},
)
READ_BODY = st.fixed_dictionaries(  # whose options are refused by nothing before its messages are read
    {"messages": st.lists(MESSAGE, min_size=1, max_size=4)}, optional={"stop": JSON}
)
WHOLE_BODY = st.fixed_dictionaries(
    {
        "messages": st.lists(st.fixed_dictionaries({"role": ROLE, "content": st.text()}), max_size=4).map(
            lambda messages: [*messages, USER]
        )
    },
    optional={
        "tools": st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.text()})}), max_size=2),
        "stop": st.lists(st.text(min_size=1), max_size=3),
        "temperature": JSON,
        "logprobs": JSON,
        "return_token_ids": JSON,
    },
)


@pytest.mark.parametrize("examples", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_whatever_is_posted_has_an_answer_or_a_refusal_and_no_traceback(examples: int, capfd: Any) -> None:
    def run(row: Row, base_url: str) -> float:
        @settings(max_examples=min(examples, 500), deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.binary(max_size=64) | ANY_BODY | READ_BODY | WHOLE_BODY)
        def fuzz(body: Any) -> None:
            answer = post(base_url, body)
            seen.append(answer.status_code)
            assert answer.status_code in (200, 400), (answer.status_code, answer.text)
            if answer.status_code == 400:
                assert answer.json()["error"]["message"]

        fuzz()
        post(base_url, {"messages": [USER]})
        return 1.0

    seen: list[int] = []
    environment = agent(run, calls=10**9, at_once=1)
    prompts = [question(environment.template, f"question {place}") for place in range(max(1, examples // 500))]
    rollouts = play(environment, lambda _: "a", prompts=prompts, sampling=SHORT)
    assert {each.reward for each in rollouts} == {1.0}, rollouts[0]
    assert seen.count(200) > len(seen) // 10  # the fuzz reaches what is behind the reading of a call
    assert "Traceback" not in capfd.readouterr().err
