"""Reward functions that run in a process of their own, which can be killed.

A thread cannot be stopped, an alarm signal is not heard by a loop in C, and a fork of a process with torch's threads
may never wake: so it is a fresh interpreter, reused from call to call, and killed at the deadline with all it started.
"""

import contextlib
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from threading import Lock
from time import monotonic
from typing import Any

from outdo.rewards.signatures import Convention, spread
from outdo.rewards.types import RewardInput, RewardOutput, Status, judged, unscored
from outdo.utils.errors import RewardError, UserError

DEADLINE = 10.0
"""Seconds that one call of a reward function may take, unless told otherwise."""

IMPORT_DEADLINE = 120.0
"""Seconds for starting the process and importing the user's file, which may import torch from a slow disk."""

ENDED_IN_A_ROW = 32
"""So many completions one after another that each ended their worker: the rest of the call is not tried."""

_LENGTH = struct.Struct("!Q")
_LARGEST_ANSWER = 4096
"""Bytes, for each completion and once more: a verdict, a number and a reason of 300 characters fit well."""
_GRACE = 1.0
"""Seconds by which the worker itself may be late in ending calls that wait at the same time."""
_SERVE = """
import json, sys
told = json.loads(sys.argv[1])
sys.path[:] = told.pop("path")
from outdo.rewards.worker_main import serve
serve(**told)
"""


