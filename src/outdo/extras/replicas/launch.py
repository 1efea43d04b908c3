"""Start the replicas of a run on this machine, end all of them when one ends, and start them again after a fault."""

import contextlib
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outdo.utils.child import continue_when_closed, kill_group
from outdo.utils.errors import MachineError, OutdoError, WorkerError
from outdo.utils.world import FOLDER, LAUNCHER

RENDEZVOUS = "OUTDO_RENDEZVOUS"
"""The environment variable with the address at which the replicas meet; without it they use torchrun's variables."""

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
"""The network interface that only this machine reaches."""

REMOVALS = 20
"""How often the last replica tries to remove the folder of a launcher that was killed, ten times a second."""

PATIENCE = 30.0
"""Seconds that the first replica has to save the last finished step after another one has ended."""

GRACE = 5.0
"""Seconds that the other replicas, and then the processes that they have started, have to end after the first one."""

POLL = 0.1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often, and how, replicas are started again after a fault of the machine."""

    times: int  # while `progress()` stays the same
    arguments: Callable[[], Sequence[str]]  # with which `outdo` goes on with what the first start began
    progress: Callable[[], int]
    say: Callable[[str], None]


def launch(count: int, arguments: Sequence[str], restarts: Restarts | None = None) -> int:
    """Run `python -m outdo <arguments>` as `count` replicas; return the exit status of the first one.

    The first replica prints and gets this process's signals. The others print only what they failed of. When one
    replica ends before the others, they are ended too, with the processes that they have started.

    If a fault of the machine ends them, they are started again as `restarts` allows. Restarts are counted anew after
    progress: a run that gets on may meet any number of faults, and one that fails at the same step each time ends.

    Raises: OutdoError with the error of another replica than the first; WorkerError if it is a fault of the machine.
    """
    with _signals() as signals:
        ending = _run_once(count, arguments, signals)
        used, reached = 0, restarts.progress() if restarts else 0
        while restarts and ending.is_machine_fault and not signals.received:
            if (now := restarts.progress()) > reached:
                used, reached = 0, now
            if used == restarts.times:
                break
            used += 1
            restarts.say(f"{ending.summary}; starting again from the newest checkpoint ({used} of {restarts.times})")
            ending = _run_once(count, restarts.arguments(), signals)
    if signals.received:
        return 128 + signals.received[0] if ending.died else ending.status
    if ending.error:
        raise (WorkerError if ending.is_machine_fault else OutdoError)(ending.error)
    return ending.status


def _remove(folder: Path) -> None:
    """Remove a folder in which other replicas, and the main thread of this one, may still write for a moment."""
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def end_with_launcher() -> None:
    """End this process when its launcher ends, and leave signals to the first replica. Call it once, early."""
    if (descriptor := os.environ.pop(LAUNCHER, None)) is None:
        return

    if sys.platform == "linux":  # a descriptor that the other replicas do not share
        descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    pipe, folder = int(descriptor), Path(os.environ[FOLDER])
    continue_when_closed(pipe)
    _keep_sockets_in(folder)

    def watch() -> None:
        os.read(pipe, 1)  # nothing is ever written: it returns when the other end is closed
        _remove(folder)  # a launcher that was killed has not removed it
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if int(os.environ.get("RANK", 0)):
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN)


def _keep_sockets_in(folder: Path) -> None:
    """Let `multiprocessing` use this folder for its sockets, in place of a new one of this process.

    A process that is killed removes nothing, and the processes that it has started may not run yet, or be killed too.
    """
    config = getattr(multiprocessing.current_process(), "_config", None)  # Python has no public name for it
    assert config is not None
    config["tempdir"] = str(folder)


class _Signals:
    """The signals that this process has received. The first replica gets each of them."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._first: subprocess.Popen[bytes] | None = None

    def receive(self, number: int, frame: object = None) -> None:
        self.received.append(number)
        if self._first is not None:
            self._first.send_signal(number)

    def pass_on_to(self, first: "subprocess.Popen[bytes]") -> None:
        """Send the first replica what comes, and what came while it was started."""
        self._first = first
        for number in self.received:
            first.send_signal(number)


