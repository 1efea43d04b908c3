"""Other processes that hold objects and call their methods: one process computes on one core, and weights are shared.

An object that is sent away takes its tensors along as shared memory, not as copies: what one process writes into a
weight, the others read. What a method is given and gives back goes through a pipe, and is copied.
"""

import contextlib
import io
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence
from itertools import count
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self

import torch
import torch.multiprocessing
from torch import Tensor

from outdo.utils.errors import WorkerError
from outdo.utils.malloc import disable_trim

PRELOADED = ["outdo.models.scorer"]  # what a child is going to need: imported while the parent does its own loading


class WorkerPool:
    """This process, and `others` more; each computes with `threads` threads.

    A program that makes one must keep what it does behind `if __name__ == "__main__":`, as for every process pool in
    Python. The others end with this process, however that ends.
    """

    def __init__(self, others: int = 0, *, threads: int = 1) -> None:
        self.others = [_Worker(threads) for _ in range(others)]
        self._names = count()

    def __len__(self) -> int:
        return 1 + len(self.others)

    def place(self, parts: Sequence[Any]) -> "Replicated":
        """Let each process hold one of the parts, the first of them this one. They must be fit for pickling."""
        name = next(self._names)
        for other, part in zip(self.others, parts[1:], strict=True):
            other.hold(name, part)
        return Replicated(parts[0], self.others, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the others."""
        for other in self.others:
            other.close()
        self.others = []


class Replicated:
    """Parts of one kind, each in a process of a pool."""

    def __init__(self, here: Any, others: Sequence["_Worker"], name: int) -> None:
        self.local = here
        self._others = others
        self._name = name

    def __len__(self) -> int:
        return 1 + len(self._others)

    def map(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `method` of the first so many parts at the same time, each with its arguments; what they gave back.

        Raises what a call raised, this process's own first, after all of them have ended.
        """
        if not calls:
            return []
        asked = self._others[: len(calls) - 1]
        for other, arguments in zip(asked, calls[1:], strict=True):
            other.ask(self._name, method, arguments)
        try:
            own = getattr(self.local, method)(*calls[0])
        finally:
            outcomes = [other.answer() for other in asked]
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failed:
            raise failed[0]
        return [own, *outcomes]


class _Worker:
    """One further process."""

    def __init__(self, threads: int) -> None:
        context = torch.multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload(PRELOADED)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
        self._process.start()
        theirs.close()
        # The child takes no signal that is meant for the whole run: it ends when the pipe does. So the pipe has to be
        # closed before Python waits for its children.
        self._end = util.Finalize(self, _end, args=(self._pipe, self._process), exitpriority=100)

    def hold(self, name: int, part: Any) -> None:
        """Send an object, its tensors as shared memory; wait until it has arrived."""
        try:
            parcel = ForkingPickler.dumps(part)  # which shares the memory of tensors, where `_plain` copies it
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise WorkerError(
                f"the model cannot be sent to a worker process: {error}; `workers = 1` has none"
            ) from error
        self._send(("hold", name))
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send_bytes(parcel)
        outcome = self.answer()
        if isinstance(outcome, BaseException):
            raise outcome

    def ask(self, name: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Call a method; `answer` waits for what comes of it."""
        self._send((method, name, *arguments))

    def answer(self) -> Any:
        """What the last call gave back, or the exception that it raised."""
        try:
            return pickle.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            self._process.join(1.0)
            return WorkerError(
                f"a worker process ended in the middle of its work (exit status {self._process.exitcode}); "
                "if it ran out of memory, fewer `workers` need less"
            )

    def _send(self, message: tuple[Any, ...]) -> None:
        with contextlib.suppress(BrokenPipeError):  # `answer` says what has happened
            self._pipe.send_bytes(_plain(message))

    def close(self) -> None:
        self._end()


def _end(pipe: Connection, process: Any) -> None:
    pipe.close()
    process.join()


def _serve(pipe: Connection, threads: int) -> None:
    """What a child does, until its parent is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    disable_trim()
    held: dict[int, Any] = {}
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            method, name, *arguments = pickle.loads(pipe.recv_bytes())
            try:
                if method == "hold":
                    held[name] = pickle.loads(pipe.recv_bytes())
                    outcome = None
                else:
                    outcome = getattr(held[name], method)(*arguments)
                answer = _plain(outcome)
            except Exception as error:
                answer = _plain(_portable(error))
            pipe.send_bytes(answer)


def _portable(error: Exception) -> Exception:
    """The error, if it can be sent, with the place where it was raised."""
    where = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"in a worker process: {where}")
    error.add_note(f"raised in a worker process:\n{where}")
    return error


class _Plain(pickle.Pickler):
    """Tensors by value, as arrays: quick for the small ones that calls are made of."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor) and obj.dtype != torch.bfloat16:
            return torch.from_numpy, (obj.detach().cpu().numpy(),)
        return NotImplemented


def _plain(message: Any) -> bytes:
    buffer = io.BytesIO()
    _Plain(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()