class Worker:
    """The reward `file.py:name` or `package.module:name`, run in a worker process.

    Each completion has its own call, deadline and verdict; a call that hangs or crashes costs only its own completion,
    and a fresh worker scores the next. A function that takes all completions at once has one deadline for that call:
    if it hangs, all have timed out; if it raises or crashes, they are tried again one by one, so that only the guilty
    fail.
    What the function prints goes to stderr.

    Args:
        spec: `file.py:name` or `package.module:name`.
        name: the reward's name; the function's, if not given.
        options: arguments that are the same for every completion.
        timeout: seconds for one call of the function.

    Raises:
        UserError: the function cannot be imported, has none of the accepted signatures, or does not take the options.
    """

    def __init__(
        self,
        spec: str,
        name: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        timeout: float = DEADLINE,
    ) -> None:
        self.spec = spec
        self.name = name or spec.rpartition(":")[2]
        self.timeout = timeout
        self._lock = Lock()
        self._ended = 0  # workers in a row
        self._told = {"spec": spec, "options": _pickled(options or {}, self.name), "timeout": timeout}
        self._directory = os.getcwd()  # `spec` is relative to it, also for a worker started later
        self._process: _Process | None = _Process(self._told, self._directory)
        ready = self._process.ready
        gathered = ready["asynchronous"] and ready["convention"] != Convention.trl
        self._together = ready["asynchronous"] or ready["convention"] == Convention.trl
        self._repeated = {Status.failed, Status.timed_out} if gathered else {Status.failed}
        self._deadline = timeout + _GRACE * gathered

    def __call__(self, answered: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion.

        Raises:
            RewardError: a worker that had to be replaced does not start again.
        """
        with self._lock:
            self._ended = 0
            return spread(
                self._call, answered, together=self._together, repeat=lambda outcome: outcome.verdict in self._repeated
            )

    def close(self) -> None:
        """Kill the worker."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _call(self, answered: Sequence[RewardInput]) -> list[RewardOutput] | RewardOutput:
        if self._ended >= ENDED_IN_A_ROW:
            reason = f"not tried: each of the {ENDED_IN_A_ROW} completions before it ended the worker"
            return unscored(Status.failed, reason, self.name)
        try:
            request = pickle.dumps(list(answered))
        except Exception as error:
            return unscored(Status.failed, f"a column cannot be sent to the worker: {error}", self.name)
        largest = _LARGEST_ANSWER * (len(answered) + 1)
        try:
            outcome = self._read(self._living().ask(request, self._deadline, largest), answered)
        except TimeoutError:
            outcome = unscored(Status.timed_out, f"{self.name} had no answer after {self.timeout:g} s", self.name)
        except _EndedError as ended:
            outcome = unscored(Status.failed, f"{self.name} ended the worker: {ended}", self.name)
        else:
            self._ended = 0
            return outcome
        self._ended += 1
        self.close()
        return outcome

    def _read(self, answer: dict[str, Any], answered: Sequence[RewardInput]) -> list[RewardOutput] | RewardOutput:
        """What the worker said, believed only as far as it makes sense."""
        if "raised" in answer:
            return unscored(Status.failed, str(answer["raised"]), self.name)
        try:
            scored = [self._scored(*one) for one in answer["scored"]]
        except (KeyError, TypeError, ValueError) as error:
            raise _EndedError("it sent what is no answer") from error
        if len(scored) != len(answered):
            raise _EndedError(f"it sent {len(scored)} answers for {len(answered)} completions")
        return scored

    def _scored(self, value: object, verdict: object, reason: object) -> RewardOutput:
        kind = Status(verdict)
        return judged(value, self.name) if kind is Status.ok else unscored(kind, str(reason), self.name)

    def _living(self) -> "_Process":
        """The worker, or a new one where the last was killed, or died by itself between two calls."""
        if self._process is None or not self._process.alive:
            self.close()
            try:
                self._process = _Process(self._told, self._directory)
            except UserError as mistakes:
                raise RewardError(
                    f"the worker of the reward {self.spec} does not start again: {mistakes}"
                ) from mistakes
        return self._process


def _pickled(options: Mapping[str, Any], name: str) -> str:
    try:
        return pickle.dumps(dict(options)).hex()
    except Exception as error:
        raise UserError([f"the reward {name}: its options cannot be sent to its worker: {error}"]) from None


class _EndedError(Exception):
    """The process is gone, or talks nonsense; the message says how."""


class _Process:
    """One worker process, from its start to its end."""

    def __init__(self, told: Mapping[str, Any], directory: str) -> None:
        self._line, theirs = socket.socketpair()
        spec = told["spec"]
        path = [entry or directory for entry in sys.path]
        if not spec.rpartition(":")[0].endswith(".py"):
            path.insert(0, directory)  # where one looks for one's own package
        told = {**told, "path": path, "descriptor": theirs.fileno(), "parent": os.getpid()}
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-P", "-c", _SERVE, json.dumps(told)],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=2,  # the function's prints: not into what this process writes to its own stdout
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.kill = weakref.finalize(self, _kill, self._popen, self._line)  # at the latest when this interpreter ends
        where = spec.rpartition(":")[0]
        try:
            self.ready = self._receive(monotonic() + IMPORT_DEADLINE, 1 << 20)
        except TimeoutError:
            self.kill()
            raise UserError([f"{where}: importing it took longer than {IMPORT_DEADLINE:g} s"]) from None
        except _EndedError as ended:
            self.kill()
            raise UserError([f"{where}: importing it ended the worker: {ended}"]) from None
        if "mistakes" in self.ready:
            self.kill()
            raise UserError([str(mistake) for mistake in self.ready["mistakes"]])

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, request: bytes, timeout: float, largest: int) -> dict[str, Any]:
        """Send a request and wait for its answer, both together for at most `timeout` seconds.

        Raises:
            TimeoutError: that was not long enough.
            _EndedError: the process is gone, or its answer is no JSON object or larger than `largest` bytes.
        """
        deadline = monotonic() + timeout
        self._line.settimeout(timeout)
        try:
            self._line.sendall(_LENGTH.pack(len(request)) + request)
        except (BrokenPipeError, ConnectionResetError):
            raise _EndedError(self._how()) from None
        return self._receive(deadline, largest)

    def _receive(self, deadline: float, largest: int) -> dict[str, Any]:
        size = _LENGTH.unpack(self._read(_LENGTH.size, deadline))[0]
        if size > largest:
            raise _EndedError(f"its answer had {size} bytes")
        try:
            answer = json.loads(self._read(size, deadline))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _EndedError("its answer was no JSON object")
        return answer

    def _read(self, size: int, deadline: float) -> bytes:
        """Exactly `size` bytes. A dead worker's own children may hold the line open, so it is also looked at itself."""
        data = bytearray()
        while len(data) < size:
            remaining = deadline - monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._line.settimeout(min(remaining, 0.25))
            dead = not self.alive
            try:
                chunk = self._line.recv(size - len(data))
            except TimeoutError:
                chunk = b"" if dead else None
            except ConnectionResetError:
                chunk = b""
            if chunk == b"":
                raise _EndedError(self._how())
            data += chunk or b""
        return bytes(data)

    def _how(self) -> str:
        """How the process ended."""
        try:
            status = self._popen.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "it closed its line to the trainer"
        if status >= 0:
            return f"exit status {status}"
        name = signal.Signals(-status).name
        return f"{name} (out of memory?)" if name == "SIGKILL" else name


def _kill(popen: "subprocess.Popen[bytes]", line: socket.socket) -> None:
    """End the process and what it started, at once and for certain: there is nothing in it to save."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError for a group of zombies
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
    line.close()
