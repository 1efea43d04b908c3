"""Start the replicas of a run on this machine, and end all of them when one ends."""

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outdo.utils.errors import OutdoError, UserError

RENDEZVOUS = "OUTDO_RENDEZVOUS"
"""The environment variable with the address at which the replicas meet; without it they use torchrun's variables."""

FOLDER = "OUTDO_LAUNCHER_FOLDER"
"""The environment variable with the launcher's folder for temporary files, which ends with it."""

LAUNCHER = "OUTDO_LAUNCHER"
"""The environment variable with the descriptor of a pipe that is closed when the launcher ends, however it ends."""

PATIENCE = 30.0
"""Seconds that the first replica has to save the last finished step after another one has ended."""

POLL = 0.1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def started_replicas() -> int:
    """Return how many replicas this process was started as one of, by outdo or torchrun; 1 for a process alone."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else 1


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `python -m outdo <arguments>` as `count` replicas; return the exit status of the first one.

    The first replica prints and gets this process's signals. The others print only what they failed of. When one
    replica ends before the others, they are ended too.
    """
    with tempfile.TemporaryDirectory(prefix="outdo-replicas-") as folder, _pipe() as (reading, _):
        replicas = [_start(rank, count, arguments, Path(folder), reading) for rank in range(count)]
        with _forwarding_to(replicas[0]):
            try:
                return _wait(replicas, Path(folder))
            finally:
                for replica in replicas:
                    replica.kill()
                    replica.wait()


def end_with_launcher() -> None:
    """End this process when its launcher ends, and leave signals to the first replica. Call it once, early."""
    if (descriptor := os.environ.pop(LAUNCHER, None)) is None:
        return

    folder = Path(os.environ[FOLDER])

    def watch() -> None:
        os.read(int(descriptor), 1)  # nothing is ever written: it returns when the other end is closed
        shutil.rmtree(folder, ignore_errors=True)  # a launcher that was killed has not removed it
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if int(os.environ["RANK"]):
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN)


def _start(rank: int, count: int, arguments: Sequence[str], folder: Path, launcher: int) -> "subprocess.Popen[bytes]":
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, LAUNCHER: launcher}
    environment = {
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",  # listen on this machine only
        **os.environ,
        **{name: str(number) for name, number in numbers.items()},
        RENDEZVOUS: (folder / "rendezvous").as_uri(),
        FOLDER: str(folder),
    }
    with contextlib.ExitStack() as files:
        errors = files.enter_context(_errors(folder, rank).open("wb")) if rank else None
        return subprocess.Popen(
            [sys.executable, "-m", "outdo", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if rank else None,
            stderr=errors,
            pass_fds=(launcher,),
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on
        )


def _wait(replicas: "Sequence[subprocess.Popen[bytes]]", folder: Path) -> int:
    """Wait for the end of the first replica, and return its exit status.

    Raises: OutdoError with the error of another replica, unless all of them found the same mistake in the input.
    """
    first, lost, deadline = replicas[0], None, math.inf
    while first.poll() is None and time.monotonic() < deadline:
        if lost is None and (lost := _failed(replicas[1:])) is not None:
            deadline = time.monotonic() + PATIENCE
        time.sleep(POLL)
    lost = lost or _failed(replicas[1:], killed=True)  # a moment before the first one ended
    if lost is not None and not first.returncode == lost.returncode == UserError.exit_status:
        rank, why = replicas.index(lost), _ending(lost.returncode)
        text = _errors(folder, rank).read_text(errors="replace").strip()
        raise OutdoError(f"replica {rank} of {len(replicas)} {why}" + (f":\n{text}" if text else ""))
    return first.returncode if first.returncode >= 0 else 128 - first.returncode


def _failed(replicas: "Sequence[subprocess.Popen[bytes]]", *, killed: bool = False) -> "subprocess.Popen[bytes] | None":
    """Return a replica that has ended with an error, or, with `killed`, by a signal."""
    ended = [each for each in replicas if each.poll()]
    return next((each for each in ended if not killed or each.returncode < 0), None)


def _ending(status: int) -> str:
    return f"ended with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"


def _errors(folder: Path, rank: int) -> Path:
    return folder / f"errors-{rank}"


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextmanager
def _forwarding_to(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass signals on to a process. One that is ignored, as by nohup, stays ignored."""
    before = {number: signal.getsignal(number) for number in FORWARDED}
    for number in FORWARDED:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: process.send_signal(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
