"""Test that a reply of any server takes bounded time and memory."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from time import sleep

import pytest
from hostile_server import OK, hostile_server, whole

from outdo.utils.errors import UserError
from outdo.utils.http import LongReplyError, ReplyError, send

CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(bytes(2**28))


def slowly(head: bytes, part: bytes) -> Iterator[bytes]:
    yield head
    for each in repeat(part):
        sleep(0.05)
        yield each


def endless() -> Iterator[bytes]:
    yield CHUNKED
    yield from repeat(b"8000\r\n" + bytes(2**15) + b"\r\n")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (lambda: whole(BOMB, b"Content-Encoding: gzip\r\n"), LongReplyError),
        (endless, LongReplyError),
        (lambda: whole(b"abc", b"Content-Encoding: br\r\n"), ReplyError),
        (lambda: whole(b"abc", b"Content-Encoding: gzip\r\n"), ReplyError),
    ],
    ids=["bomb", "endless", "another compression", "no compression"],
)
def test_a_reply_that_is_too_long_is_given_up_within_bounded_memory(
    reply: Callable[[], Iterable[bytes]], error: type[Exception]
) -> None:
    with hostile_server(reply) as url:
        tracemalloc.start()
        with pytest.raises(error):
            send("GET", url, seconds=600, most=2**20)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize(
    "reply",
    [lambda: slowly(CHUNKED, b"1\r\n \r\n"), lambda: slowly(OK, b"X-A: b\r\n"), lambda: slowly(b"HTTP/1.1 200 ", b"O")],
    ids=["body", "headers", "status"],
)
def test_a_reply_that_is_never_whole_has_timed_out_although_bytes_keep_coming(
    reply: Callable[[], Iterable[bytes]],
) -> None:
    with hostile_server(reply) as url, pytest.raises(TimeoutError):
        send("GET", url, seconds=1.0)


def test_a_compressed_reply_is_read_and_a_redirect_is_not_followed() -> None:
    for body, encoding in (
        (gzip.compress(b"[1]"), b"gzip"),
        (zlib.compress(b"[1]"), b"deflate"),
        (b"[1]", b"identity"),
    ):
        with hostile_server(lambda: whole(body, b"Content-Encoding: %s\r\n" % encoding)) as url:  # noqa: B023
            assert send("GET", url, seconds=600).json() == [1]
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    with hostile_server(lambda: [moved]) as url:
        assert send("GET", url, seconds=600).status == 302


def test_what_is_no_url_is_one_sentence() -> None:
    with pytest.raises(UserError, match="http://a:b/: expected a URL such as"):
        send("GET", "http://a:b/", seconds=600)
