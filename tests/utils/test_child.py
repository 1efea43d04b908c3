"""A child process: what ends a wait for it, also in another thread and after a fork."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from time import monotonic

import pytest

from outdo.utils import child as module
from outdo.utils.child import NOT_STARTED, Child, ChildLostError

SLEEPER = [sys.executable, "-c", "import time; time.sleep(3600)"]


@pytest.fixture
def sleeper() -> Iterator[Child]:
    child = Child(SLEEPER, lambda data: None, environment=os.environ)
    yield child
    child.kill()


def test_a_command_that_cannot_be_run_has_a_status_and_a_reason() -> None:
    printed: list[bytes] = []
    child = Child(["/no/such/program"], printed.append, environment=os.environ)
    with pytest.raises(ChildLostError) as raised:
        child.receive(monotonic() + 600, 1000)
    child.kill()
    assert raised.value.status == NOT_STARTED
    assert b"".join(printed) == b"/no/such/program: No such file or directory\n"


def test_a_killed_process_is_lost_for_every_call(sleeper: Child) -> None:
    sleeper.kill()
    for call in (
        lambda: sleeper.send(b"", monotonic() + 600),
        lambda: sleeper.receive(monotonic() + 600, 1000),
        lambda: sleeper.is_readable(0),
        sleeper.show_prints,
    ):
        with pytest.raises(ChildLostError, match="the trainer has ended it"):
            call()


def test_no_descriptor_is_closed_while_another_thread_waits(sleeper: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, released, wait = Event(), Event(), module.wait

    def slow(descriptors: list, seconds: float) -> list:
        waits.set()
        released.wait(600)
        return wait(descriptors, seconds)

    monkeypatch.setattr(module, "wait", slow)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(sleeper.is_readable, 600)
        waits.wait(600)
        killing = Thread(target=sleeper.kill)
        killing.start()
        killing.join(0.5)
        is_open = sleeper.socket.fileno() >= 0
        released.set()
        assert is_open
        assert waiting.result()  # the end of the connection, of the process that is killed at once
    killing.join(600)
    assert sleeper.socket.fileno() < 0


def test_a_thread_of_a_forked_process_starts_children() -> None:
    script = f"""
import os
from threading import Thread
from outdo.utils.child import Child

def start():
    Child({SLEEPER!r}, lambda data: None, environment=os.environ).kill()
    started.append(True)

def start_in_a_thread():
    thread = Thread(target=start, daemon=True)
    thread.start()
    thread.join(60)

started = []
start_in_a_thread()
if (pid := os.fork()) == 0:
    start_in_a_thread()
    os._exit(len(started))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
