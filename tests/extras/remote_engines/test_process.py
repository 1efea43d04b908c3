"""A call of another process returns its own result, never that of an interrupted call or one that nobody requested."""

import ctypes
import gc
import multiprocessing.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from run_cases import alive, wait_for_end

import outdo
import outdo.extras.remote_engines.process
from outdo.extras.remote_engines.process import Process
from outdo.utils.errors import WorkerError
from outdo.utils.world import FOLDER


class Echo:
    """Returns its argument, after a delay or in an unusual way."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def echo(self, value: object, delay: float = 0.0) -> object:
        time.sleep(delay)
        self.calls.append(value)
        return value

    def hold_the_interpreter(self, value: object, seconds: float) -> object:
        """No other thread of the process can run meanwhile."""
        ctypes.PyDLL(None).sleep(int(seconds))
        return value

    def past(self) -> list[object]:
        return self.calls

    def deterministic(self) -> int:
        return torch.get_deterministic_debug_mode()

    def fork(self, value: object) -> object:
        return "the child's" if os.fork() == 0 else value

    def answer_twice(self, value: object, after: float) -> object:
        pipe = next(each for each in gc.get_objects() if type(each) is Connection)
        if after:
            threading.Timer(after, pipe.send_bytes, (b"unrequested",)).start()
        else:
            pipe.send_bytes(b"unrequested")
        return value


@contextmanager
def started() -> Iterator[Process]:
    process = Process(1)
    process.hold(0, Echo())
    yield process
    process.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Process]:
    """A process that each test leaves usable."""
    with started() as process:
        yield process


@pytest.fixture
def process() -> Iterator[Process]:
    """A process for one test to end."""
    with started() as process:
        yield process


def test_an_interrupted_call_does_not_answer_the_next_one(lasting: Process):
    lasting.call(0, "echo", ("first", 1.0))  # and its result is never received
    lasting.call(0, "echo", ("second",))
    assert lasting.result() == "second"


def test_a_computation_that_is_interrupted_leaves_the_process_usable(lasting: Process):
    lasting.call(0, "echo", ("first", 1.5))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        lasting.result()
    lasting.call(0, "echo", ("second",))
    assert lasting.result() == "second"


def test_finish_waits_for_a_call_that_was_interrupted(lasting: Process):
    lasting.call(0, "echo", ("first", 1.0))
    lasting.finish()
    lasting.call(0, "past", ())
    assert lasting.result()[-1] == "first"


def test_a_fork_that_comes_back_sends_nothing(lasting: Process):
    for value in range(20):
        lasting.call(0, "fork", (value,))
        assert lasting.result() == value


def test_an_answer_before_the_requested_one_is_an_error(process: Process):
    process.call(0, "answer_twice", ("mine", 0.0))
    result = process.result()
    assert isinstance(result, WorkerError)
    assert "belongs to another request" in str(result)


def test_an_answer_after_the_requested_one_is_an_error(process: Process):
    process.call(0, "answer_twice", ("mine", 0.5))
    assert process.result() == "mine"
    assert process._pipe.poll(600)
    with pytest.raises(WorkerError, match="nothing requested"):
        process.call(0, "echo", ("next",))


@pytest.mark.parametrize("where", ["sending", "receiving"])
def test_a_message_cut_off_by_an_interrupt_is_an_error_and_does_not_hang(
    process: Process, monkeypatch: pytest.MonkeyPatch, where: str
):
    def interrupted(*args: object) -> bytes:
        raise KeyboardInterrupt

    if where == "receiving":
        process.call(0, "echo", ("first",))
    act = (lambda: process.call(0, "echo", ("first",))) if where == "sending" else process.result
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send_bytes" if where == "sending" else "recv_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            act()
    assert isinstance(process.result(), WorkerError)
    with pytest.raises(WorkerError, match="interrupted"):
        process.call(0, "echo", ("second",))


# ------------------------------------------------------------------------------------------- errors and signals


def test_an_error_in_another_process_names_where_it_was_raised(lasting: Process):
    lasting.call(0, "echo", ())
    error = lasting.result()
    assert isinstance(error, TypeError)
    assert any("raised in a worker process" in note for note in error.__notes__)
    lasting.call(0, "echo", ("next",))
    assert lasting.result() == "next"


def test_an_object_that_cannot_be_sent_is_refused_with_a_way_out(lasting: Process):
    with pytest.raises(WorkerError, match=r"cannot be sent to a worker process: .*; .engine = .builtin.. needs none"):
        lasting.hold(1, lambda: None)
    lasting.call(0, "echo", ("next",))
    assert lasting.result() == "next"


def test_a_killed_process_is_an_error_and_does_not_hang(process: Process):
    os.kill(process._process.pid or 0, signal.SIGKILL)
    for _ in range(2):
        process.call(0, "echo", ("late",))
        error = str(process.result())
        assert "a worker process ended in the middle of its work" in error
        assert "if it ran out of memory, fewer `engine.processes` need less" in error


def test_a_process_ignores_signals_for_the_run(lasting: Process):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(lasting._process.pid or 0, number)
    lasting.call(0, "echo", ("here",))
    assert lasting.result() == "here"


# ------------------------------------------------------------------------------------------- processes that hang


def test_a_process_that_hangs_in_a_call_is_killed_and_named(process: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outdo.extras.remote_engines.process, "SILENCE", 2.0)
    pid = process._process.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    process.call(0, "echo", ("other",))
    assert f"worker process {pid} gave no sign of life for 2 s, and was killed" in str(process.result())
    assert process._process.exitcode == -signal.SIGKILL
    process.call(0, "echo", ("other",))
    assert "a worker process ended" in str(process.result())


def test_a_call_ends_at_its_deadline_and_not_later(process: Process):
    process.call(0, "echo", ("late", 20.0))
    error = process.result(1.0)
    assert isinstance(error, WorkerError)
    assert "made no progress for 1 s, and was killed" in str(error)


def test_a_long_call_of_a_living_process_is_waited_for(process: Process, monkeypatch: pytest.MonkeyPatch):
    """Its thread for signs of life runs while it computes."""
    monkeypatch.setattr(outdo.extras.remote_engines.process, "SILENCE", 3.0)
    process.call(0, "echo", ("late", 4.5))
    assert process.result() == "late"


def test_a_call_that_makes_progress_may_take_longer(lasting: Process):
    lasting.hold(1, Counter())
    lasting.call(1, "count", (6,))
    assert lasting.result(2.0) == 6


class Counter:
    """Makes progress each half second."""

    progress = 0

    def count(self, limit: int) -> int:
        while self.progress < limit:
            time.sleep(0.5)
            self.progress += 1
        return limit


def test_a_process_that_reads_nothing_is_killed_and_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outdo.extras.remote_engines.process, "SILENCE", 2.0)
    process = Process(1)
    process.hold(0, Echo())
    os.kill(process._process.pid or 0, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="did not read a message for 2 s, and was killed"):
        process.call(0, "echo", (b"x" * 10_000_000,))
    process.close()


@pytest.mark.parametrize("how", ["computing", "stopped", "stuck"])
def test_closing_does_not_wait_for_a_process_that_does_not_end(how: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outdo.extras.remote_engines.process, "GRACE", 1.0 if how == "stuck" else 600.0)
    process = Process(1)
    process.hold(0, Echo())
    process.call(0, "hold_the_interpreter" if how == "stuck" else "echo", ("late", 100.0))
    if how == "stopped":
        os.kill(process._process.pid or 0, signal.SIGSTOP)
    process.close()
    # A process that computes ends by itself, and so does a stopped one, which is woken.
    assert process._process.exitcode == (-signal.SIGKILL if how == "stuck" else 1)


@pytest.mark.release
def test_a_killed_child_of_another_process_leaves_the_folder_of_that_process_and_no_process():
    """A run that a Python script starts in a process of its own uses the script's folder for sockets.

    It has a process that computes, and one that is stopped.
    """
    folder = Path(multiprocessing.util.get_temp_dir())
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=hold_processes, args=(theirs,))
    child.start()
    workers = ours.recv()
    os.kill(workers[1], signal.SIGSTOP)
    child.kill()
    child.join()
    wait_for_end(workers)
    assert folder.is_dir()


def test_the_processes_of_a_killed_replica_leave_the_folder_of_its_launcher(monkeypatch: pytest.MonkeyPatch):
    """The launcher reads there what the other replicas have failed of."""
    folder = multiprocessing.util.get_temp_dir()
    assert outdo.extras.remote_engines.process._own_temporary_folder() == folder
    monkeypatch.setenv(FOLDER, folder)
    assert not outdo.extras.remote_engines.process._own_temporary_folder()


def hold_processes(pipe: Connection) -> None:
    processes = [Process(1), Process(1)]
    for process in processes:
        process.hold(0, Echo())
    pipe.send([process._process.pid for process in processes])
    time.sleep(6000)


# ----------------------------------------------------------------------------------- processes that hang at their start

SERVER_HANGS = """
import os
import outdo.extras.remote_engines.process as process
process.PRELOADED = ["hangs"]
process.START = 3.0
try:
    process.Process(1)
