"""One worker process of a reward, from its start to its end.

A thread cannot be stopped, an alarm signal does not interrupt a loop in C, and a fork of a process with torch's threads
may deadlock. So the worker is a fresh interpreter; it is reused from call to call, and killed at the deadline with all
processes that it started: `outdo.rewards.worker` decides that, and `outdo.utils.child` does it.
"""

import json
import os
import pickle
import signal
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

from outdo.rewards.limits import WorkerLimits, worker_environment
from outdo.rewards.worker_output import WorkerOutput
from outdo.utils.child import Child, ChildLostError
from outdo.utils.errors import UserError

IMPORT_DEADLINE = 120.0
"""Seconds for starting the process and importing the user's file, which may import torch from a slow disk."""

REWARD = "outdo.rewards.worker_main"
"""What the worker of a reward runs."""

_MAX_READY_BYTES = 1 << 20
_SERVE = """
import importlib, json, sys
arguments, descriptor = json.loads(sys.argv[1]), int(sys.argv[2])
sys.path[:] = arguments.pop("path")
importlib.import_module(arguments.pop("module")).serve(descriptor, **arguments)
"""


class ProcessorTimeError(TimeoutError):
    """The call computed for longer than `WorkerLimits.processor_seconds`."""


class WorkerProcess(Child):
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
        self.answered = 0
        """The number of requests that were answered."""
        where = spec.rpartition(":")[0]
        first_on_path = [directory] * (not where.endswith(".py"))  # a package in the working directory is found
        arguments = {
            "path": first_on_path + [entry or directory for entry in sys.path],
            "memory": limits.memory_bytes,
            "module": module,
        }
        super().__init__(
            [sys.executable, "-u", "-P", "-c", _SERVE, json.dumps(arguments)],
            output.write,
            environment=worker_environment(os.environ, limits.environment),
            directory=directory,
        )
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
        except ChildLostError as error:
            self.kill()
            raise UserError([f"{where}: importing it ended the worker: {error}"]) from None
        if "mistakes" in self.ready:
            self.kill()
            raise UserError([str(mistake) for mistake in self.ready["mistakes"]])
        self.answered = 0

    def request(self, body: bytes, timeout: float, max_bytes: int) -> dict[str, Any]:
        """Send a request and wait for its response, both together for at most `timeout` seconds.

        Raises:
            TimeoutError: that was not long enough.
            ChildLostError: the process has ended, or it sent something else than one JSON object of at most
                `max_bytes` for this request.
        """
        deadline = monotonic() + timeout
        if self.is_readable(0) and self.alive:
            raise ChildLostError("it sent something before it received the request")
        try:
            nonce = self.send(body, deadline)
            _, response = self.receive(deadline, max_bytes, only=nonce)
        except ChildLostError as error:
            if error.status == -signal.SIGPROF:
                raise ProcessorTimeError from None
            raise
        self.show_prints()
        self.answered += 1
        return response
