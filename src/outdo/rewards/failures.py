"""Tell a failure of what a reward needs (a service, the network, memory for a process) from an error of its function.

The first says nothing about the completion: it is scored again. The second does not go away by itself.
"""

import errno
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outdo.rewards.types import RewardOutput, Status, output_without_value

BUSY_OR_BROKEN = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""The HTTP statuses of a service that may answer the same request later."""

_ERRNOS = frozenset(
    {
        *(errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ENOSPC, errno.EDQUOT),
        *(errno.ETIMEDOUT, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EHOSTDOWN),
    }
)
_BY_NAME = {
    "socket": {"gaierror"},
    "requests": {"ConnectionError", "Timeout"},
    "urllib3": {"TimeoutError", "NewConnectionError", "MaxRetryError", "ProtocolError"},
    "httpx": {"TransportError"},
    "httpcore": {"NetworkError", "TimeoutException"},
    "aiohttp": {"ClientConnectionError", "ServerTimeoutError"},
    "openai": {"APIConnectionError"},
    "anthropic": {"APIConnectionError"},
    "grpc": {"FutureTimeoutError"},
    "http": {"RemoteDisconnected", "IncompleteRead"},
}
"""Exceptions of libraries by their package: a reward may use any of them, and outdo imports none."""
_NETWORK_MODULES = frozenset({"socket.py", "ssl.py"})


def output_of_error(error: BaseException, name: str) -> RewardOutput:
    """Return the output of a completion for which the reward raised `error`, with the error's file and line."""
    try:
        message = str(error)
    except Exception as second:
        message = f"its message raised {type(second).__name__}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_own_file(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    status = Status.unavailable if is_unavailable(error) else Status.failed
    return output_without_value(status, f"{type(error).__name__}: {message[:200]}{where}", name)


def is_unavailable(error: BaseException) -> bool:
    """Return whether `error`, or an exception that it was raised from, is a failure of what the reward needs.

    That is a connection that failed or timed out, an HTTP status of `BUSY_OR_BROKEN`, and a machine without free
    memory, processes, files or disk space. A plain `TimeoutError` is not: functions limit their own computation by it.
    """
    return any(
        isinstance(cause, ConnectionError)
        or (isinstance(cause, OSError) and cause.errno in _ERRNOS)
        or (isinstance(cause, TimeoutError) and _is_raised_in_network(cause))
        or any(_http_status(cause, name) in BUSY_OR_BROKEN for name in ("status_code", "code", "status"))
        or any(cls.__name__ in _BY_NAME.get(cls.__module__.partition(".")[0], ()) for cls in type(cause).__mro__)
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _http_status(error: Any, name: str) -> Any:
    """Return the HTTP status of an exception of urllib, aiohttp, openai, or of requests and httpx by their response."""
    if isinstance(error, SystemExit):  # its `code` is an exit status
        return None
    for holder in (error, getattr(error, "response", None)):
        status = getattr(holder, name, None)
        if isinstance(status, int):
            return status
    return None


def _is_raised_in_network(error: TimeoutError) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).name in _NETWORK_MODULES


def _is_own_file(filename: str) -> bool:
    return Path(filename).parent == Path(__file__).parent
