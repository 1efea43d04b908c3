"""Run a reward function in processes of its own, which can be killed: see `outdo.rewards.worker_process`."""

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import Any

from outdo.rewards.base import Reward
from outdo.rewards.limits import WorkerLimits
from outdo.rewards.options import SignatureKind
from outdo.rewards.right import verdicts_of_function
from outdo.rewards.signatures import score_all
from outdo.rewards.types import RewardInput, RewardOutput, Status, output_without_value, to_output
from outdo.rewards.worker_output import WorkerOutput
from outdo.rewards.worker_process import IMPORT_DEADLINE, ProcessorTimeError, WorkerProcess
from outdo.utils.child import ChildLostError
from outdo.utils.errors import RewardError, UserError
from outdo.utils.imports import names_of
from outdo.utils.secrets import redact
from outdo.utils.text import counted

MAX_CONSECUTIVE_CRASHES = 32
"""After so many completions in a row that each ended their worker, this worker tries no more of the same call."""

_MAX_RESPONSE_BYTES = 4096
"""Per completion, and once more: enough for a status, a number and a reason of 300 characters."""
_GRACE = 1.0
"""Seconds by which the worker itself may be late in ending calls that run concurrently."""


class WorkerReward(Reward):
    """The reward `file.py:name` or `package.module:name`, run in worker processes.

    Each completion has a call, a deadline and a status of its own; if a call hangs or crashes, only its completion
    fails, and a fresh worker scores the next. A function that takes all completions at once has one deadline for that
    call: if it hangs, all have timed out; if it raises or crashes, they are retried one by one, so that only the faulty
    ones fail. What the function prints goes to stderr.

    Args:
        spec: `file.py:name` or `package.module:name`.
        name: the reward's name; by default that of the function.
        options: arguments that are the same for every completion.
        limits: what a worker may use.
        secrets: texts that must not appear in a reason or among the prints.
        sandbox: describes what runs the programs in completions; empty if the function runs none.

    Raises:
        UserError: the function cannot be imported, has none of the accepted signatures, or does not take the options.
        RewardError: the machine cannot start a process.
    """

    def __init__(
        self,
        spec: str,
        name: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        limits: WorkerLimits | None = None,
        secrets: Sequence[str] = (),
        sandbox: str = "",
    ) -> None:
        limits, options = limits or WorkerLimits(), options or {}
        self.spec = spec
        self._sandbox = sandbox
        self.name, self.source = (name, "") if name else names_of(spec)
        _check_options(options, self.name)
        self.verdicts = verdicts_of_function(self.name)
        self._lock = Lock()
        self._output = WorkerOutput(self.name, secrets)
        first = _Worker(spec, self.name, options, limits, self._output)
        try:
            ready = first.start()
        except OSError as error:
            raise RewardError(f"a worker process for the reward {spec} cannot be started: {error}") from error
        takes_batches = SignatureKind(ready["kind"]).takes_batches
        concurrent = ready["asynchronous"] and not takes_batches
        self._in_one_call = ready["asynchronous"] or takes_batches
        self._retried = {Status.failed, Status.timed_out} if concurrent else {Status.failed}
        first.grace = _GRACE * concurrent
        further = 0 if self._in_one_call else (limits.workers or 1) - 1
        self._workers = [
            first,
            *(_Worker(spec, self.name, options, limits, self._output) for _ in range(further)),
        ]

    @property
    def has_numbers(self) -> bool:
        """Whether the function has returned a number so far."""
        return self.verdicts.has_numbers

    @property
    def sandboxes(self) -> Sequence[str]:
        """What runs the programs in completions, if the function runs some."""
        return (self._sandbox,) if self._sandbox else ()

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion.

        Raises:
            RewardError: a worker that had to be replaced does not start again.
        """
        with self._lock:
            self._output.restart()
            for worker in self._workers:
                worker.begin()
            try:
                outputs = score_all(
                    [worker.call for worker in self._workers],
                    inputs,
                    self.name,
                    in_one_call=self._in_one_call,
                    retry_one_by_one=lambda output: output.status in self._retried,
                    interrupt=self._interrupt,
                )
            except BaseException:
                self.close()
                raise
        return self.verdicts.settled(outputs)

    @property
    def progress(self) -> int:
        """A number that changes while completions are scored: how many calls of the function have ended."""
        return sum(worker.calls for worker in self._workers)

    @property
    def patience(self) -> float:
        """Seconds in which a call of the function ends: it may be tried twice, each time in a new worker."""
        first = self._workers[0]
        return 2 * (first.limits.timeout + first.grace + IMPORT_DEADLINE)

    def close(self) -> None:
        """Kill the workers. A call in another thread ends, and starts none again."""
        self._interrupt()
        for worker in self._workers:
            worker.kill()

    def _interrupt(self) -> None:
        for worker in self._workers:
            worker.interrupt()


class _Worker:
    """A worker process, replaced whenever it hangs, ends, or sends what nothing requested."""

    def __init__(
        self, spec: str, name: str, options: Mapping[str, Any], limits: WorkerLimits, output: WorkerOutput
    ) -> None:
        self.name = name
        self.limits = limits
        self.grace = 0.0
        self.calls = 0
        self._spec = spec
        self._options = options
        self._output = output
        self._directory = os.getcwd()  # `spec` is relative to it, also for a process started later
        self._process: WorkerProcess | None = None
        self._consecutive_crashes = 0
        self._interrupted = False

    def start(self) -> dict[str, Any]:
        """Start the process, and return what it reports of the function.

        Raises:
            UserError: the function cannot be used.
            OSError: the process cannot be started.
        """
        self._process = WorkerProcess(self._spec, self._options, self.limits, self._directory, self._output)
        return self._process.ready

    def begin(self) -> None:
        """Forget how the last call of the reward ended."""
        self._consecutive_crashes = 0
        self._interrupted = False

    def interrupt(self) -> None:
        """End a call that runs in another thread, and start no process for it."""
        self._interrupted = True
        if (process := self._process) is not None:
            process.interrupt()

    def kill(self) -> None:
        """Kill the process; the next call starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def call(self, inputs: Sequence[RewardInput], deadline: float) -> list[RewardOutput] | RewardOutput:
        """Score completions in one call of the function: one output for each, or a failure of the call."""
        try:
            return self._call(inputs, deadline)
        finally:
            self.calls += 1

    def _call(self, inputs: Sequence[RewardInput], deadline: float) -> list[RewardOutput] | RewardOutput:
        if self._consecutive_crashes >= MAX_CONSECUTIVE_CRASHES:
            reason = f"not tried: each of the {MAX_CONSECUTIVE_CRASHES} completions before it ended the worker"
            return self._failure(Status.failed, reason)
        try:
            request = pickle.dumps(list(inputs))
        except Exception as error:
            return self._failure(Status.failed, f"a column cannot be sent to the worker: {error}")
        outputs = self._try(request, inputs, deadline)
        if outputs is None:  # what an earlier call left running may have ended the worker or written to its socket
            outputs = self._try(request, inputs, deadline)
            assert outputs is not None
        return outputs

    def _try(
        self, request: bytes, inputs: Sequence[RewardInput], deadline: float
    ) -> list[RewardOutput] | RewardOutput | None:
        """Score completions; return None if the worker ended and had answered other calls before."""
        try:
            process = self._running()
        except OSError as error:
            return self._failure(Status.unavailable, f"a worker process cannot be started: {error}")
        used, remaining = process.answered > 0, deadline - monotonic()
        timeout = min(self.limits.timeout + self.grace, remaining)
        try:
            response = process.request(request, timeout, _MAX_RESPONSE_BYTES * (len(inputs) + 1))
            outputs = self._parse_response(response, inputs)
        except TimeoutError as error:
            failure = self._failure(Status.timed_out, self._reason(error, in_time=timeout < remaining))
        except ChildLostError as error:
            failure = None if used else self._failure(Status.failed, f"{self.name} ended the worker: {error}")
        else:
            self._consecutive_crashes = 0
            return outputs
        self._consecutive_crashes += failure is not None
        self.kill()
        return failure

    def _running(self) -> WorkerProcess:
        """Return the process, or a new one if the last was killed or ended by itself between two calls."""
        if self._process is None or not self._process.alive:
            self.kill()
            if self._interrupted:
                raise RewardError(f"the reward {self._spec} was interrupted")
            try:
                self.start()
            except UserError as error:
                raise RewardError(f"the worker of the reward {self._spec} does not start again: {error}") from error
        assert self._process is not None
        return self._process

    def _parse_response(
        self, response: Mapping[str, Any], inputs: Sequence[RewardInput]
    ) -> list[RewardOutput] | RewardOutput:
        """Check every field: the user's code ran in the worker, so its response is not trusted."""
        try:
            if "raised" in response:
                status, reason = response["raised"]
                return self._parse_output(None, status, reason, None)
            outputs = [self._parse_output(*fields) for fields in response["outputs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ChildLostError("its response has no valid outputs") from error
        if len(outputs) != len(inputs):
            raise ChildLostError(f"it sent {counted(len(outputs), 'output')} for {counted(len(inputs), 'completion')}")
        return outputs

    def _parse_output(self, value: object, status: object, reason: object, right: object) -> RewardOutput:
        status = Status(status)
        if status is Status.ok:
            return replace(to_output(value, self.name), right=right if isinstance(right, bool) else None)
        return self._failure(status, str(reason))

    def _reason(self, error: TimeoutError, *, in_time: bool) -> str:
        if isinstance(error, ProcessorTimeError):
            return f"{self.name} computed for more than {self.limits.processor_seconds:g} s"
        if in_time:
            return f"{self.name} had no answer after {self.limits.timeout:g} s"
        return "the time for the rewards of this step was used up"

    def _failure(self, status: Status, reason: str) -> RewardOutput:
        return output_without_value(status, redact(reason, self._output.secrets), self.name)


def _check_options(options: Mapping[str, Any], name: str) -> None:
    try:
        pickle.dumps(dict(options))
    except Exception as error:
        raise UserError([f"the reward {name}: its options cannot be sent to its worker: {error}"]) from None
