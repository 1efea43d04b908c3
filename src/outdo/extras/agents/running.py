"""An agent at work: the user's function in a thread of its own, with an HTTP client and the address of its session."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import httpx2

from outdo.extras.episodes.episode import as_exception, own_copy
from outdo.types import Prompt

GIVEN = ("base_url", "api_key", "http_client", "model")
"""What an agent is given besides its row, each if its function has a parameter of that name."""

AgentFunction = Callable[..., Any]
"""`run(row, *, base_url, api_key, http_client)`, plain or asynchronous; it returns the reward of the episode."""


def row_of(prompt: Prompt) -> dict[str, Any]:
    """Return the row that an agent works on: the columns of the data, with `prompt`, `messages` and `answer`.

    The agent may change all of it.
    """
    messages = [{"role": "user", "content": prompt.text}] if isinstance(prompt.text, str) else prompt.text
    row = {"messages": messages, **prompt.columns, "prompt": prompt.text, "answer": prompt.answer}
    return {name: own_copy(value) for name, value in row.items()}  # `messages` and `prompt` are two lists


class RunningAgent:
    """One call of `function`. When it has ended, `outcome` has what it returned or raised, and `ended` is called.

    `client_timeout` is the longest time of one request of the HTTP client, in seconds.
    """

    def __init__(
        self,
        function: AgentFunction,
        row: Mapping[str, Any],
        base_url: str,
        ended: Callable[[], None],
        *,
        client_timeout: float,
    ) -> None:
        self.outcome: Future[Any] = Future()
        self._function = function
        self._row = row
        self._base_url = base_url
        self._ended = ended
        self._timeout = client_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        threading.Thread(target=self._work, daemon=True, name="outdo agent").start()

    def cancel(self) -> None:
        """Cancel an asynchronous function. A plain one ends at its next call, whose session is closed."""
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:  # it has ended meanwhile
                return

    def _work(self) -> None:
        try:
            self.outcome.set_result(self._result())
        except BaseException as error:
            self.outcome.set_exception(as_exception(error))
        finally:
            self._ended()

    def _result(self) -> Any:
        # Variables such as HTTP_PROXY would lead away from this machine.
        if is_async(self._function):
            return asyncio.run(self._run_async())
        with httpx2.Client(trust_env=False, timeout=self._timeout) as client:
            result = self._call(client)
        return asyncio.run(_await(result)) if inspect.isawaitable(result) else result

    async def _run_async(self) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with httpx2.AsyncClient(trust_env=False, timeout=self._timeout) as client:
            return await self._call(client)

    def _call(self, client: "httpx2.Client | httpx2.AsyncClient") -> Any:
        arguments = dict(zip(GIVEN, (self._base_url, "outdo", client, "policy"), strict=True))
        parameters = inspect.signature(self._function).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            names = {parameter.name for parameter in parameters}
            arguments = {name: value for name, value in arguments.items() if name in names}
        return self._function(dict(self._row), **arguments)


def is_async(function: AgentFunction) -> bool:
    """Return whether calling the function returns a coroutine."""
    while isinstance(function, partial):
        function = function.func
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


async def _await(result: Awaitable[Any]) -> Any:
    return await result
