"""A launcher whose replicas are forks of itself: it has torch and transformers loaded, as its fork server had."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import outdo.cli.main
from outdo.extras.replicas import launch

FORK = multiprocessing.get_context("fork")


def main() -> None:
    """`outdo`, which forks where it would start `python -m outdo`; the `main` of a `Command`."""
    launch.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]
    outdo.cli.main.main()


class Forked:
    """What the launcher needs of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: int | None,
        stderr: IO[bytes] | None,
        pass_fds: tuple[int],
        start_new_session: bool,
    ) -> None:
        assert command[1:3] == ["-m", "outdo"]
        assert start_new_session
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        files = (stdin, stdout, stderr.fileno() if stderr else None)
        self.process = FORK.Process(target=_replica, args=(command[3:], env, files, *pass_fds))
        self.process.start()
        assert self.process.pid
        self.pid: int = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> None:
        self.process.join()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()


def _replica(arguments: list[str], env: Mapping[str, str], files: Sequence[int | None], launcher: int) -> None:
    os.setsid()
    for number in launch.FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    for standard, file in enumerate(files):
        if file is not None:
            os.dup2(os.open(os.devnull, os.O_RDWR) if file == subprocess.DEVNULL else file, standard)
    pipe = os.readlink(f"/proc/self/fd/{launcher}")
    for each in map(int, os.listdir("/proc/self/fd")):  # a new program has no other end of the launcher's pipe
        if each != launcher and Path(f"/proc/self/fd/{each}").exists() and os.readlink(f"/proc/self/fd/{each}") == pipe:
            os.close(each)
    sys.argv = ["outdo", *arguments]
    outdo.cli.main.main()


def replicas_of(launcher: int) -> list[int]:
    """The replicas of a launcher, by their ranks."""
    return [int(each) for each in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
