"""One worker process of a reward, from its start to its end.

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
import subprocess
import sys
import weakref
from collections.abc import Mapping
from multiprocessing.connection import wait  # `select.select` takes no descriptor above 1023
from time import monotonic
from typing import Any

from outdo.rewards.limits import WorkerLimits, worker_environment
from outdo.rewards.worker_output import WorkerOutput
from outdo.utils.errors import UserError
from outdo.utils.framing import HEADER, new_nonce, pack

IMPORT_DEADLINE = 120.0
"""Seconds for starting the process and importing the user's file, which may import torch from a slow disk."""

REWARD = "outdo.rewards.worker_main"
"""What the worker of a reward runs."""

_MAX_READY_BYTES = 1 << 20
_PIPE_BYTES = 64 * 1024
"""What a pipe holds: one read shows all that was printed before."""
_SERVE = """
import importlib, json, sys
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments.pop("path")
importlib.import_module(arguments.pop("module")).serve(**arguments)
"""


class WorkerEndedError(Exception):
    """The process has ended, or sent something else than the response to its request; the message has the details."""


class ProcessorTimeError(TimeoutError):
    """The call computed for longer than `WorkerLimits.processor_seconds`."""


class WorkerProcess:
    """A process that has imported the function `spec` and waits for requests.

    `options` are arguments of the function. They are sent, not written on the command line, which every user of the
    machine can read. `directory` is where relative paths begin. The process runs `serve` of `module`.

    Raises:
        UserError: the function cannot be imported, or is not a reward function.
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        spec: str,
        options: Mapping[str, Any],
        limits: WorkerLimits,
        directory: str,
        output: WorkerOutput,
        *,
        module: str = REWARD,
    ) -> None:
        self._output = output
        self.answered = 0
        """The number of requests that were answered."""
        where = spec.rpartition(":")[0]
        self._start(directory, [directory] * (not where.endswith(".py")), limits, module)
        setup = {
            "spec": spec,
            "options": options,
            "timeout": limits.timeout,
            "processor_seconds": limits.processor_seconds,
        }
        try:
            self.ready = self.request(pickle.dumps(setup), IMPORT_DEADLINE, _MAX_READY_BYTES)
        except TimeoutError:
            self.kill()
            raise UserError([f"{where}: importing it took longer than {IMPORT_DEADLINE:g} s"]) from None
        except WorkerEndedError as error:
            self.kill()
            raise UserError([f"{where}: importing it ended the worker: {error}"]) from None
        if "mistakes" in self.ready:
            self.kill()
            raise UserError([str(mistake) for mistake in self.ready["mistakes"]])
        self.answered = 0

    def _start(self, directory: str, first_on_path: list[str], limits: WorkerLimits, module: str) -> None:
        """Start the interpreter. A package in the working directory is found if that is `first_on_path`."""
        self._socket, child_socket = socket.socketpair()
        self._printed, child_printed = os.pipe()
        arguments = {
            "path": first_on_path + [entry or directory for entry in sys.path],
            "descriptor": child_socket.fileno(),
            "parent": os.getpid(),
            "memory": limits.memory_bytes,
            "module": module,
        }
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-P", "-c", _SERVE, json.dumps(arguments)],
                cwd=directory,
                env=worker_environment(os.environ, limits.environment),
                stdin=subprocess.DEVNULL,
                stdout=child_printed,
                stderr=child_printed,
                pass_fds=[child_socket.fileno()],
                start_new_session=True,
            )
        except OSError:
            self._socket.close()
            os.close(self._printed)
            raise
        finally:
            child_socket.close()
            os.close(child_printed)
        os.set_blocking(self._printed, False)
        # At the latest, the process is killed when this interpreter ends.
        self._end = weakref.finalize(self, _end, self._popen, self._socket, self._printed, self._output)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """Kill the process and all processes that it started; it holds nothing that must be saved."""
        self._end()

    def interrupt(self) -> None:
        """Kill the processes while another thread waits for a response; that thread then calls `kill`."""
        _kill_group(self._popen)

    def request(self, body: bytes, timeout: float, max_bytes: int) -> dict[str, Any]:
        """Send a request and wait for its response, both together for at most `timeout` seconds.

        Raises:
            TimeoutError: that was not long enough.
            WorkerEndedError: the process has ended, or it sent something else than one JSON object of at most
                `max_bytes` for this request.
        """
        deadline = monotonic() + timeout
        if wait([self._socket], 0):
            raise WorkerEndedError("it sent something before it received the request" if self.alive else self._status())
        nonce = new_nonce()
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(pack(nonce, body))
        except (BrokenPipeError, ConnectionResetError):
            raise WorkerEndedError(self._status()) from None
        response = self._receive(nonce, deadline, max_bytes)
        self._show_prints()
        self.answered += 1
        return response

    def _receive(self, nonce: bytes, deadline: float, max_bytes: int) -> dict[str, Any]:
        size, answered = HEADER.unpack(self._read(HEADER.size, deadline))
        if answered != nonce:
            raise WorkerEndedError("its response does not belong to the request")
        if size > max_bytes:
            raise WorkerEndedError(f"its response had {size} bytes")
        try:
            response = json.loads(self._read(size, deadline))
        except ValueError:
            response = None
        if not isinstance(response, dict):
            raise WorkerEndedError("its response was no JSON object")
        return response

    def _read(self, size: int, deadline: float) -> bytes:
        """Read exactly `size` bytes, and show what the process prints meanwhile.

        The children of a dead worker may keep the socket open, so the process itself is checked, too.
        """
        data = bytearray()
        while len(data) < size:
            remaining = deadline - monotonic()
            if remaining <= 0:
                raise TimeoutError
            dead = not self.alive
            patience = 0 if dead else min(remaining, 0.25)
            readable = wait([self._socket, self._printed], patience)
            if self._printed in readable and not self._show_prints():  # it closed its output
                readable = wait([self._socket], patience)
            if self._socket in readable:
                with contextlib.suppress(ConnectionResetError):
                    if chunk := self._socket.recv(size - len(data)):
                        data += chunk
                        continue
            if dead or self._socket in readable:
                self._raise_ended()
        return bytes(data)

    def _show_prints(self) -> bool:
        """Show what was printed so far; return False if there is nothing."""
        return _show(self._printed, self._output)

    def _raise_ended(self) -> None:
        if self._wait() == -signal.SIGPROF:
            raise ProcessorTimeError
        raise WorkerEndedError(self._status())

    def _wait(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout=1.0)
        return None

    def _status(self) -> str:
        status = self._wait()
        if status is None:
            return "it closed its connection to the trainer"
        if status >= 0:
            return f"exit status {status}"
        name = signal.Signals(-status).name
        return f"{name} (out of memory?)" if name == "SIGKILL" else name


def _show(printed: int, output: WorkerOutput) -> bool:
    with contextlib.suppress(BlockingIOError):
        data = os.read(printed, _PIPE_BYTES)
        output.write(data)
        return bool(data)
    return False


def _kill_group(popen: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError for a group of zombies
        os.killpg(popen.pid, signal.SIGKILL)


def _end(popen: "subprocess.Popen[bytes]", connection: socket.socket, printed: int, output: WorkerOutput) -> None:
    _kill_group(popen)
    popen.wait()
    connection.close()
    _show(printed, output)
    output.flush()
    os.close(printed)
