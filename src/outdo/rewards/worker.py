"""Run a reward function in a process of its own, which can be killed.

A thread cannot be stopped, an alarm signal does not interrupt a loop in C, and a fork of a process with torch's threads
may deadlock. So the worker is a fresh interpreter; it is reused from call to call, and killed at the deadline with all
processes that it started.
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
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import Any

from outdo.rewards.signatures import SignatureKind, score_all
from outdo.rewards.types import RewardInput, RewardOutput, Status, output_without_value, to_output
from outdo.utils.errors import RewardError, UserError

DEADLINE = 10.0
"""Default limit, in seconds, of one call of a reward function."""

IMPORT_DEADLINE = 120.0
"""Seconds for starting the process and importing the user's file, which may import torch from a slow disk."""

MAX_CONSECUTIVE_CRASHES = 32
"""After so many completions in a row that each ended their worker, the rest of the call is not tried."""

_LENGTH = struct.Struct("!Q")
_MAX_RESPONSE_BYTES = 4096
"""Per completion, and once more: enough for a status, a number and a reason of 300 characters."""
_GRACE = 1.0
"""Seconds by which the worker itself may be late in ending calls that run concurrently."""
_SERVE = """
import json, sys
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments.pop("path")
from outdo.rewards.worker_main import serve
serve(**arguments)
"""


