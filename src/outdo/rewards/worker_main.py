"""The worker process: imports the user's file, then answers requests until its parent goes away.

Requests come from the parent, which is trusted, as pickles (a column may hold a date); answers go back as JSON, for
what runs here is not trusted. Both are preceded by their length.
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

from outdo.rewards.signatures import Adapted, adapt, failure
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve

LENGTH = struct.Struct("!Q")
PR_SET_PDEATHSIG = 1


def serve(descriptor: int, parent: int, spec: str, options: str, timeout: float) -> None:
    """Answer the requests that come over the socket `descriptor` with the function that `spec` names.

    `options` are those of `adapt`, pickled, in hexadecimal.
    """
    _die_with(parent)
    os.set_inheritable(descriptor, False)  # a process that the user's function starts must not hold the line open
    with socket.socket(fileno=descriptor) as line:
        try:
            chosen = pickle.loads(bytes.fromhex(options))
            adapted = adapt(load_function(spec), spec.rpartition(":")[2], options=chosen, timeout=timeout)
        except UserError as mistakes:
            return _send(line, {"mistakes": mistakes.problems})
        _send(line, {"convention": adapted.convention, "asynchronous": adapted.asynchronous})
        requests = line.makefile("rb")
        while header := requests.read(LENGTH.size):
            _send(line, _answer(adapted, requests.read(*LENGTH.unpack(header))))


def load_function(spec: str) -> Any:
    """Import what `file.py:name` or `package.module:name` names.

    Raises:
        UserError: the import raised, or there is no such name; with the file and line, or the nearest name.
    """
    try:
        return resolve(spec)
    except UserError as mistakes:
        if mistakes.__cause__ is None:
            raise
        raise UserError(
            [f"{_place(mistakes.__cause__, spec.rpartition(':')[0])}: {_said(mistakes.__cause__)}"]
        ) from None


def _answer(adapted: Adapted, request: bytes) -> dict[str, Any]:
    try:
        scored = adapted.call(pickle.loads(request))
    except (Exception, SystemExit) as error:
        return {"raised": failure(error, adapted.name).reason}
    return {"scored": [[one.value, one.verdict, one.reason] for one in scored]}


def _place(error: BaseException, where: str) -> str:
    """The line of the user's file at which its import failed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(Path(where).resolve())]
    return f"{where}, line {lines[-1]}" if lines else where


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"


def _die_with(parent: int) -> None:
    """Have Linux kill this process when its parent ends, whatever it is doing; elsewhere it ends after its call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):  # where memory runs out, end this process and not the trainer
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        os._exit(1)


def _send(line: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    line.sendall(LENGTH.pack(len(body)) + body)