@contextmanager
def _signals() -> Iterator[_Signals]:
    """Receive signals inside a `with` block. One that is ignored, as by nohup, stays ignored."""
    signals = _Signals()
    before = {number: signal.getsignal(number) for number in FORWARDED}
    for number in FORWARDED:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, signals.receive)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the replicas ended."""

    status: int  # the exit status of the command
    cause: str = ""  # which replica failed first, and how
    details: str = ""  # what it wrote, unless it was the first one: that has printed it
    died: bool = False  # it has printed no error

    @property
    def is_machine_fault(self) -> bool:
        return self.status == MachineError.exit_status

    @property
    def summary(self) -> str:
        """Return the cause, with the error that the replica has printed last."""
        return ": ".join([self.cause, *([] if self.died else self.details.splitlines()[-1:])])

    @property
    def error(self) -> str:
        """Return what the user has not read yet."""
        return ":\n".join(filter(None, [self.cause, self.details])) if self.details or self.died else ""


def _run_once(count: int, arguments: Sequence[str], signals: _Signals) -> _Ending:
    replicas: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="outdo-") as name, _pipe() as (reading, _):
        folder = Path(name)
        try:
            for rank in range(count):
                replicas.append(_start(rank, count, arguments, folder, reading))
                signals.pass_on_to(replicas[0])
            _wait(replicas)
            return _ending([replica.poll() for replica in replicas], folder)
        finally:
            for replica in replicas:
                replica.kill()
            for replica in replicas:
                _end_group(replica)


def _start(rank: int, count: int, arguments: Sequence[str], folder: Path, launcher: int) -> "subprocess.Popen[bytes]":
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    environment = {
        "GLOO_SOCKET_IFNAME": LOOPBACK,  # listen on this machine only
        **os.environ,
        **({name: str(number) for name, number in numbers.items()} if count > 1 else {}),
        RENDEZVOUS: (folder / "rendezvous").as_uri(),
        FOLDER: str(folder),
        LAUNCHER: str(launcher),
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


def _wait(replicas: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Wait until all replicas have ended, or until the time of those that are left is over."""
    deadline = math.inf
    while replicas[0].poll() is None and time.monotonic() < deadline:
        if deadline == math.inf and any(replica.poll() for replica in replicas[1:]):
            deadline = time.monotonic() + PATIENCE
        time.sleep(POLL)
    _until(lambda: all(replica.poll() is not None for replica in replicas))


def _ending(statuses: Sequence[int | None], folder: Path) -> _Ending:
    """Return how replicas ended, by their exit statuses: minus the signal that killed one, None of one that hangs."""
    if statuses[0] == 0:  # the others have nothing left to do
        return _Ending(0)
    blamed = min((status for status in statuses if status != 0), key=_place)
    rank = statuses.index(blamed)
    name = f"replica {rank} of {len(statuses)}" if len(statuses) > 1 else "the run"
    details = _errors(folder, rank).read_text(errors="replace").strip() if rank else ""
    return _Ending(
        status=blamed if blamed is not None and blamed > 0 else MachineError.exit_status,
        cause=f"{name} {_how_it_ended(blamed)}",
        details=details,
        died=blamed is None or blamed < 0,
    )


def _place(status: int | None) -> int:
    """Return the place of an exit status among those that name the cause: an error of another kind than the machine's,
    a process that was killed, one that hangs, and last the errors that follow from these."""
    if status is None:
        return 2
    return 1 if status < 0 else 3 * (status == MachineError.exit_status)


def _how_it_ended(status: int | None) -> str:
    if status is None:
        return "does not answer"
    return f"ended with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"


def _end_group(replica: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a replica that was killed, and of the processes that it has started; kill those that hang."""
    replica.wait()

    def ended() -> bool:
        try:
            os.killpg(replica.pid, 0)
        except (ProcessLookupError, PermissionError):  # macOS refuses a group of which no process is left
            return True
        return False

    if not _until(ended):
        kill_group(replica.pid)


def _until(happened: Callable[[], bool]) -> bool:
    """Wait at most `GRACE` seconds; return whether it has happened."""
    deadline = time.monotonic() + GRACE
    while not happened() and time.monotonic() < deadline:
        time.sleep(POLL)
    return happened()


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
