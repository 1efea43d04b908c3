"""Asks an OpenAI-compatible endpoint: many questions at once, within limits, again after faults, each request once."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import httpx2

from outdo.extras.judge.limits import JudgeLimits, PerMinute
from outdo.extras.judge.questions import JudgeQuestion
from outdo.extras.judge.replies import JudgeReply, Replies, key_of
from outdo.rewards.failures import BUSY_OR_BROKEN
from outdo.rewards.types import Status
from outdo.utils.event_loop import EventLoop
from outdo.utils.http import HttpReply, ReplyError, fetch, http_client
from outdo.utils.secrets import redact
from outdo.utils.text import one_line

Verdict = TypeVar("Verdict")

REFUSED = frozenset({401, 402, 403, 404})
"""HTTP statuses after which no further request of a call is sent: all of them would be refused."""
LONGEST_PAUSE = 60.0
"""Seconds. The pauses before a request is sent again begin at one second and double."""


class NoVerdictError(Exception):
    """There is no verdict; `status` is that of the reward."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ChatClient:
    """Asks the model `model` at the endpoint `url`, such as `https://api.openai.com/v1`.

    `request` has the other fields of each request, such as the temperature. `cache` is the file of replies.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        api_key: str = "",
        request: Mapping[str, Any],
        limits: JudgeLimits,
        cache: Path | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self.api_key = api_key
        self.request = request
        self.limits = limits
        self.replies = Replies(cache)
        self.counts: Counter[str] = Counter()  # requests, cached, repeated, input_tokens, output_tokens
        self._loop: EventLoop | None = None
        self._requests, self._tokens = PerMinute(limits.requests_per_minute), PerMinute(limits.tokens_per_minute)

    def ask_all(
        self, questions: Sequence[JudgeQuestion[Verdict]], *, deadline: float = math.inf
    ) -> list[Verdict | NoVerdictError]:
        """Return the verdict on each question, in order, or why there is none.

        Questions with the same messages are asked once. What has no verdict at `deadline`, in seconds of `monotonic`,
        has timed out.
        """
        self._loop = self._loop or EventLoop()
        return self._loop.run(self._ask_all(questions, deadline))

    def close(self) -> None:
        """End the thread of the requests."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    async def _ask_all(
        self, questions: Sequence[JudgeQuestion[Verdict]], deadline: float
    ) -> list[Verdict | NoVerdictError]:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        keys = [self._key(question.messages) for question in questions]
        async with http_client(self.limits.timeout, headers) as http:
            call = _Call(self, http)
            tasks: dict[str, asyncio.Task[Verdict]] = {}
            for key, question in zip(keys, questions, strict=True):
                if key not in tasks:
                    tasks[key] = asyncio.create_task(call.verdict(question))
            seconds = None if deadline == math.inf else max(deadline - monotonic(), 0.0)
            if tasks:
                await asyncio.wait(tasks.values(), timeout=seconds)
            late = [task for task in tasks.values() if task.cancel()]
            await asyncio.gather(*late, return_exceptions=True)
        return [self._result(tasks[key]) for key in keys]

    def _result(self, task: "asyncio.Task[Verdict]") -> Verdict | NoVerdictError:
        if task.cancelled():
            return NoVerdictError(Status.timed_out, "the time for the rewards of this step was used up")
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, NoVerdictError):
            return NoVerdictError(error.status, redact(str(error), [self.api_key]))
        raise error

    def body(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Return the JSON object of a request."""
        return {"model": self.model, "messages": list(messages), **self.request}

    def _key(self, messages: Sequence[Mapping[str, str]]) -> str:
        return key_of(self.url, self.body(messages))

    async def wait(self) -> None:
        """Wait until the limits allow another request, and count it."""
        await self._tokens.wait()
        await self._requests.wait()
        self._requests.add(1)

    def count(self, reply: JudgeReply) -> None:
        """Count the tokens of a reply."""
        self.counts.update(requests=1, input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
        self._tokens.add(reply.input_tokens + reply.output_tokens)


class _Call:
    """The requests of one call of `ask_all`."""

    def __init__(self, client: ChatClient, http: httpx2.AsyncClient) -> None:
        self.client = client
        self.http = http
        self.places = asyncio.Semaphore(client.limits.at_once)
        self.refused: NoVerdictError | None = None

    async def verdict(self, question: JudgeQuestion[Verdict]) -> Verdict:
        """Return the verdict on a question; a judge whose reply has none is asked for it once more."""
        reply = await self._reply(question.messages)
        verdict = question.read(reply.text)
        if verdict is None:
            reminder = f"Your reply has to end with one line: {question.expected}"
            said = [{"role": "assistant", "content": reply.text}, {"role": "user", "content": reminder}]
            reply = await self._reply([*question.messages, *said])
            verdict = question.read(reply.text)
        if verdict is not None:
            return verdict
        raise NoVerdictError(
            Status.failed, f"the judge gave no verdict; its last reply: {one_line(reply.text) or 'empty'}"
        )

    async def _reply(self, messages: Sequence[Mapping[str, str]]) -> JudgeReply:
        body = self.client.body(messages)
        key = key_of(self.client.url, body)
        known = self.client.replies.get(key)
        if known is not None:
            self.client.counts["cached"] += 1
            return known
        async with self.places:
            reply = await self._repeated(body, spread=int(key[:4], 16) / 2**16)
        self.client.count(reply)
        self.client.replies.add(key, reply)
        return reply

    async def _repeated(self, body: Mapping[str, Any], *, spread: float) -> JudgeReply:
        """Send a request until it is answered. `spread`, 0 to 1, keeps requests apart that failed together."""
        for attempts_left in range(self.client.limits.retries, -1, -1):
            if self.refused is not None:
                raise self.refused
            await self.client.wait()
            reply, fault = await self._sent(body)
            if fault is None:
                return _parse(reply)
            if not attempts_left or fault.status is Status.failed:
                raise fault
            self.client.counts["repeated"] += 1
            attempt = self.client.limits.retries - attempts_left
            await asyncio.sleep(_pause(reply, attempt) * (1 + spread))
        raise AssertionError("the last attempt returns or raises")

    async def _sent(self, body: Mapping[str, Any]) -> tuple[HttpReply, NoVerdictError | None]:
        """Send a request once; return its reply, empty if there is none, and what is wrong with it."""
        url, seconds = self.client.url, self.client.limits.timeout
        content = json.dumps(body, ensure_ascii=False).encode(errors="replace")
        nothing = HttpReply(0, {}, b"")
        try:
            reply = await fetch(self.http, "POST", f"{url}/chat/completions", content=content, seconds=seconds)
        except (TimeoutError, httpx2.TimeoutException):
            return nothing, NoVerdictError(Status.timed_out, f"no reply within {seconds:g} s")
        except httpx2.TransportError as error:
            return nothing, NoVerdictError(Status.unavailable, f"{url}: {type(error).__name__}: {error}")
        except ReplyError as error:
            return nothing, NoVerdictError(Status.failed, f"{url}: {error}")
        return reply, None if 200 <= reply.status < 300 else self._fault(reply)

    def _fault(self, reply: HttpReply) -> NoVerdictError:
        text = f"{self.client.url}: HTTP {reply.status}: {one_line(reply.text)}"
        if reply.status in BUSY_OR_BROKEN:
            return NoVerdictError(Status.unavailable, text)
        fault = NoVerdictError(Status.failed, text)
        if reply.status in REFUSED:
            self.refused = fault
        return fault


def _parse(reply: HttpReply) -> JudgeReply:
    """Return the reply in a chat completion. A reply without text is empty; without usage it has no tokens."""
    try:
        answered = reply.json()
        text = answered["choices"][0]["message"].get("content") or ""
        usage = answered.get("usage") or {}
        counted = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
        input_tokens, output_tokens = counted
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError):
        said = one_line(reply.text)
        raise NoVerdictError(Status.failed, f"the endpoint did not return a chat completion: {said}") from None
    return JudgeReply(text=str(text), input_tokens=input_tokens, output_tokens=output_tokens)


def _pause(reply: HttpReply, attempt: int) -> float:
    """Return the seconds before a request is sent again: what the endpoint asks for, or else twice those before."""
    asked = reply.retry_after
    return min(2.0**attempt if asked is None else asked, LONGEST_PAUSE)
