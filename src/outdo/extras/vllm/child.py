"""The process that runs `server.py` in the environment of vLLM: its start, its requests, and its end.

No wait is without end. The process sends a heartbeat every second, with the number of steps that its engine has made:
one that falls silent, or that makes no step while it should, is killed with all processes that it started.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait  # `select.select` takes no descriptor above 1023
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

from outdo.utils.errors import EngineError, EngineLostError
from outdo.utils.framing import HEADER, NONCE_BYTES, new_nonce, pack
from outdo.utils.text import escape_control

PROTOCOL = 1
SERVER = Path(__file__).with_name("server.py")
HEARTBEAT = bytes(NONCE_BYTES)
LOADING = 1800.0
"""Seconds that an interpreter may take to start, and that loading a model or new weights may take."""
LARGEST = 1 << 32
"""Bytes of a response."""
LOG_LINES = 12
"""The last lines of the log that an error shows."""
NOT_PASSED = ("PYTHON", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""How the names of variables begin that belong to this process: vLLM reads those of torchrun as its own."""


def command(python: str) -> list[str]:
    """Return how `server.py` is started: isolated, so that neither folders nor variables of outdo's Python reach it."""
    return [python, "-I", str(SERVER)]


class Child:
    """A process that answers requests. `timeout` is how long it may be silent, or work without progress, in seconds."""

    def __init__(self, arguments: Sequence[str], *, timeout: float, environment: Mapping[str, str]) -> None:
        self._arguments = list(arguments)
        self._timeout = timeout
        self._environment = dict(environment)
        self._end: weakref.finalize[..., Any] | None = None

    @property
    def pid(self) -> int | None:
        """The number of the process; None if none runs."""
        return self._popen.pid if self._end is not None else None

    def start(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Start the process and let it load a model with these options of vLLM.

        Raises: EngineError if vLLM refuses the options or the model.
        """
        self.kill()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
        self._socket, theirs = socket.socketpair()
        try:
            self._popen = subprocess.Popen(
                [*self._arguments, str(theirs.fileno()), str(os.getpid())],
                env={name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED)}
                | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise EngineError(f"the engine's process cannot be started: {error}") from error
        finally:
            theirs.close()
        # At the latest, the process is killed when this interpreter ends.
        self._end = weakref.finalize(self, _kill, self._popen, self._socket, self._log)
        try:
            return self.request("start", loads=True, protocol=PROTOCOL, options=dict(options))
        except EngineLostError as error:  # with the same options it would fail again
            self.kill()
            raise EngineError(str(error)) from None

    def request(self, operation: str, *, loads: bool = False, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its response. `loads`: it loads weights, which makes no steps.

        Raises: EngineLostError, and kills the process, if it ends, hangs, fails or sends something else.
        """
        if self._end is None:
            raise EngineLostError("the engine's process does not run")
        nonce = new_nonce()
        try:
            self._socket.settimeout(LOADING if operation == "start" else self._timeout)
            self._socket.sendall(pack(nonce, json.dumps({"operation": operation, **arguments}).encode()))
            response = self._receive(nonce, loads=loads)
        except TimeoutError:
            self._lose(f"did not read a request for {self._timeout:g} s")
        except (OSError, EOFError, ValueError) as error:
            self._lose(self._status() or f"sent what is no response: {error}")
        except BaseException:  # an interrupt may have left a part of a message
            self.kill()
            raise
        if "failed" in response:
            self._lose(f"failed: {response['failed']}")
        return response

    def kill(self) -> None:
        """Kill the process and all processes that it started; it holds nothing that must be saved."""
        if self._end is not None:
            self._end()
            self._end = None

    def _receive(self, nonce: bytes, *, loads: bool) -> dict[str, Any]:
        """Return the response with this nonce. Older responses, of interrupted requests, are dropped."""
        began = moved = monotonic()
        heard, limit = began, LOADING if loads else self._timeout  # a new process is silent until Python has started
        progress = None
        while True:
            if wait([self._socket], 1.0):
                answered, body = self._message()
                heard, limit = monotonic(), self._timeout
                if answered == nonce:
                    return body
                if answered == HEARTBEAT and body.get("progress") != progress:
                    progress, moved = body.get("progress"), heard
            elif self._popen.poll() is not None:
                raise EOFError
            if monotonic() - heard > limit:
                self._lose(f"gave no sign of life for {limit:g} s")
            if monotonic() - moved > (LOADING if loads else self._timeout):
                self._lose(f"made no progress for {LOADING if loads else self._timeout:g} s")

    def _message(self) -> tuple[bytes, dict[str, Any]]:
        size, nonce = HEADER.unpack(self._read(HEADER.size))
        if size > LARGEST:
            raise ValueError(f"a message of {size} bytes")
        body = json.loads(self._read(size))
        if not isinstance(body, dict):
            raise ValueError("a message that is no table")
        return nonce, body

    def _read(self, size: int) -> bytes:
        """Read exactly `size` bytes, which have begun to arrive."""
        self._socket.settimeout(self._timeout)
        data = bytearray()
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def _lose(self, reason: str) -> Any:
        """Kill the process and raise the error that names the reason, with the end of the log."""
        log = _last_lines(self._log)
        pid = self._popen.pid
        self.kill()
        raise EngineLostError(f"the engine (process {pid}) {reason}{log}")

    def _status(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._popen.wait(timeout=1.0)
            what = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
            return f"has ended: {what}{' (out of memory?)' if what == 'SIGKILL' else ''}"
        return ""


def _last_lines(log: BinaryIO) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 8192))
    lines = deque(log.read().decode("utf-8", "replace").splitlines(), maxlen=LOG_LINES)
    return "".join(f"\n    {escape_control(line)}" for line in lines if line.strip())


def _kill(popen: "subprocess.Popen[bytes]", connection: socket.socket, log: BinaryIO) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError for a group of zombies
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
    connection.close()
    log.close()
