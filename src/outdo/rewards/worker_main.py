"""The worker process: it imports the user's file, then answers requests until its parent ends.

Requests are pickles, because a column may hold a date, and the parent is trusted. Responses are JSON, because the code
that runs here is not trusted. The first request names the function and its options.
"""

import contextlib
import json
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from outdo.rewards.failures import output_of_error
from outdo.rewards.limits import limit_resources
from outdo.rewards.signatures import RewardFunction, wrap_function
from outdo.utils.child import HEADER, pack
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve

Respond = Callable[[bytes], dict[str, Any]]
"""Makes the response to a request."""

Load = Callable[[bytes], tuple[Respond | None, float | None, dict[str, Any]]]
"""Makes of the first request what answers the next ones, the limit of each in seconds of computing, and a response."""


def serve(descriptor: int, memory: int, *, load: Load | None = None) -> None:
    """Answer the requests on the socket `descriptor`; `memory` is the most that this process may use, in bytes.

    `load` imports the user's code; by default, that of a reward.
    """
    load = load or _load
    limit_resources(memory)
    os.set_inheritable(descriptor, False)  # a process that the user's function starts must not keep the socket open
    own_id = os.getpid()
    with socket.socket(fileno=descriptor) as connection:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.register_at_fork(after_in_child=lambda: os.dup2(nowhere, descriptor, inheritable=False))
        requests = connection.makefile("rb")
        respond, processor_seconds = None, None
        while header := requests.read(HEADER.size):
            size, nonce = HEADER.unpack(header)
            request = requests.read(size)
            if respond is None:
                respond, processor_seconds, response = load(request)
            else:
                with _processor_limit(processor_seconds):
                    response = respond(request)
            if os.getpid() != own_id:  # a fork that the function made and that came back here
                os._exit(1)
            connection.sendall(pack(nonce, json.dumps(response).encode()))


def _load(request: bytes) -> tuple[Respond | None, float | None, dict[str, Any]]:
    """Load the reward function that the request names."""
    try:
        setup = pickle.loads(request)
        spec, options, timeout = setup["spec"], setup["options"], setup["timeout"]
        function = wrap_function(load_function(spec), spec.rpartition(":")[2], options=options, timeout=timeout)
    except UserError as error:
        return None, None, {"mistakes": error.problems}
    ready = {"kind": function.kind, "asynchronous": function.asynchronous}
    return partial(_respond, function), setup["processor_seconds"], ready


@contextlib.contextmanager
def _processor_limit(seconds: float | None) -> Iterator[None]:
    """Let the kernel end this process after so many seconds of computing, also in the middle of a loop in C."""
    if seconds is None:
        yield
        return
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def load_function(spec: str) -> Any:
    """Import what `file.py:name` or `package.module:name` names.

    Raises:
        UserError: the import raised an exception (the message has its file and line), or there is no such name (the
            message offers the nearest one).
    """
    try:
        return resolve(spec)
    except UserError as error:
        if error.__cause__ is None:
            raise
        cause = error.__cause__
        raise UserError([f"{_location(cause, spec.rpartition(':')[0])}: {_message(cause)}"]) from None


def _respond(function: RewardFunction, request: bytes) -> dict[str, Any]:
    try:
        outputs = function.score(pickle.loads(request))
    except (Exception, SystemExit) as error:
        failure = output_of_error(error, function.name)
        return {"raised": [failure.status, failure.reason]}
    return {"outputs": [[output.value, output.status, output.reason, output.right] for output in outputs]}


def _location(error: BaseException, where: str) -> str:
    """Return the line of the user's file at which its import failed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(Path(where).resolve())]
    return f"{where}, line {lines[-1]}" if lines else where


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
