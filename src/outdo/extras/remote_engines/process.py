"""Processes that hold objects and call their methods on request.

The tensors of an object that is sent to a process become shared memory, not copies: what one process writes into a
weight, the others read. Arguments and results of methods go through a pipe, and are copied.

Each request has a number, which its answer repeats. A call that was interrupted leaves an answer in the pipe: the next
call waits for it and drops it.

No wait is without end. Each process sends a sign of life every second, from a thread of its own, with the progress of
its objects that count some; one that falls silent, or that makes no progress for too long, is killed and named in the
error. A process ends with the one that started it, also in the middle of a call.
"""

import contextlib
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from threading import Thread, Timer
from time import sleep
from typing import Any

import torch.multiprocessing
from torch import Tensor

from outdo.models.device import set_deterministic
from outdo.utils.child import continue_when_closed
from outdo.utils.errors import WorkerError
from outdo.utils.malloc import disable_trim
from outdo.utils.watchdog import Watchdog
from outdo.utils.world import FOLDER

PRELOADED = ["outdo.models.scorer"]
"""What a child needs: it is imported while the parent loads its own modules and models."""

HEARTBEAT = 1.0
"""Seconds between two signs of life of a process."""
SILENCE = 120.0
"""Seconds without a sign of life after which a process is killed."""
START = 600.0
"""Seconds that the fork server, and a process until its first sign of life, may take: they import torch."""
PATIENCE = 600.0
"""Seconds without progress that a call may take in another process."""
FEWER = "fewer `engine.processes` need less"
WITHOUT = '`engine = "builtin"` needs none'
"""What the errors of a process recommend."""
GRACE = 5.0
"""Seconds in which a process should end by itself. It holds nothing that has to be saved."""

_NUMBER = struct.Struct("!q")
"""The number of a request, before its answer."""
_INTERRUPTED = "a message between worker processes was interrupted in the middle; start the run again"


def results_of(processes: Sequence["Process"], seconds: float) -> list[Any]:
    """Return the results of the last calls of some processes; raise the first exception after all of them have ended.

    `seconds`: see `Process.result`.
    """
    results = [process.result(seconds) for process in processes]
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        raise errors[0]
    return results


