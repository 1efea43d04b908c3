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
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from run_cases import alive, wait_until

import outdo
import outdo.distributed.process
from outdo.distributed.process import Process, Replicated
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


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process(1)
    process.hold(0, Echo())
    yield process
    process.close()


def test_an_interrupted_call_does_not_answer_the_next_one(process: Process):
    echoes = Replicated(Echo(), [process], 0)
    process.call(0, "echo", ("first", 1.0))  # and its result is never received
    assert echoes.map("echo", [("second",), ("second",)]) == ["second", "second"]


def test_a_computation_that_is_interrupted_twice_leaves_the_pool_usable(process: Process):
    echoes = Replicated(Echo(), [process], 0)
    process.call(0, "echo", ("first", 3.0))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        process.result()
    assert echoes.map("echo", [("second",), ("second",)]) == ["second", "second"]


def test_finish_waits_for_a_call_that_was_interrupted(process: Process):
    echoes = Replicated(Echo(), [process], 0)
    process.call(0, "echo", ("first", 1.0))
    echoes.finish()
    assert echoes.map("past", [(), ()])[1] == ["first"]


def test_a_fork_that_comes_back_sends_nothing(process: Process):
    for value in range(20):
        process.call(0, "fork", (value,))
        assert process.result() == value


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


# ------------------------------------------------------------------------------------------- processes that hang


def test_a_process_that_hangs_in_a_call_is_killed_and_named(process: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outdo.distributed.process, "SILENCE", 3.0)
    pid = process._process.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=rf"worker process {pid} gave no sign of life for 3 s, and was killed"):
        Replicated(Echo(), [process], 0).map("echo", [("own",), ("other",)])
    assert process._process.exitcode == -signal.SIGKILL
    with pytest.raises(WorkerError, match="a worker process ended"):
        Replicated(Echo(), [process], 0).map("echo", [("own",), ("other",)])


def test_a_silent_process_is_killed_at_its_deadline_and_not_later(process: Process, monkeypatch: pytest.MonkeyPatch):
    """It would go on, and answer, long after the deadline."""
    monkeypatch.setattr(outdo.distributed.process, "SILENCE", 2.0)
    os.kill(process._process.pid or 0, signal.SIGSTOP)
    wake_up = threading.Timer(20.0, os.kill, (process._process.pid, signal.SIGCONT))
    wake_up.start()
    process.call(0, "echo", ("late",))
    try:
        assert isinstance(process.result(), WorkerError)
    finally:
        wake_up.cancel()


def test_a_call_ends_at_its_deadline_and_not_later(process: Process):
    process.call(0, "echo", ("late", 20.0))
    assert isinstance(process.result(2.0), WorkerError)


def test_a_long_call_of_a_living_process_is_waited_for(process: Process, monkeypatch: pytest.MonkeyPatch):
    """Its thread for signs of life runs while it computes."""
    monkeypatch.setattr(outdo.distributed.process, "SILENCE", 5.0)
    assert Replicated(Echo(), [process], 0).map("echo", [("own",), ("other", 8.0)]) == ["own", "other"]


def test_a_call_that_takes_far_longer_than_the_own_share_is_ended(process: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outdo.distributed.process, "PATIENCE", 2.0)
    with pytest.raises(WorkerError, match="did not finish its share of the work within 2 s, and was killed"):
        Replicated(Echo(), [process], 0).map("echo", [("own",), ("other", 6000.0)])


def test_the_time_for_a_call_grows_with_the_own_share(process: Process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outdo.distributed.process, "PATIENCE", 0.5)
    assert Replicated(Echo(), [process], 0).map("echo", [("own", 0.5), ("other", 2.0)]) == ["own", "other"]


def test_a_call_that_makes_progress_may_take_longer(process: Process):
    process.hold(1, Counter())
    process.call(1, "count", (6,))
    assert process.result(4.0) == 6


class Counter:
    """Makes progress each second."""

    progress = 0

    def count(self, limit: int) -> int:
        while self.progress < limit:
            time.sleep(1.0)
            self.progress += 1
        return limit


def test_a_process_that_reads_nothing_is_killed_and_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outdo.distributed.process, "SILENCE", 2.0)
    process = Process(1)
    process.hold(0, Echo())
    os.kill(process._process.pid or 0, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="did not read a message for 2 s, and was killed"):
        process.call(0, "echo", (b"x" * 10_000_000,))
    process.close()


@pytest.mark.parametrize("how", ["computing", "stopped", "stuck"])
def test_closing_does_not_wait_for_a_process_that_does_not_end(how: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outdo.distributed.process, "GRACE", 1.0 if how == "stuck" else 600.0)
    process = Process(1)
    process.hold(0, Echo())
    process.call(0, "hold_the_interpreter" if how == "stuck" else "echo", ("late", 100.0))
    if how == "stopped":
        os.kill(process._process.pid or 0, signal.SIGSTOP)
    process.close()
    # A process that computes ends by itself, and so does a stopped one, which is woken.
    assert process._process.exitcode == (-signal.SIGKILL if how == "stuck" else 1)


def test_an_interrupt_does_not_wait_for_the_other_processes(process: Process):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Replicated(Echo(), [process], 0).map("echo", [("own", 6000.0), ("other", 6000.0)])
    assert time.monotonic() - began < 600


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
    wait_until(lambda: not any(map(alive, workers)), seconds=600)
    assert folder.is_dir()


def test_the_processes_of_a_killed_replica_leave_the_folder_of_its_launcher(monkeypatch: pytest.MonkeyPatch):
    """The launcher reads there what the other replicas have failed of."""
    folder = multiprocessing.util.get_temp_dir()
    assert outdo.distributed.process._own_temporary_folder() == folder
    monkeypatch.setenv(FOLDER, folder)
    assert not outdo.distributed.process._own_temporary_folder()


def hold_processes(pipe: Connection) -> None:
    processes = [Process(1), Process(1)]
    for process in processes:
        process.hold(0, Echo())
    pipe.send([process._process.pid for process in processes])
    time.sleep(6000)


def test_an_error_in_the_own_share_waits_for_the_others(process: Process):
    echoes = Replicated(Echo(), [process], 0)
    with pytest.raises(TypeError):
        echoes.map("echo", [(), ("other", 1.0)])
    assert process._awaited is None
    assert echoes.map("past", [(), ()]) == [[], ["other"]]


# ----------------------------------------------------------------------------------- processes that hang at their start

SERVER_HANGS = """
import os
import outdo.distributed.process as process
process.PRELOADED = ["hangs"]
process.START = 3.0
try:
    process.Process(1)
except process.WorkerError as error:
    print(error)
"""
CHILD_HANGS = """
import time
import outdo.distributed.process as process
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


@pytest.mark.parametrize("mode", [0, 2])
def test_a_process_uses_deterministic_algorithms_if_its_parent_does(mode: int):
    torch.set_deterministic_debug_mode(mode)
    process = Process(1)
    process.hold(0, Echo())
    process.call(0, "deterministic", ())
    assert process.result(600.0) == mode
    process.close()
