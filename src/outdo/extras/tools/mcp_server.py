"""Tools of servers that speak the Model Context Protocol (https://modelcontextprotocol.io).

A process of outdo connects to a server once, which starts it if it is a program, and all episodes share the connection.
If the server has ended or answers nothing at all, a call is made once more, alone over a connection of its own. If the
server is a program, this is another process of it, and no other call can be the cause of what it gives: a result does
not depend on the company of a call, and a server that was lost is replaced without any episode noticing.
"""

import asyncio
import atexit
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from time import monotonic
from typing import Any

from mcp import Client, MCPError
from mcp_types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents

from outdo.extras.episodes.tools import LateError, Tool, ToolError
from outdo.extras.tools.mcp_clients import Program, Service, is_loss
from outdo.utils.errors import MachineError, UserError, did_you_mean
from outdo.utils.event_loop import EventLoop
from outdo.utils.text import one_line

START = 120.0
"""Seconds for a connection to a server; a program may first install itself."""

ANSWER = 30.0
"""Seconds in which a server that works lists its tools, also while a call is late."""

MOST_TOOLS = 1000
"""Tools of a server: their schemas stand in every prompt. A server whose list has no end has more."""

MOST_LOST = 16
"""After so many calls in a row that each lost a connection of their own, the run ends."""

PAUSE = 1.0
"""Seconds between two attempts to reach a server at a URL."""

AT_ONCE = 4
"""Connections of single calls at the same time."""


class LostError(Exception):
    """The server has ended, or does not answer."""


class McpServer:
    """A server and its tools. `seconds` is the deadline of a call.

    Raises `UserError` if it cannot be started, or is not reached.
    """

    def __init__(self, server: Program | Service, seconds: float) -> None:
        self.name = server.name
        self.seconds = seconds
        self._server = server
        first = server.client()
        self._lost_in_a_row = 0
        self._closed = False
        self._loop = EventLoop()
        self._starting = asyncio.Lock()
        self._alone = asyncio.Semaphore(AT_ONCE)
        try:
            self._shared = self._loop.run(_Connection.open(first))
            self.schemas = self._loop.run(self._shared.schemas(), timeout=START)
        except (LostError, MCPError, TimeoutError, ValueError) as error:  # of pydantic, for what no server may say
            self.close()
            raise UserError([f"the MCP server {self.name} cannot be used: {_reason(error)}"]) from error

    def tools(self, names: Sequence[str] | None = None) -> list[Tool]:
        """Return the tools of the server, or those of them that are named. Raises `UserError` if it has no such one."""
        offered = {schema["function"]["name"]: schema for schema in self.schemas}
        names = list(offered) if names is None else names
        has = f"; it has {', '.join(offered) or 'none'}"
        if unknown := [name for name in names if name not in offered]:
            hints = [did_you_mean(name, list(offered)) or has for name in unknown]
            raise UserError(
                [
                    f"the MCP server {self.name} has no tool {name}{hint}"
                    for name, hint in zip(unknown, hints, strict=True)
                ]
            )
        if not names:
            raise UserError([f"the MCP server {self.name} has no tools"])
        # The shared connection and another one may be opened and give no answer.
        grace = 2 * (START + ANSWER + self._server.patience) + self.seconds
        return [Tool(self._caller(name), offered[name], grace=grace) for name in names]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text that a tool gives.

        Raises:
            ToolError: the server says that the call failed, or the call alone ends a server, or its connection.
            LateError: the call had no result within its deadline.
            MachineError: the server cannot be started or reached any more.
        """
        try:
            return self._loop.run(self._call(name, arguments))
        except LostError as error:
            raise MachineError(f"the MCP server {self.name} was lost and cannot be used again: {error}") from error

    def close(self) -> None:
        """End the connection, and a program with it."""
        self._closed = True
        shared = getattr(self, "_shared", None)
        if shared is not None:
            self._loop.run(shared.end())
        self._loop.close()

    def _caller(self, name: str) -> Callable[..., str]:
        def call(**arguments: Any) -> str:
            return self.call(name, arguments)

        return call

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        connection = await self._running()
        try:
            result = await connection.call(name, arguments, self.seconds)
        except LostError:
            if self._closed:
                raise
            result = await self._call_alone(name, arguments)
        self._lost_in_a_row = 0
        return _text_of(result)

    async def _running(self) -> "_Connection":
        """Return the connection that the episodes share; one that was lost is replaced."""
        async with self._starting:
            if self._shared.lost:
                await self._shared.end()
                self._shared = await self._open()
            return self._shared

    async def _open(self) -> "_Connection":
        """Return a new connection in place of one that was lost. Raises `LostError` if there is none in time."""
        until = monotonic() + self._server.patience
        while True:
            try:
                return await _Connection.open(self._server.client())
            except LostError:
                if monotonic() >= until:
                    raise
                await asyncio.sleep(PAUSE)

    async def _call_alone(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Make a call over a connection of its own."""
        async with self._alone:
            connection = await self._open()
            try:
                return await connection.call(name, arguments, self.seconds)
            except LostError:
                self._lost_in_a_row += 1
                if self._lost_in_a_row >= MOST_LOST:
                    raise MachineError(
                        f"the MCP server {self.name} ended, or did not answer, in each of the last {MOST_LOST} calls"
                    ) from None
                raise ToolError("raised", "the server ended, or hung, during this call") from None
            finally:
                await connection.end()


