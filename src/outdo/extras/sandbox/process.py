"""Run a program in an interpreter of its own: its input, its limits, what it prints, and how it ends.

`bubblewrap` puts this interpreter into a sandbox, and with `landlock` it puts itself into one. Alone it only stops
accidents (`local`).
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait  # `select.select` takes no descriptor above 1023
from time import monotonic

from outdo.extras.sandbox.base import Ending, Limits, Outcome

if sys.platform != "win32":
    import resource

ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""All environment variables of a program. With this one, sets of texts have the same order in each run."""

_STARTED = b"\x00started\n"
"""The interpreter prints this to stderr before the program begins. If it is missing, the program did not run at all."""

_BOOTSTRAP = """
def _start():
    import os, resource, sys
    del globals()["_start"]
    for kind, limit in {limits}.items():
        resource.setrlimit(kind, (limit, limit))
    with open({source!r}, "rb") as file:
        source = file.read()
    sys.argv[:] = ["program.py"]
    exec({before!r}, {{}})
    os.write(2, {started})
    return compile(source, "program.py", "exec")
exec(_start())
"""

_COMMAND_BOOTSTRAP = """
import json, os, resource
with open({files}, "rb") as file:
    files = json.load(file)
for path, text in files.items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chmod(path, 0o755)
os.makedirs({folder!r}, exist_ok=True)
os.chdir({folder!r})
for kind, limit in {limits}.items():
    resource.setrlimit(kind, (limit, limit))
os.write(2, {started})
os.execve({command!r}[0], {command!r}, {environment!r})
"""

_KILLED = 128 + 9  # by SIGKILL
_OUT_OF_TIME = (_KILLED, 128 + 24)  # by SIGXCPU
_LAST_LINE = 200  # bytes of stderr in which the name of an exception is searched
_CHUNK = 1 << 16


def interpreter_arguments(
    source: str | int, limits: Limits, *, processes: int | None = None, before: str = ""
) -> list[str]:
    """Return the arguments with which a Python interpreter executes a file within `limits`.

    `source` is its path, or its descriptor, which is then closed.
    The program has the standard library and no installed package. `processes` limits the threads and processes of its
    user, which the kernel counts in each user namespace separately. The statements `before` run before the program,
    within its limits; an exception in them is a failure of the infrastructure.
    """
    rlimits = _rlimits(limits, processes)
    bootstrap = _BOOTSTRAP.format(limits=rlimits, source=source, before=before, started=_STARTED)
    return ["-S", "-s", "-B", "-c", bootstrap]


def command_arguments(
    command: Sequence[str], limits: Limits, *, environment: Mapping[str, str], folder: str, files: int
) -> list[str]:
    """Return the arguments with which a Python interpreter becomes a command within `limits`, in `folder`.

    `files` is a descriptor of JSON: texts by the absolute paths that they are written to before.
    """
    rlimits = _rlimits(limits, limits.threads, file_size=limits.output, open_files=256)
    bootstrap = _COMMAND_BOOTSTRAP.format(
        files=files,
        folder=folder,
        limits=rlimits,
        started=_STARTED,
        command=[*command],
        environment={**environment},
    )
    return ["-S", "-s", "-B", "-c", bootstrap]


def _rlimits(limits: Limits, processes: int | None, *, file_size: int = 0, open_files: int = 64) -> dict[int, int]:
    rlimits = {
        resource.RLIMIT_AS: limits.memory << 20,
        resource.RLIMIT_CPU: limits.seconds,
        resource.RLIMIT_FSIZE: file_size,
        resource.RLIMIT_NOFILE: open_files,
        resource.RLIMIT_CORE: 0,
    }
    if processes is not None:
        rlimits[resource.RLIMIT_NPROC] = processes
    return rlimits


