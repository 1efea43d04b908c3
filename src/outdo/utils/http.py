"""Requests over HTTP to servers that may be slow, broken or hostile: a reply has a longest time and a largest size.

The timeouts of HTTP libraries bound the pause between two bytes, and not the whole reply; and a compressed reply of a
few kilobytes may have gigabytes. Redirects are not followed: a key is for one host.
"""

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx2
from pydantic_core import from_json

from outdo.utils.errors import UserError
from outdo.utils.event_loop import EventLoop

MOST_BYTES = 2**24
"""Bytes of a reply, decompressed."""

GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS

UNREACHED = (TimeoutError, httpx2.TransportError)
"""What is raised if there is no reply: none in time, or no connection."""


class ReplyError(Exception):
    """A reply that cannot be read: it is too long, or compressed in a way that was not asked for."""


class LongReplyError(ReplyError):
    """A reply with more bytes than are taken."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The content as text, whatever it is."""
        return self.content.decode(errors="replace")

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server asks for another request."""
        asked = self.headers.get("Retry-After", "")
        return float(asked) if re.fullmatch(r"\d+(\.\d*)?", asked, re.ASCII) else None

    def json(self) -> Any:
        """Return the value in the content. Raises `ValueError` also for deep nesting, lone surrogates and NaN."""
        return from_json(self.content, allow_inf_nan=False)


def http_client(seconds: float, headers: Mapping[str, str] | None = None) -> httpx2.AsyncClient:
    """Return a client for `fetch`. The certificates are read once: that takes longer than a request."""
    return httpx2.AsyncClient(timeout=seconds, headers=headers, verify=_certificates())


@cache
def _certificates() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


async def fetch(
    http: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float,
    most: int = MOST_BYTES,
) -> HttpReply:
    """Send a request; return its reply, whatever its status.

    Raises:
        TimeoutError: it is not whole after `seconds`.
        LongReplyError, ReplyError: it has more than `most` bytes; it cannot be decompressed.
        httpx2.TransportError: the connection failed.
        UserError: `url` is no URL.
    """
    sent = {"Accept-Encoding": "gzip, deflate", **({"Content-Type": "application/json"} if content else {})}
    try:
        async with asyncio.timeout(seconds):
            async with http.stream(method, url, content=content, headers={**sent, **(headers or {})}) as response:
                body = await _read(response.aiter_raw(), response.headers.get("Content-Encoding", ""), most)
    except httpx2.InvalidURL as error:
        raise UserError([f"{url}: expected a URL such as http://10.0.0.5:8000/v1 ({error})"]) from None
    return HttpReply(response.status_code, response.headers, body)


async def _read(parts: AsyncIterator[bytes], encoding: str, most: int) -> bytes:
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise ReplyError(f"the reply is compressed by {encoding}, which was not asked for")
    decoder = zlib.decompressobj(GZIP_OR_ZLIB) if encoding not in ("", "identity") else None
    body = bytearray()
    async for part in parts:
        try:
            body += decoder.decompress(part, most + 1 - len(body)) if decoder else part
        except zlib.error as error:
            raise ReplyError(f"the reply cannot be decompressed: {error}") from error
        if len(body) > most:
            raise LongReplyError(f"the reply has more than {most} bytes")
    return bytes(body)


def send(
    method: str,
    url: str,
    *,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float,
    most: int = MOST_BYTES,
) -> HttpReply:
    """Send a request and wait for its reply, as `fetch` does, from any thread."""

    async def once() -> HttpReply:
        async with http_client(seconds) as http:
            return await fetch(http, method, url, content=content, headers=headers, seconds=seconds, most=most)

    return _loop().run(once())


@cache
def _loop() -> EventLoop:
    return EventLoop()
