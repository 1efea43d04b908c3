"""Test that no reply of a judge's endpoint ends a run, fills its memory, or is taken for a reward."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from time import sleep
from typing import Any

import pytest
from hostile_server import OK, hostile_server, whole
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outdo.rewards import RewardInput, Status, load_reward

QUESTION = RewardInput(prompt="1+1?", completion="2", answer="2")
BOMB = gzip.compress(b'{"choices": [{"message": {"content": "' + b" " * 2**26 + b'Score: 10"}}]}')


def ask(url: str, *, times: int = 1, timeout: float = 600.0) -> list[Any]:
    limits = {"timeout": timeout, "retries": 0}
    reward = load_reward({"name": "judge", "url": url, "model": "m", "rubric": "Is it right?", "limits": limits})
    try:
        return [reward([QUESTION])[0] for _ in range(times)]
    finally:
        reward.close()  # type: ignore[attr-defined]


def dripping() -> Iterator[bytes]:
    yield OK + b"Transfer-Encoding: chunked\r\n\r\n"
    for part in repeat(b"1\r\n \r\n"):
        sleep(0.05)
        yield part


@pytest.mark.parametrize(
    ("reply", "timeout", "status", "reason"),
    [
        (lambda: whole(BOMB, b"Content-Encoding: gzip\r\n"), 600, Status.failed, "the reply has more than"),
        (dripping, 1, Status.timed_out, "no reply within 1 s"),
        (lambda: whole(b"[" * 200_000), 600, Status.failed, "did not return a chat completion"),
        (lambda: whole(b'{"choices": [{"message": {"content": "\\ud800"}}]}'), 600, Status.failed, "chat completion"),
        (lambda: [OK[:20]], 600, Status.unavailable, "RemoteProtocolError"),
    ],
    ids=["bomb", "drip", "deep", "surrogate", "cut off"],
)
def test_a_reply_that_cannot_be_read_is_a_failure_with_its_reason(
    reply: Callable[[], Iterable[bytes]], timeout: float, status: Status, reason: str
) -> None:
    with hostile_server(reply) as url:
        (output,) = ask(url, timeout=timeout)
    assert output.status is status
    assert reason in output.reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["Score: 3", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
COMPLETION = st.fixed_dictionaries(
    {
        "choices": JSON | st.lists(JSON | st.fixed_dictionaries({"message": st.fixed_dictionaries({"content": JSON})})),
        "usage": JSON | st.fixed_dictionaries({"prompt_tokens": JSON, "completion_tokens": JSON}),
    }
)


@pytest.mark.parametrize("examples", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_whatever_an_endpoint_sends_there_is_an_output(examples: int) -> None:
    sent: list[Iterable[bytes]] = [[]]
    limits = {"timeout": 600.0, "retries": 0}
    with hostile_server(lambda: sent[0]) as url:

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.binary(max_size=64).map(lambda raw: [raw]) | st.binary(max_size=64).map(whole) | BODIES)
        def fuzz(reply: Iterable[bytes]) -> None:
            sent[0] = reply
            output = reward([QUESTION])[0]
            assert output.status is not Status.ok or 0.0 <= output.value <= 1.0
            assert output.status is Status.ok or output.reason

        reward = load_reward({"name": "judge", "url": url, "model": "m", "rubric": "Right?", "limits": limits})
        try:
            fuzz()
        finally:
            reward.close()  # type: ignore[attr-defined]


BODIES = (JSON | COMPLETION).map(lambda value: whole(json.dumps(value).encode()))
