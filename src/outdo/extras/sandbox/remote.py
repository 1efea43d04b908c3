"""The sandbox of a service: SandboxFusion, or another that takes `POST /run_code` in its form.

The program and its input are sent, never an expected output. What keeps programs apart is the task of the service.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outdo.extras.sandbox.base import DEFAULT_LIMITS, Ending, Limits, Outcome
from outdo.rewards.failures import BUSY_OR_BROKEN
from outdo.run.folder.run_files import number_or_none
from outdo.utils.errors import UserError
from outdo.utils.http import UNREACHED, LongReplyError, ReplyError, send
from outdo.utils.secrets import redact
from outdo.utils.text import one_line

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before a request is sent again that the service was too busy for, or that did not reach it."""
LONGEST_PAUSE = 60.0
"""Seconds; a service may ask for a longer pause."""

_ESCAPED = 6
"""Bytes that a printed byte has at most in JSON."""
_SURROUNDINGS = 1 << 16
_LAST_LINE = 200
_KILLED = 128 + 9


class _RetryLaterError(Exception):
    """The service cannot answer now; `pause` are the seconds that it asks for."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause or 0.0


class _RefusedError(Exception):
    """The service will not answer this request."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Runs programs by the service at `url`, such as `http://10.0.0.5:8080`."""

    url: str
    api_key: str = field(default="", repr=False)
    """Sent as a bearer token; without it nothing is sent."""

    name = "remote"

    @property
    def description(self) -> str:
        return f"the service at {redact(self.url)}, which has to isolate them"

    def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
        """Run the source of a Python program with the text `stdin` as its input.

        A service measures `Limits.seconds` by its clock. What does not reach it, also after `PAUSES`, is a failure of
        the infrastructure.
        """
        body = {
            "language": "python",
            "code": program.encode(errors="replace").decode(),
            "stdin": stdin.encode(errors="replace").decode(),
            "compile_timeout": limits.seconds,
            "run_timeout": limits.seconds,
            "memory_limit_MB": limits.memory,
        }
        reason = ""
        for pause in (*PAUSES, None):
            try:
                return _outcome(self._post(body, limits), limits)
            except _RefusedError as error:
                reason = str(error)
                break
            except _RetryLaterError as error:
                reason = str(error)
                if pause is not None:
                    time.sleep(min(max(pause, error.pause), LONGEST_PAUSE))
        return Outcome(ending=Ending.infrastructure, stderr=redact(f"{self.url}: {reason}", [self.api_key]))

    def _post(self, body: Mapping[str, Any], limits: Limits) -> Mapping[str, Any] | None:
        """Return the reply; `None` if it is longer than that of a program that keeps its limit of output.

        Raises:
            _RetryLaterError, _RefusedError: there is no reply.
        """
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        content, most = json.dumps(body).encode(), 2 * _ESCAPED * limits.output + _SURROUNDINGS
        url = f"{self.url.rstrip('/')}/run_code"
        try:
            answered = send("POST", url, content=content, headers=headers, seconds=limits.wall_seconds, most=most)
        except LongReplyError:
            return None
        except ReplyError as error:
            raise _RefusedError(str(error)) from None
        except UNREACHED as error:
            raise _RetryLaterError(f"{type(error).__name__}: {error}") from None
        if answered.status >= 300:
            reason = f"HTTP {answered.status}: {one_line(answered.text[:2000])[:200]}"
            if answered.status in BUSY_OR_BROKEN or answered.status >= 500:
                raise _RetryLaterError(reason, answered.retry_after)
            raise _RefusedError(reason)
        try:
            reply = answered.json()
        except ValueError:
            reply = None
        if not isinstance(reply, dict) or "status" not in reply:
            raise _RefusedError(f"it did not answer as a sandbox: {one_line(answered.text)[:200]}")
        return reply


def _outcome(reply: Mapping[str, Any] | None, limits: Limits) -> Outcome:
    """Return how a program ended.

    Raises:
        _RetryLaterError: the service failed.
    """
    if reply is None:
        return Outcome(ending=Ending.resource)
    ran = reply.get("run_result")
    if reply["status"] == "SandboxError" or not isinstance(ran, dict) or ran.get("status") == "Error":
        raise _RetryLaterError(f"it failed: {one_line(str(reply.get('message') or ran))[:200]}")
    stdout, stderr = (str(ran.get(name) or "").encode(errors="replace") for name in ("stdout", "stderr"))
    ending, status = _ending(ran, stdout, stderr, limits)
    return Outcome(
        ending=ending,
        stdout=stdout[: limits.output].decode(errors="replace"),
        stderr=stderr[: limits.output].decode(errors="replace"),
        exit_status=status,
        seconds=number_or_none(ran.get("execution_time")) or 0.0,
    )


def _ending(ran: Mapping[str, Any], stdout: bytes, stderr: bytes, limits: Limits) -> tuple[Ending, int | None]:
    """Return how a program ended, and its exit status."""
    if ran.get("status") == "TimeLimitExceeded":
        return Ending.timeout, None
    status = ran.get("return_code")
    if not isinstance(status, int):
        raise _RetryLaterError(f"it failed: a run without a status: {one_line(str(ran))[:200]}")
    status = status if status >= 0 else 128 - status
    crowded = status == _KILLED or (status != 0 and b"MemoryError" in stderr[-_LAST_LINE:])
    if crowded or max(len(stdout), len(stderr)) > limits.output:
        return Ending.resource, None
    return Ending.exited, status


def open_remote(url: str, api_key: str = "") -> Remote:
    """Return the sandbox of a service, after it has run a program.

    Raises:
        UserError: it did not.
    """
    remote = Remote(url, api_key)
    outcome = remote.run("print(input())", "sandbox")
    if outcome.ending is Ending.infrastructure:
        raise UserError([f"the sandbox does not answer: {outcome.stderr}"])
    if outcome.stdout != "sandbox\n":
        printed = one_line(redact(outcome.stdout + outcome.stderr, [api_key]).strip())[:200]
        raise UserError([f"the sandbox {redact(url)} does not run Python: print(input()) printed {printed!r}"])
    return remote