class _Connection:
    """One process of a server, or one session with a server at a URL, from its start to its end."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lost = False
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, client: Client) -> "_Connection":
        """Connect. Raises `LostError` if the server does not get ready."""
        connection = cls(client)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection._task = asyncio.create_task(connection._live(ready))
        try:
            await asyncio.wait_for(ready, START)
        except TimeoutError:
            connection._task.cancel()
            raise LostError(f"it was not ready after {START:g} s") from None
        except Exception as error:
            raise LostError(_reason(error)) from error
        return connection

    async def schemas(self) -> list[dict[str, Any]]:
        """Return the schemas of the tools, as chat templates read them."""
        page = await self.client.list_tools()
        tools = list(page.tools)
        while page.next_cursor is not None:
            page = await self.client.list_tools(cursor=page.next_cursor)
            tools += page.tools
            if len(tools) > MOST_TOOLS or not page.tools:
                raise LostError(f"its list of tools has no end: {len(tools)} so far")
        return [_schema(tool.name, tool.description or tool.title or "", tool.input_schema) for tool in tools]

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallToolResult:
        """Call a tool. Raises `LostError` if the server has ended or hangs, else `LateError` at the deadline."""
        try:
            return await asyncio.wait_for(self.client.call_tool(name, dict(arguments)), seconds)
        except MCPError as error:
            if not is_loss(error):
                raise ToolError("raised", str(error)) from error
        except ValueError as error:  # of pydantic
            raise ToolError("raised", f"the server sent what is not a result: {one_line(str(error))}") from error
        except TimeoutError:
            if await self._answers():
                raise LateError(f"{name} had no result after {seconds:g} s") from None
        self.lost = True
        raise LostError("it ended, or does not answer")

    async def end(self) -> None:
        """End the connection, and a program with it, and wait until it has ended."""
        self.lost = True
        self._ending.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _live(self, ready: "asyncio.Future[None]") -> None:
        # The client has to be closed by the task that opened it.
        try:
            async with self.client:
                ready.set_result(None)
                await self._ending.wait()
        except Exception as error:
            if not ready.done():  # else the connection was to end, and has ended in one way or another
                ready.set_exception(error)

    async def _answers(self) -> bool:
        try:
            await asyncio.wait_for(self.client.list_tools(), ANSWER)
        except MCPError as error:
            return not is_loss(error)
        except TimeoutError:
            return False
        return True


@cache
def open_server(server: Program | Service, seconds: float) -> McpServer:
    """Return a server, connected until this process ends. Raises `UserError` if it cannot be used."""
    opened = McpServer(server, seconds)
    atexit.register(opened.close)
    return opened


def _schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    with_properties = {"type": "object", "properties": {}, **parameters}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": with_properties},
    }


def _text_of(result: CallToolResult) -> str:
    """Return the text of a result. Raises `ToolError` if the server says that the call failed."""
    text = "\n".join(_texts(result))
    if result.is_error:
        raise ToolError("raised", text)
    return text


def _texts(result: CallToolResult) -> Iterator[str]:
    for content in result.content:
        if isinstance(content, TextContent):
            yield content.text
        elif isinstance(content, EmbeddedResource) and isinstance(content.resource, TextResourceContents):
            yield content.resource.text
        else:
            yield f"[{content.type}: not shown]"
    if not result.content and result.structured_content is not None:
        yield json.dumps(result.structured_content, ensure_ascii=False)


def _reason(error: BaseException) -> str:
    """Return the message of an error, or of the first one in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return one_line(str(error)) or type(error).__name__