class Process:
    """One further process, which holds objects by a number and calls their methods.

    An object may have an attribute `progress`, a number that changes while one of its methods gets on.
    """

    def __init__(self, threads: int) -> None:
        context = torch.multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload(PRELOADED)
        self._pipe, theirs = context.Pipe()
        self._heartbeats, their_heartbeats = context.Pipe(duplex=False)
        arguments = (theirs, their_heartbeats, _own_temporary_folder(), threads, torch.get_deterministic_debug_mode())
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        try:
            with _fork_server_in_time():
                self._process.start()
        except (OSError, EOFError) as error:
            raise WorkerError(_not_started(error)) from error
        theirs.close()
        their_heartbeats.close()
        self._started = False  # whether there was a sign of life
        _limit_sending(self._pipe, SILENCE)
        # The child ignores signals that are meant for the whole run; it ends when the pipes are closed. So they have to
        # be closed before Python waits for its children.
        ends = (self._pipe, self._heartbeats)
        self._end = util.Finalize(self, _end, args=(ends, self._process), exitpriority=100)
        self._numbers = count()
        self._awaited: int | None = None  # the request whose answer has not been received
        self._cut_off = False  # an interrupt left a part of a message in the pipe

    def hold(self, name: int, part: Any) -> None:
        """Send an object, with its tensors as shared memory, and wait until it has arrived."""
        try:
            pickled = ForkingPickler.dumps(part)  # shares the memory of tensors; `_pickle_copy` copies it
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise WorkerError(f"the model cannot be sent to a worker process: {error}; {WITHOUT}") from error
        self.call(name, "hold", (bytes(pickled),))
        result = self.result()
        if isinstance(result, BaseException):
            raise result

    def call(self, name: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Start a call of a method; `result` waits for its end.

        Raises:
            WorkerError: an interrupt cut off a message, or the process sent an answer that nothing requested.
        """
        self.finish()
        self._check_pipe()
        message = _pickle_copy((number := next(self._numbers), method, name, *arguments))
        self._awaited = number
        self._cut_off = True
        try:
            self._pipe.send_bytes(message)
        except BlockingIOError:  # it does not read: it hangs
            raise self._kill(f"did not read a message for {SILENCE:g} s") from None
        except BrokenPipeError:  # `result` reports why
            pass
        self._cut_off = False

    def result(self, seconds: float = PATIENCE) -> Any:
        """Return the result of the last call, or the exception that it raised.

        If the call makes no progress for `seconds`, or the process gives no sign of life, the process is killed, and
        the result is a `WorkerError`.
        """
        if self._cut_off:
            return WorkerError(_INTERRUPTED)
        try:
            if error := self._wait(seconds):  # an interrupt while waiting loses no part of a message
                return error
            self._cut_off = True
            answer = self._pipe.recv_bytes()
            self._started = True
            awaited, self._awaited = self._awaited, None
            self._cut_off = False
        except (EOFError, ConnectionError):
            self._awaited, self._cut_off = None, False
            self._process.join(1.0)
            return WorkerError(
                f"a worker process ended in the middle of its work (exit status {self._process.exitcode}); "
                f"if it ran out of memory, {FEWER}"
            )
        if answer[: _NUMBER.size] != _NUMBER.pack(awaited):
            return WorkerError("a worker process sent an answer that belongs to another request")
        return pickle.loads(memoryview(answer)[_NUMBER.size :])

    def _wait(self, seconds: float) -> WorkerError | None:
        """Wait until there is something to read, or until the process has ended; kill it if it hangs."""
        watchdog = Watchdog(SILENCE, seconds, first=SILENCE if self._started else START)
        while not self._pipe.poll():
            if self._heartbeats in wait([self._pipe, self._heartbeats], HEARTBEAT):
                self._started = True
                with contextlib.suppress(EOFError, ConnectionError):
                    while self._heartbeats.poll():
                        watchdog.hear(self._heartbeats.recv_bytes())
            if complaint := watchdog.complaint():
                return self._kill(complaint)
        return None

    def _kill(self, reason: str) -> WorkerError:
        """Kill the process and return the error that names it."""
        self._awaited, self._cut_off = None, False
        self._process.kill()
        self._process.join(GRACE)
        return WorkerError(f"worker process {self._process.pid} {reason}, and was killed")

    def finish(self) -> None:
        """Wait for the end of a call whose result was never received, and drop the result."""
        if self._awaited is not None:
            self.result()

    def _check_pipe(self) -> None:
        if self._cut_off:
            raise WorkerError(_INTERRUPTED)
        with contextlib.suppress(EOFError, ConnectionError):  # it has ended: `result` reports why
            if self._pipe.poll():
                self._pipe.recv_bytes()
                raise WorkerError("a worker process sent an answer that nothing requested")

    def close(self) -> None:
        """End the process, and wait until it has ended. It is killed if it takes too long."""
        self._end()


def _end(pipes: Sequence[Connection], process: Any) -> None:
    for pipe in pipes:
        pipe.close()
    process.join(GRACE)
    if process.is_alive():  # it hangs
        process.kill()
        process.join(GRACE)


def _limit_sending(pipe: Connection, seconds: float) -> None:
    """Let a write that makes no progress for so long raise `BlockingIOError`."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), 0))


def _send_heartbeats(pipe: Connection, held: Mapping[int, Any], temporary_folder: str) -> None:
    """Send the progress of the objects until the parent has gone or has closed the pipe; then end this process."""
    with contextlib.suppress(OSError):
        while True:
            progress = sum(getattr(object_held, "progress", 0) for object_held in list(held.values()))
            pipe.send_bytes(_NUMBER.pack(progress))
            sleep(HEARTBEAT)
    _remove_temporary_folder(temporary_folder)
    os._exit(1)  # the main thread may compute for a long time


@contextlib.contextmanager
def _fork_server_in_time() -> Iterator[None]:
    """Kill the server that forks the processes if it does not start one within `START` seconds, or if that ends by an
    error: while it imports what the processes need, it would not notice that this process ends.

    Raises: WorkerError naming the server that was killed.
    """
    late: list[int] = []
    timer = Timer(START, lambda: late.extend(_kill_fork_server()))
    timer.daemon = True
    timer.start()
    try:
        yield
    except BaseException as error:
        if late:
            message = f"process {late[0]}, which starts the worker processes, did not do so within {START:g} s"
            raise WorkerError(f"{message}, and was killed; {WITHOUT}") from error
        _kill_fork_server()
        raise
    finally:
        timer.cancel()


def _kill_fork_server() -> list[int]:
    """Kill the fork server of this process, and return its id; nothing if there is none."""
    server = getattr(forkserver, "_forkserver", None)  # Python has no public name for it
    pid = getattr(server, "_forkserver_pid", None)
    if pid is None:
        return []
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return [pid]


def _not_started(error: OSError | EOFError) -> str:
    where = f"its socket is in {util.get_temp_dir()}; if this path is too long, set TMPDIR to a shorter one"
    return f"a worker process cannot be started: {error} ({where}); {WITHOUT}"


def _own_temporary_folder() -> str:
    """Return the folder for the sockets of this process; empty if it is its launcher's or parent's: others use it."""
    folder = util.get_temp_dir()
    return folder if multiprocessing.parent_process() is None and folder != os.environ.get(FOLDER) else ""


def _remove_temporary_folder(folder: str) -> None:
    """Remove the parent's own folder for sockets if the parent was killed: it does so itself when it ends in order."""
    parent = multiprocessing.parent_process()
    if parent is not None and folder:
        parent.join(0.2)  # a killed process closes its pipes one after the other
        if not parent.is_alive():
            shutil.rmtree(folder, ignore_errors=True)


def _serve(pipe: Connection, heartbeats: Connection, temporary_folder: str, threads: int, deterministic: int) -> None:
    """Run in a child: execute calls until the parent closes the pipe."""
    continue_when_closed(heartbeats.fileno())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    set_deterministic(deterministic)
    held: dict[int, Any] = {}
    Thread(target=_send_heartbeats, args=(heartbeats, held, temporary_folder), daemon=True).start()
    _execute_calls(pipe, held, threads)
    _remove_temporary_folder(temporary_folder)


def _execute_calls(pipe: Connection, held: dict[int, Any], threads: int) -> None:
    torch.set_num_threads(threads)
    disable_trim()
    own_id = os.getpid()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            number, method, name, *arguments = pickle.loads(pipe.recv_bytes())
            try:
                if method == "hold":
                    held[name] = pickle.loads(*arguments)
                    result = None
                else:
                    result = getattr(held[name], method)(*arguments)
                message = _pickle_copy(result)
            except Exception as error:
                message = _pickle_copy(_picklable(error))
            if os.getpid() != own_id:  # a fork that the call made and that came back here
                os._exit(1)
            pipe.send_bytes(_NUMBER.pack(number) + message)


def _picklable(error: Exception) -> Exception:
    """Return the error with its traceback as a note; a `WorkerError` in its place if it cannot be pickled."""
    where = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"in a worker process: {where}")
    error.add_note(f"raised in a worker process:\n{where}")
    return error


class _CopyPickler(pickle.Pickler):
    """Pickle tensors by value, as arrays: quick for the small ones that arguments and results are."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor) and obj.dtype != torch.bfloat16:
            return torch.from_numpy, (obj.detach().cpu().numpy(),)
        return NotImplemented


def _pickle_copy(message: Any) -> bytes:
    buffer = io.BytesIO()
    _CopyPickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()
