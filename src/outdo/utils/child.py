"""A child process that answers requests over a socket: no wait is without end, and Linux ends it with this process.

Each request carries a random number, its nonce, and the response repeats it. So nothing else is taken for the response:
not the output of an earlier call, and not what the other program or its processes wrote to the socket.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import wait  # `select.select` takes no descriptor above 1023
from threading import RLock, current_thread, main_thread
from time import monotonic
from typing import Any

NONCE_BYTES = 16
HEADER = struct.Struct(f"!Q{NONCE_BYTES}s")
"""The length of the body of a message, and its nonce."""

NOT_STARTED = 127
"""The exit status of a child whose command cannot be run, as in a shell; the reason is among what it has printed."""

_PIPE_BYTES = 64 * 1024
"""What a pipe holds: one read returns all that was printed before."""
_END_WITH_PARENT = f"""
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != parent:
    os._exit(1)
try:
    os.execvp(command[0], command)
except OSError as error:
    print(command[0], error.strerror, sep=": ", file=sys.stderr)
    sys.exit({NOT_STARTED})
"""


def _open_lasting_thread() -> None:
    global _lasting_thread
    _lasting_thread = ThreadPoolExecutor(1, thread_name_prefix="outdo children")


_open_lasting_thread()
os.register_at_fork(after_in_child=_open_lasting_thread)  # a forked process has no thread of its parent


class ChildLostError(Exception):
    """A child has ended, or has sent something else than a response; the message has the details.

    `status` is its exit status, or minus the number of the signal that ended it; None if it has not ended.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Child:
    """A process that runs `command`, with the descriptor of its end of a socket as one more argument.

    `show` gets what the process prints, whenever this process waits for it, and `b""` at the end. Linux kills the
    process as soon as this one ends, however that happens; on other systems it ends when it reads from the socket.
    Processes that it has started may outlive it if this one is killed: only `kill` ends them, at the latest when the
    interpreter ends.

    If the command cannot be run, the exit status is `NOT_STARTED`.

    Raises: OSError if the machine cannot start a process.
    """

    def __init__(
        self,
        command: Sequence[str],
        show: Callable[[bytes], object],
        *,
        environment: Mapping[str, str],
        directory: str | None = None,
    ) -> None:
        self._show = show
        self._lock = RLock()  # of the descriptors: none is closed while a thread uses it
        self._is_killed = False
        self.socket, theirs = socket.socketpair()
        self._printed, printing = os.pipe()
        try:
            start = partial(
                subprocess.Popen,
                ending_with_this_process([*command, str(theirs.fileno())]),
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printing,
                stderr=printing,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            # Linux kills a child together with the thread that has started it.
            in_main_thread = current_thread() is main_thread()
            self._popen = start() if in_main_thread else _lasting_thread.submit(start).result()
        except OSError:
            self.socket.close()
            os.close(self._printed)
            raise
        finally:
            theirs.close()
            os.close(printing)
        os.set_blocking(self._printed, False)
        # At the latest, the process is killed when this interpreter ends.
        self._end = weakref.finalize(self, _end, self._popen, self.socket, self._printed, show)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """Kill the process and all processes that it started; it holds nothing that must be saved.

        Another thread that waits for the process gets `ChildLostError`.
        """
        self.interrupt()
        with self._lock:
            self._end()

    def interrupt(self) -> None:
        """Kill the processes while another thread waits for a response; that thread then calls `kill`."""
        self._is_killed = True
        if self._end.alive:  # afterwards the number may belong to another process
            kill_group(self.pid)

    def send(self, body: bytes, deadline: float) -> bytes:
        """Send a request, and return its nonce.

        Raises: TimeoutError if it is not read until `time.monotonic()` is `deadline`, and ChildLostError.
        """
        nonce = os.urandom(NONCE_BYTES)  # nobody can guess it, and no other request has it
        with self._open_descriptors():
            self.socket.settimeout(_remaining(deadline))
            try:
                self.socket.sendall(pack(nonce, body))
            except (BrokenPipeError, ConnectionResetError):
                raise self._lost() from None
        return nonce

    def receive(self, deadline: float, max_bytes: int, *, only: bytes | None = None) -> tuple[bytes, dict[str, Any]]:
        """Return the nonce and the body of the next message, a JSON object of at most `max_bytes`.

        With `only`, no other nonce is accepted.

        Raises: TimeoutError if it is not there when `time.monotonic()` is `deadline`, and ChildLostError.
        """
        size, nonce = HEADER.unpack(self._read(HEADER.size, deadline))
        if only not in (None, nonce):
            raise ChildLostError("its response does not belong to the request")
        if size > max_bytes:
            raise ChildLostError(f"its response had {size} bytes")
        try:
            body = json.loads(self._read(size, deadline))
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise ChildLostError("its response was no JSON object")
        return nonce, body

    def is_readable(self, seconds: float) -> bool:
        """Wait until there is something to receive, or something was printed; return whether the first is true.

        Raises: ChildLostError if the process was killed by `kill`.
        """
        with self._open_descriptors():
            readable = wait([self.socket, self._printed], seconds)
            if self._printed in readable and not self.show_prints():  # it has closed its output
                readable = wait([self.socket], seconds)
            return self.socket in readable

    def show_prints(self) -> bool:
        """Show what was printed so far; return False if there is nothing.

        Raises: ChildLostError if the process was killed by `kill`.
        """
        with self._open_descriptors():
            return _pass_on(self._printed, self._show)

    @contextlib.contextmanager
    def _open_descriptors(self) -> Iterator[None]:
        """Keep the descriptors open meanwhile. Raises: ChildLostError if they are closed."""
        with self._lock:
            if not self._end.alive:
                raise self._lost()
            yield

    def _read(self, size: int, deadline: float) -> bytes:
        """Read exactly `size` bytes.

        The children of a dead process may keep the socket open, so the process itself is checked, too.
        """
        data = bytearray()
        while len(data) < size:
            remaining, dead = _remaining(deadline), not self.alive
            is_readable = self.is_readable(0 if dead else min(remaining, 0.25))
            if is_readable:
                with contextlib.suppress(ConnectionResetError), self._open_descriptors():
                    if chunk := self.socket.recv(size - len(data)):
                        data += chunk
                        continue
            if dead or is_readable:
                raise self._lost()
        return bytes(data)

    def _lost(self) -> ChildLostError:
        """Return the error that says how the process has ended."""
        try:
            status = self._popen.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return ChildLostError("it closed its connection to the trainer")
        if self._is_killed:
            return ChildLostError("the trainer has ended it", status)
        if status >= 0:
            return ChildLostError(f"exit status {status}", status)
        name = signal.Signals(-status).name
        return ChildLostError(f"{name} (out of memory?)" if name == "SIGKILL" else name, status)


def pack(nonce: bytes, body: bytes) -> bytes:
    """Return a message: a header and its body."""
    return HEADER.pack(len(body), nonce) + body


def ending_with_this_process(command: Sequence[str]) -> list[str]:
    """Return a command that becomes another one, which Linux kills as soon as the thread that starts it has ended."""
    return [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(os.getpid()), *command]


def kill_group(leader: int) -> None:
    """Kill a process that leads a group or a session, with those that it has started, unless they have left it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError for a group of zombies
        os.killpg(leader, signal.SIGKILL)


def continue_when_closed(pipe: int) -> None:
    """Let Linux send this process SIGCONT when the other end of a pipe is closed, as by the end of its process.

    A process that SIGSTOP has stopped reads no pipe: without this it would stay, with its memory and its lock. The
    descriptor must not be shared with other processes, of which only one would be continued. On other systems this
    function does nothing.
    """
    if sys.platform == "linux":
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGCONT)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _remaining(deadline: float) -> float:
    if (seconds := deadline - monotonic()) <= 0:
        raise TimeoutError
    return seconds


def _pass_on(printed: int, show: Callable[[bytes], object]) -> bool:
    with contextlib.suppress(BlockingIOError):
        data = os.read(printed, _PIPE_BYTES)
        show(data)
        return bool(data)
    return False


def _end(
    popen: "subprocess.Popen[bytes]", connection: socket.socket, printed: int, show: Callable[[bytes], object]
) -> None:
    kill_group(popen.pid)
    popen.wait()
    connection.close()
    _pass_on(printed, show)
    show(b"")
    os.close(printed)
