"""The worker process: it imports the user's file, then answers requests until its parent ends.

Requests are pickles, because a column may hold a date, and the parent is trusted. Responses are JSON, because the code
that runs here is not trusted. Both are preceded by their length.
"""

import contextlib
import ctypes
import json
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

from outdo.rewards.signatures import RewardFunction, output_of_error, wrap_function
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve

LENGTH = struct.Struct("!Q")
PR_SET_PDEATHSIG = 1


def serve(descriptor: int, parent: int, spec: str, options: str, timeout: float) -> None:
    """Answer the requests on the socket `descriptor` with the function that `spec` names.

    `options` are those of `wrap_function`, pickled, in hexadecimal.
    """
    _end_with(parent)
    os.set_inheritable(descriptor, False)  # a process that the user's function starts must not keep the socket open
    with socket.socket(fileno=descriptor) as connection:
        try:
            arguments = pickle.loads(bytes.fromhex(options))
            function = wrap_function(load_function(spec), spec.rpartition(":")[2], options=arguments, timeout=timeout)
        except UserError as error:
            return _send(connection, {"mistakes": error.problems})
        _send(connection, {"kind": function.kind, "asynchronous": function.asynchronous})
        requests = connection.makefile("rb")
        while header := requests.read(LENGTH.size):
            _send(connection, _respond(function, requests.read(*LENGTH.unpack(header))))


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
        return {"raised": output_of_error(error, function.name).reason}
    return {"outputs": [[output.value, output.status, output.reason, output.right] for output in outputs]}


def _location(error: BaseException, where: str) -> str:
    """Return the line of the user's file at which its import failed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(Path(where).resolve())]
    return f"{where}, line {lines[-1]}" if lines else where


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def _end_with(parent: int) -> None:
    """Make Linux kill this process as soon as its parent ends; on other systems it ends after its current call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):  # if memory runs out, Linux kills this process and not the trainer
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        os._exit(1)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(body)) + body)