class WorkerReward:
    """The reward `file.py:name` or `package.module:name`, run in a worker process.

    Each completion has a call, a deadline and a status of its own; if a call hangs or crashes, only its completion
    fails, and a fresh worker scores the next. A function that takes all completions at once has one deadline for that
    call: if it hangs, all have timed out; if it raises or crashes, they are retried one by one, so that only the faulty
    ones fail. What the function prints goes to stderr.

    Args:
        spec: `file.py:name` or `package.module:name`.
        name: the reward's name; by default that of the function.
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
        self._consecutive_crashes = 0
        self._arguments = {"spec": spec, "options": _pickle_options(options or {}, self.name), "timeout": timeout}
        self._directory = os.getcwd()  # `spec` is relative to it, also for a worker started later
        self._process: _Process | None = _Process(self._arguments, self._directory)
        asynchronous = self._process.ready["asynchronous"]
        takes_batches = self._process.ready["kind"] == SignatureKind.trl
        concurrent = asynchronous and not takes_batches
        self._in_one_call = asynchronous or takes_batches
        self._retried = {Status.failed, Status.timed_out} if concurrent else {Status.failed}
        self._deadline = timeout + _GRACE * concurrent

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion.

        Raises:
            RewardError: a worker that had to be replaced does not start again.
        """
        with self._lock:
            self._consecutive_crashes = 0
            return score_all(
                self._call,
                inputs,
                in_one_call=self._in_one_call,
                retry_one_by_one=lambda output: output.status in self._retried,
            )

    def close(self) -> None:
        """Kill the worker."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _call(self, inputs: Sequence[RewardInput]) -> list[RewardOutput] | RewardOutput:
        if self._consecutive_crashes >= MAX_CONSECUTIVE_CRASHES:
            reason = f"not tried: each of the {MAX_CONSECUTIVE_CRASHES} completions before it ended the worker"
            return output_without_value(Status.failed, reason, self.name)
        try:
            request = pickle.dumps(list(inputs))
        except Exception as error:
            return output_without_value(Status.failed, f"a column cannot be sent to the worker: {error}", self.name)
        max_bytes = _MAX_RESPONSE_BYTES * (len(inputs) + 1)
        try:
            response = self._running_process().request(request, self._deadline, max_bytes)
            outputs = self._parse_response(response, inputs)
        except TimeoutError:
            reason = f"{self.name} had no answer after {self.timeout:g} s"
            failure = output_without_value(Status.timed_out, reason, self.name)
        except _WorkerEndedError as error:
            failure = output_without_value(Status.failed, f"{self.name} ended the worker: {error}", self.name)
        else:
            self._consecutive_crashes = 0
            return outputs
        self._consecutive_crashes += 1
        self.close()
        return failure

    def _parse_response(
        self, response: dict[str, Any], inputs: Sequence[RewardInput]
    ) -> list[RewardOutput] | RewardOutput:
        """Check every field: the user's code ran in the worker, so its response is not trusted."""
        if "raised" in response:
            return output_without_value(Status.failed, str(response["raised"]), self.name)
        try:
            outputs = [self._parse_output(*fields) for fields in response["outputs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise _WorkerEndedError("its response has no valid outputs") from error
        if len(outputs) != len(inputs):
            raise _WorkerEndedError(f"it sent {len(outputs)} outputs for {len(inputs)} completions")
        return outputs

    def _parse_output(self, value: object, status: object, reason: object, right: object) -> RewardOutput:
        status = Status(status)
        if status is Status.ok:
            return replace(to_output(value, self.name), right=right if isinstance(right, bool) else None)
        return output_without_value(status, str(reason), self.name)

    def _running_process(self) -> "_Process":
        """Return the worker, or a new one if the last was killed or ended by itself between two calls."""
        if self._process is None or not self._process.alive:
            self.close()
            try:
                self._process = _Process(self._arguments, self._directory)
            except UserError as error:
                raise RewardError(f"the worker of the reward {self.spec} does not start again: {error}") from error
        return self._process


def _pickle_options(options: Mapping[str, Any], name: str) -> str:
    try:
        return pickle.dumps(dict(options)).hex()
    except Exception as error:
        raise UserError([f"the reward {name}: its options cannot be sent to its worker: {error}"]) from None


class _WorkerEndedError(Exception):
    """The process has ended, or sent an invalid response; the message has the details."""


class _Process:
    """One worker process, from its start to its end."""

    def __init__(self, arguments: Mapping[str, Any], directory: str) -> None:
        self._socket, child_socket = socket.socketpair()
        where = arguments["spec"].rpartition(":")[0]
        path = [entry or directory for entry in sys.path]
        if not where.endswith(".py"):
            path.insert(0, directory)  # so that a package in the working directory is found
        arguments = {**arguments, "path": path, "descriptor": child_socket.fileno(), "parent": os.getpid()}
        with child_socket:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-P", "-c", _SERVE, json.dumps(arguments)],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what the function prints must not mix with this process's own stdout
                pass_fds=[child_socket.fileno()],
                start_new_session=True,
            )
        self.kill = weakref.finalize(self, _kill, self._popen, self._socket)  # at the latest when this interpreter ends
        try:
            self.ready = self._receive(monotonic() + IMPORT_DEADLINE, 1 << 20)
        except TimeoutError:
            self.kill()
            raise UserError([f"{where}: importing it took longer than {IMPORT_DEADLINE:g} s"]) from None
        except _WorkerEndedError as error:
            self.kill()
            raise UserError([f"{where}: importing it ended the worker: {error}"]) from None
        if "mistakes" in self.ready:
            self.kill()
            raise UserError([str(mistake) for mistake in self.ready["mistakes"]])

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def request(self, request: bytes, timeout: float, max_bytes: int) -> dict[str, Any]:
        """Send a request and wait for its response, both together for at most `timeout` seconds.

        Raises:
            TimeoutError: that was not long enough.
            _WorkerEndedError: the process has ended, or its response is no JSON object or larger than `max_bytes`.
        """
        deadline = monotonic() + timeout
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(_LENGTH.pack(len(request)) + request)
        except (BrokenPipeError, ConnectionResetError):
            raise _WorkerEndedError(self._exit_reason()) from None
        return self._receive(deadline, max_bytes)

    def _receive(self, deadline: float, max_bytes: int) -> dict[str, Any]:
        size = _LENGTH.unpack(self._read(_LENGTH.size, deadline))[0]
        if size > max_bytes:
            raise _WorkerEndedError(f"its response had {size} bytes")
        try:
            response = json.loads(self._read(size, deadline))
        except ValueError:
            response = None
        if not isinstance(response, dict):
            raise _WorkerEndedError("its response was no JSON object")
        return response

    def _read(self, size: int, deadline: float) -> bytes:
        """Read exactly `size` bytes.

        The children of a dead worker may keep the socket open, so the process itself is checked, too.
        """
        data = bytearray()
        while len(data) < size:
            remaining = deadline - monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(min(remaining, 0.25))
            dead = not self.alive
            try:
                chunk = self._socket.recv(size - len(data))
            except TimeoutError:
                chunk = b"" if dead else None
            except ConnectionResetError:
                chunk = b""
            if chunk == b"":
                raise _WorkerEndedError(self._exit_reason())
            data += chunk or b""
        return bytes(data)

    def _exit_reason(self) -> str:
        try:
            status = self._popen.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "it closed its connection to the trainer"
        if status >= 0:
            return f"exit status {status}"
        name = signal.Signals(-status).name
        return f"{name} (out of memory?)" if name == "SIGKILL" else name


def _kill(popen: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    """Kill the process and all processes that it started; it holds nothing that must be saved."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError for a group of zombies
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
    connection.close()
