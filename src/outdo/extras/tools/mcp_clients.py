"""How a server of the Model Context Protocol is reached: a program that outdo starts, or a URL."""

import logging
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from anyio.streams.text import TextReceiveStream
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import stdio
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from outdo.utils.child import ending_with_this_process
from outdo.utils.errors import UserError

READ = 86400.0
"""Seconds without a byte after which a response is given up; calls have deadlines of their own."""

CONNECT = 30.0
"""Seconds in which a server at a URL takes a connection."""

PATIENCE = 60.0
"""Seconds in which a server at a URL that was lost has to be there again."""

MOST_BYTES = 2**26
"""Bytes of one response of a server at a URL, and characters of one line of a program."""

FAILED_RESPONSES = ("Session terminated", "Server returned an error response")
"""What the library says for a status of HTTP: the server knows the session no more, or cannot answer at all."""

for transport in ("streamable_http", "stdio"):  # outdo says what failed, once
    logging.getLogger(f"mcp.client.{transport}").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Program:
    """A server that speaks over stdin and stdout. `environment` are names of variables that it gets."""

    command: tuple[str, ...]
    environment: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What messages call it."""
        return " ".join(self.command)

    @property
    def patience(self) -> float:
        """Seconds in which a lost connection may be opened again and again: a program that does not start is broken."""
        return 0.0

    def client(self) -> Client:
        """Return a client, which starts the program. Raises `UserError` if there is no such program or variable."""
        mistakes = [f"the MCP server {self.command[0]}: no such program"] * (shutil.which(self.command[0]) is None)
        mistakes += [
            f"the MCP server {self.command[0]}: the environment variable {name} is not set"
            for name in self.environment
            if name not in os.environ
        ]
        if mistakes:
            raise UserError(mistakes)
        first, *others = ending_with_this_process(self.command)
        variables = {name: os.environ[name] for name in self.environment}
        parameters = StdioServerParameters(command=first, args=others, env=variables, encoding_error_handler="replace")
        return Client(parameters, cache=None)


class _BoundedLines(TextReceiveStream):
    """Gives up what a program prints at a line that is too long: the library keeps a line in memory until it ends."""

    _line = 0

    async def receive(self) -> str:
        """Return what comes next."""
        text = await super().receive()
        _, ended, rest = text.rpartition("\n")
        self._line = len(rest) if ended else self._line + len(rest)
        if self._line > MOST_BYTES:
            await self.aclose()
            raise ValueError(f"it printed a line of more than {MOST_BYTES} characters")
        return text


stdio.TextReceiveStream = _BoundedLines


@dataclass(frozen=True, slots=True)
class Service:
    """A server at a URL, which speaks over streamable HTTP. `headers` are sent with every request."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may be secret

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.url

    @property
    def patience(self) -> float:
        """Seconds in which a lost connection may be opened again and again."""
        return PATIENCE

    def client(self) -> Client:
        """Return a client."""
        return Client(_over_http(self.url, dict(self.headers)), cache=None)


@asynccontextmanager
async def _over_http(url: str, headers: Mapping[str, str]) -> AsyncGenerator[Any, None]:
    timeout, sent_headers = httpx2.Timeout(CONNECT, read=READ), {**headers, "Accept-Encoding": "identity"}
    async with (
        httpx2.AsyncClient(headers=sent_headers, timeout=timeout, transport=_BoundedTransport()) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Gives up a response to a call that is too long, or compressed: nobody knows its size before it is in memory."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        response = await super().handle_async_request(request)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx2.ReadError("the response is compressed, which was not asked for")
        if request.method == "POST":  # what answers a GET is a stream of events, which has no end
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self.stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for part in self.stream:
            left -= len(part)
            if left < 0:
                raise httpx2.ReadError(f"the response has more than {MOST_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self.stream.aclose()


def is_loss(error: MCPError) -> bool:
    """Return whether an error means that the server was not reached, and not that it refused a call."""
    return error.code == CONNECTION_CLOSED or str(error) in FAILED_RESPONSES