def shell_status(status: int) -> int:
    """Return the exit status of a program, 128 + n after signal n, from that of `subprocess`, -n."""
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yield a descriptor at the start of a file in memory that has this content."""
    with open(os.memfd_create("outdo"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def execute(
    command: Sequence[str],
    stdin: str,
    limits: Limits,
    *,
    descriptors: Sequence[int],
    user: int | None = None,
    kill: Callable[[int], None],
    exit_status: Callable[[int], int | None],
) -> Outcome:
    """Run a command whose last arguments are those of one of the two functions above, and return how it ended.

    Args:
        command: the program and its arguments; of this process it gets the descriptors and no environment.
        stdin: its input.
        limits: what it may print, and how long it may take by the clock; the interpreter keeps the other limits.
        descriptors: descriptors that it inherits.
        user: the user id that it gets; `None`: that of this process.
        kill: kills the process of the given id with everything that it started.
        exit_status: returns the exit status of the program from that of the command; `None` if there is none.
    """
    with memory_file(stdin.encode(errors="replace")) as source:
        try:
            popen = subprocess.Popen(
                command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=descriptors,
                env=ENVIRONMENT,
                cwd="/",
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else (),
            )
        except OSError as error:
            return Outcome(ending=Ending.infrastructure, stderr=f"{command[0]} cannot be started: {error}")
    with popen:
        ending, stdout, stderr = _collect(popen, limits, kill)
        _, wait_status, usage = os.wait4(popen.pid, 0)
        popen.returncode = os.waitstatus_to_exitcode(wait_status)
    before, started, stderr = stderr.partition(_STARTED)
    if not started:
        return Outcome(ending=Ending.infrastructure, stderr=f"the interpreter did not start: {_text(before)}")
    seconds = usage.ru_utime + usage.ru_stime
    status = exit_status(popen.returncode) if ending is Ending.exited else None
    if ending is Ending.exited:
        ending = _ending(status, seconds, stderr, limits)
    return Outcome(ending=ending, stdout=_text(stdout), stderr=_text(stderr), exit_status=status, seconds=seconds)


def _collect(
    popen: "subprocess.Popen[bytes]", limits: Limits, kill: Callable[[int], None]
) -> tuple[Ending, bytes, bytes]:
    """Return why the process was killed, or that it exited, and what it printed. It is not reaped yet."""
    assert popen.stdout is not None
    assert popen.stderr is not None
    printed = {popen.stdout.fileno(): bytearray(), popen.stderr.fileno(): bytearray()}
    unfinished, deadline = set(printed), monotonic() + limits.wall_seconds
    ended = os.pidfd_open(popen.pid)
    try:
        while True:
            readable = wait([ended, *unfinished], max(0.0, deadline - monotonic()))
            unfinished -= {
                stream for stream in unfinished if not _read_available(stream, printed[stream], limits.output)
            }
            if any(len(text) > limits.output for text in printed.values()):
                ending = Ending.resource
            elif ended in readable:  # so everything that it printed was in the pipes
                ending = Ending.exited
            elif monotonic() >= deadline:  # also if it never stops to print
                ending = Ending.timeout
            else:
                continue
            stdout, stderr = (bytes(text[: limits.output]) for text in printed.values())
            return ending, stdout, stderr
    finally:
        kill(popen.pid)
        os.close(ended)


def _read_available(stream: int, into: bytearray, most: int) -> bool:
    """Read what is in a pipe, but stop beyond `most` bytes in all; return False at the end of the stream."""
    os.set_blocking(stream, False)
    with contextlib.suppress(BlockingIOError):
        while len(into) <= most:
            chunk = os.read(stream, _CHUNK)
            if not chunk:
                return False
            into += chunk
    return True


def _ending(exit_status: int | None, seconds: float, stderr: bytes, limits: Limits) -> Ending:
    """Return how a program ended that was not killed from outside; `exit_status` is `None` if the sandbox was lost."""
    if exit_status is None:
        return Ending.infrastructure
    if exit_status in _OUT_OF_TIME and seconds > limits.seconds - 0.5:  # the kernel counts in ticks
        return Ending.timeout
    if exit_status == _KILLED or (exit_status != 0 and b"MemoryError" in stderr[-_LAST_LINE:]):
        return Ending.resource
    return Ending.exited


def _text(printed: bytes) -> str:
    return printed.decode(errors="replace")