except process.WorkerError as error:
    print(error)
"""
CHILD_HANGS = """
import time
import outdo.extras.remote_engines.process as process
if __name__ == "__mp_main__":  # the name of this module in the child, which imports it
    time.sleep(6000)
if __name__ == "__main__":
    child = process.Process(1)
    process.START = 3.0
    try:
        child.hold(0, "anything")
    except process.WorkerError as error:
        print(error)
    print("exit code", child._process.exitcode)
"""


@pytest.mark.release
@pytest.mark.parametrize(
    ("script", "told"),
    [
        (SERVER_HANGS, r"process (\d+), which starts the worker processes, did not do so within 3 s, and was killed"),
        (CHILD_HANGS, r"worker process (\d+) gave no sign of life for 3 s, and was killed"),
    ],
    ids=["fork server", "child"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no fork server")
def test_a_process_that_hangs_while_it_imports_is_killed_and_named(script: str, told: str, tmp_path: Path):
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(60)\n")  # it would end, long after the deadline
    (tmp_path / "main.py").write_text(script)
    sources = str(Path(outdo.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{sources}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = re.search(told, done.stdout)
    assert found, done.stdout + done.stderr
    assert not alive(int(found[1]))  # killed
    assert "Traceback" not in done.stderr


def test_a_process_uses_deterministic_algorithms_if_its_parent_does():
    torch.set_deterministic_debug_mode(2)
    with started() as process:
        process.call(0, "deterministic", ())
        assert process.result(600.0) == 2
