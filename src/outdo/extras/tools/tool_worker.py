"""Call a function of the user in worker processes, which can be killed: see `outdo.rewards.worker_process`.

A function that hangs, uses up its memory or crashes then ends its call, and neither the run nor another call.
"""

import pickle
from functools import cache, partial
from threading import Condition
from typing import Any

from outdo.extras.episodes.tools import LateError, ToolError
from outdo.extras.tools import tool_worker_main
from outdo.rewards.limits import WorkerLimits
from outdo.rewards.worker_output import WorkerOutput
from outdo.rewards.worker_process import WorkerProcess
from outdo.utils.child import ChildLostError
from outdo.utils.errors import MachineError, UserError
from outdo.utils.imports import names_of

START_AFTER = 0.25
"""Seconds after which a call that finds no free process starts another one: short calls need no more than one."""

_MOST_BYTES = 16 * tool_worker_main.MOST_CHARACTERS
"""Of a response: more than JSON takes for a result."""


class ToolWorkers:
    """The function `file.py:name` or `package.module:name`, called in at most `limits.workers` processes.

    A process makes one call at a time, and is reused. `directory` is where relative paths begin.

    Raises:
        UserError: the function cannot be imported.
        MachineError: no process can be started.
    """

    def __init__(self, spec: str, directory: str, limits: WorkerLimits) -> None:
        self.name, _ = names_of(spec)
        self.limits = limits
        self._most = limits.workers or 1
        self._output = WorkerOutput(self.name)
        self._start = partial(
            WorkerProcess, spec, {}, limits, directory, self._output, module=tool_worker_main.__name__
        )
        self._changed = Condition()
        self._running = 1
        self._idle = [self._started()]

    def call(self, /, **arguments: Any) -> str:
        """Return the result of a call as text.

        Raises:
            ToolError: the function raised, or ended its process.
            LateError: it had no result within the deadline; its process is killed.
            MachineError: a process that had to be replaced does not start.
        """
        request = pickle.dumps(arguments)
        response = self._try(request)
        if response is None:  # what an earlier call left running may have ended the process
            response = self._try(request, in_new_process=True)
        match response:
            case {"text": str(text)}:
                return text
            case {"raised": str(raised)}:
                raise ToolError("raised", raised)
        raise ToolError("raised", f"{self.name} sent something else than its result")

    def close(self) -> None:
        """Kill the processes that make no call."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._running -= len(idle)
        for process in idle:
            process.kill()

    def _try(self, request: bytes, *, in_new_process: bool = False) -> dict[str, Any] | None:
        """Make a call; return None if it ended a process that had made others before."""
        process = self._take(in_new_process)
        used, is_reusable = process.answered > 0, False
        try:
            response = process.request(request, self.limits.timeout, _MOST_BYTES)
            is_reusable = True
        except TimeoutError:
            raise LateError(f"{self.name} had no result after {self.limits.timeout:g} s") from None
        except ChildLostError as error:
            if used:
                return None
            raise ToolError("raised", f"{self.name} ended its process: {error}") from None
        finally:
            self._give_back(process, is_reusable)
        return response

    def _take(self, in_new_process: bool) -> WorkerProcess:
        """Return a process that makes no call: one that is there, or soon free, or a new one."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or not self._running, timeout=START_AFTER)
            self._changed.wait_for(lambda: self._idle or self._running < self._most)
            if self._idle:
                process = self._idle.pop()  # the one that was used last
                if process.alive and not in_new_process:
                    return process
                process.kill()
            else:
                self._running += 1
        try:
            return self._started()
        except UserError as error:
            self._forget()
            raise MachineError(f"the worker of the tool {self.name} does not start again: {error}") from error
        except BaseException:
            self._forget()
            raise

    def _give_back(self, process: WorkerProcess, is_reusable: bool) -> None:
        if not is_reusable:
            process.kill()
            self._forget()
            return
        with self._changed:
            self._idle.append(process)
            self._changed.notify()

    def _forget(self) -> None:
        """Give the place of a process to another one."""
        with self._changed:
            self._running -= 1
            self._changed.notify()

    def _started(self) -> WorkerProcess:
        try:
            return self._start()
        except OSError as error:
            raise MachineError(f"a worker process for the tool {self.name} cannot be started: {error}") from error


@cache
def open_workers(spec: str, directory: str, limits: WorkerLimits) -> ToolWorkers:
    """Return the workers of a function; they run until this process ends. Raises as `ToolWorkers`."""
    return ToolWorkers(spec, directory, limits)
