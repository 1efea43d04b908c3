"""A user's function that hangs, crashes or lies fails only its own completion; the next hundred are scored."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outdo.rewards import Reward, RewardInput, Status, worker_output
from outdo.rewards import worker as worker_module
from outdo.utils.errors import RewardError, UserError

Make = Callable[..., Reward]
Sample = Callable[..., RewardInput]

HANGS = {
    "sleep": "time.sleep(1000)",
    "ignored signals": "ignore_signals(); time.sleep(1000)",
    "a loop in C": "sum(range(10**13))",
    "a child that is waited for": "subprocess.run(['sleep', '1000'])",
}
ENDS = {
    "segmentation fault": "ctypes.string_at(0)",
    "sys.exit": "sys.exit(3)",
    "the memory is out": "bytearray(10**18)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "raises what cannot be shown": "raise Unshowable",
    "writes to every file": "[write(fd, b'x' * 100) for fd in range(100)]",
    "a child keeps the line open": "fork_and_die()",
}
SOURCE = """
import ctypes, os, re, signal, subprocess, sys, threading, time

class Unshowable(Exception):
    def __str__(self):
        raise ValueError

def ignore_signals():
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

def write(fd, data):
    try:
        os.write(fd, data)
    except OSError:
        pass

def fork_and_die():
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(1)

def score(completion, answer):
    if completion == "bad":
        {fault}
    return completion == answer
"""


def statuses(reward: Reward, inputs: list[RewardInput]) -> list[str]:
    return [str(output.status) for output in reward(inputs)]


def group_of(reward: Any) -> int:
    return reward._workers[0]._process.pid


def is_group_alive(group: int) -> bool:
    """Whether a process of the group is left that is not a zombie."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            state, _, its_group, *_ = path.read_text().rpartition(")")[2].split()
            if int(its_group) == group and state != "Z":
                return True
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 600
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("fault", HANGS.values(), ids=HANGS.keys())
def test_a_hanging_call_is_killed_and_the_next_hundred_are_scored(reward_of: Make, sample: Sample, fault: str):
    reward = reward_of(SOURCE.replace("{fault}", fault), timeout=1.5)
    group = group_of(reward)
    assert statuses(reward, [sample("1"), sample("bad"), *[sample("1")] * 100]) == ["ok", "timed_out", *["ok"] * 100]
    assert not is_group_alive(group)
    group = group_of(reward)
    reward.close()
    assert not is_group_alive(group)


def test_a_call_ends_at_its_deadline_and_not_later(reward_of: Make, sample: Sample):
    """A slow machine makes both calls later, and changes nothing."""
    source = "import time\ndef score(completion):\n    time.sleep(3 if completion == 'slow' else 0)\n    return 1.0"
    assert statuses(reward_of(source, timeout=1.0), [sample("slow")]) == ["timed_out"]
    assert statuses(reward_of(source, timeout=600.0), [sample("slow")]) == ["ok"]


@pytest.mark.parametrize("fault", ENDS.values(), ids=ENDS.keys())
def test_a_crashing_call_fails_and_the_next_hundred_are_scored(reward_of: Make, sample: Sample, fault: str):
    reward = reward_of(SOURCE.replace("{fault}", fault))
    group = group_of(reward)
    outputs = reward([sample("1"), sample("bad"), *[sample("1")] * 100])
    assert [output.status for output in outputs] == ["ok", "failed", *["ok"] * 100]
    assert [output.value for output in outputs] == [1.0, 0.0, *[1.0] * 100]
    assert outputs[1].reason
    reward.close()
    assert not is_group_alive(group)


RETURNED = {
    "float('nan')": "non_finite",
    "float('inf')": "non_finite",
    "1e30": "non_finite",
    "1j": "failed",
    "'1.0'": "failed",
    "[1.0]": "failed",
    "'x' * 10**8": "failed",
    "None": "not_applicable",
    "True": "ok",
}


def test_return_values_have_the_same_status_in_a_worker(reward_of: Make, sample: Sample):
    reward = reward_of("def score(completion): return eval(completion)")
    assert statuses(reward, [sample(returned) for returned in (*RETURNED, "1")]) == [*RETURNED.values(), "ok"]


def test_the_reason_of_an_exception_has_its_file_and_line(reward_of: Make, sample: Sample):
    reward = reward_of("def score(completion):\n    return 1 / 0")
    assert reward([sample("a")])[0].reason == "ZeroDivisionError: division by zero (my_reward.py, line 2)"


def test_a_function_may_print_much(reward_of: Make, sample: Sample, capfd: pytest.CaptureFixture[str]):
    reward = reward_of("def score(completion):\n    print('x' * 10**6)\n    return 1.0")
    assert statuses(reward, [sample("a")] * 3) == ["ok"] * 3
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("x") == worker_output.MAX_BYTES
    assert "score prints more than 64 KiB; the rest is not shown" in err


def test_a_worker_is_reused_and_keeps_its_state(reward_of: Make, sample: Sample):
    reward = reward_of("calls = []\ndef score(completion):\n    calls.append(1)\n    return len(calls)")
    assert [output.value for output in [*reward([sample("a")] * 2), *reward([sample("a")])]] == [1.0, 2.0, 3.0]


def test_no_zombie_and_no_open_file_is_left(reward_of: Make, sample: Sample):
    reward = reward_of(SOURCE.replace("{fault}", "os._exit(0)"))
    before = len(os.listdir("/proc/self/fd"))
    statuses(reward, [sample("bad")] * 10)
    reward.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    with contextlib.suppress(ChildProcessError):  # there is none; or one of another test's, alive
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)


def test_a_reward_that_ends_every_worker_is_given_up(reward_of: Make, sample: Sample, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_module, "MAX_CONSECUTIVE_CRASHES", 3)
    reward = reward_of(SOURCE.replace("{fault}", "os._exit(0)"))
    outputs = reward([sample(text) for text in ("bad", "bad", "1", "bad", "bad", "bad", "1", "1")])
    assert [output.status for output in outputs] == ["failed", "failed", "ok", *["failed"] * 5]
    assert outputs[-1].reason.startswith("not tried: each of the 3 completions before it")
    assert statuses(reward, [sample("1")]) == ["ok"]


# ---- functions that take all completions at once, and asynchronous ones

BATCH = """
import os, time
def score(completions, **columns):
    if "{fault}" == "exit" and "bad" in completions: os._exit(0)
    if "{fault}" == "raise" and "bad" in completions: raise ValueError("bad")
    if "{fault}" == "hang" and "bad" in completions: time.sleep(1000)
    if "{fault}" == "count": return [1.0]
    return [1.0 for _ in completions]
"""


@pytest.mark.parametrize("fault", ["exit", "raise"])
def test_a_batch_that_crashes_is_retried_one_by_one(reward_of: Make, sample: Sample, fault: str):
    reward = reward_of(BATCH.replace("{fault}", fault))
    inputs = [sample("1"), sample("bad"), *[sample("1")] * 100]
    assert statuses(reward, inputs) == ["ok", "failed", *["ok"] * 100]


def test_a_batch_that_hangs_times_out_as_a_whole(reward_of: Make, sample: Sample):
    reward = reward_of(BATCH.replace("{fault}", "hang"), timeout=1.5)
    assert statuses(reward, [sample("1"), sample("bad")]) == ["timed_out", "timed_out"]
    assert statuses(reward, [sample("1")] * 100) == ["ok"] * 100


def test_a_single_value_for_a_batch_is_a_failure(reward_of: Make, sample: Sample):
    outputs = reward_of(BATCH.replace("{fault}", "count"))([sample("1")] * 3)
    assert [output.status for output in outputs] == ["failed"] * 3
    assert outputs[0].reason == "score returned 1 value for 3 completions; expected a list of 3"


@pytest.mark.parametrize("fault", ["time.sleep(1000)", "os._exit(0)"])
def test_one_of_many_asynchronous_calls_fails_alone(reward_of: Make, sample: Sample, fault: str):
    source = f"""
        import asyncio, os, sys, time
        async def score(completion):
            if completion == "bad":
                {fault}
            await asyncio.sleep(0.001)
            return 1.0
    """
    reward = reward_of(source, timeout=1.5)
    bad = "timed_out" if "sleep" in fault else "failed"
    assert statuses(reward, [sample("1"), sample("bad"), *[sample("1")] * 100]) == ["ok", bad, *["ok"] * 100]


def test_a_late_asynchronous_call_is_cancelled_without_a_new_worker(reward_of: Make, sample: Sample):
    source = """
        import asyncio
        async def score(completion):
            await asyncio.sleep(1000 if completion == "bad" else 0)
            return 1.0
    """
    reward = reward_of(source, timeout=1.5)
    group = group_of(reward)
    assert statuses(reward, [sample("1"), sample("bad")]) == ["ok", "timed_out"]
    assert group_of(reward) == group


# ---- what is sent to and from the worker


FORGED = [
    b'{"outputs": [[NaN, "ok", "", null]]}',
    b'{"outputs": [[1e30, "ok", "", null]]}',
    b'{"outputs": [["1", "ok", "", null]]}',
    b'{"outputs": [[1, "fine", "", null]]}',
    b'{"outputs": [[1, "ok", ""]]}',
    b'{"outputs": []}',
    b"[]",
    b"\x80",
    b'{"outputs": 1}',
]


def test_an_invalid_response_is_a_failure(reward_of: Make, sample: Sample):
    source = f"""
        import gc, socket, struct, sys
        def nonce(frame):
            return frame.f_locals["nonce"] if "nonce" in frame.f_locals else nonce(frame.f_back)
        def score(completion, answer):
            line = [o for o in gc.get_objects() if isinstance(o, socket.socket)][0]
            forged = {FORGED!r}[answer]
            line.sendall(struct.pack("!Q", len(forged)) + nonce(sys._getframe()) + forged)
            return 1.0
    """
    reward = reward_of(source)
    for number, forged in enumerate(FORGED):
        assert reward([sample("a", answer=number)])[0].status in (Status.failed, Status.non_finite), forged


def test_a_response_of_excessive_size_is_not_read(reward_of: Make, sample: Sample):
    source = """
        import gc, socket, sys
        def nonce(frame):
            return frame.f_locals["nonce"] if "nonce" in frame.f_locals else nonce(frame.f_back)
        def score(completion):
            line = [o for o in gc.get_objects() if isinstance(o, socket.socket)][0]
            line.sendall(b"\\xff" * 8 + nonce(sys._getframe()))
            return 1.0
    """
    assert "its response had 18446744073709551615 bytes" in reward_of(source)([sample("a")])[0].reason


# ---- starting and ending


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\n\ndef score(completion:\n", "my_reward.py, line 3: SyntaxError: '\\(' was never closed"),
        ("import os\nimport no_such_package\n", "my_reward.py, line 2: ModuleNotFoundError: No module named 'no_such"),
        ("import os\nos._exit(3)\n", "importing it ended the worker: exit status 3"),
    ],
)
def test_the_error_for_an_unusable_file_has_its_line(reward_of: Make, source: str, message: str):
    with pytest.raises(UserError, match=message):
        reward_of(source)


def test_a_worker_that_does_not_start_again_stops_the_run(reward_of: Make, sample: Sample, tmp_path: Path):
    reward = reward_of("import os\ndef score(completion): os._exit(0)")
    reward([sample("a")])
    (tmp_path / "my_reward.py").write_text("import no_such_package")
    with pytest.raises(RewardError, match=r"does not start again.*line 1.*no_such_package"):
        reward([sample("a")])


def test_a_file_can_import_its_neighbours_and_have_the_name_of_a_standard_module(tmp_path: Path, sample: Sample):
    (tmp_path / "neighbour_of_reward.py").write_text("VALUE = 0.5")
    (tmp_path / "json.py").write_text("from neighbour_of_reward import VALUE\ndef score(completion): return VALUE")
    reward = worker_module.WorkerReward(f"{tmp_path}/json.py:score")
    assert reward([sample("a")])[0].value == 0.5
    reward.close()


PARENT = """
import os, sys
from outdo.rewards import RewardInput, load_reward
reward = load_reward(sys.argv[1])
print(reward._workers[0]._process.pid, flush=True)
if sys.argv[2] == "calling":
    reward([RewardInput(prompt="", completion="", answer="")])
elif sys.argv[2] == "idle":
    sys.stdin.read()
"""


@pytest.mark.parametrize("doing", ["idle", "calling", "leaving"])
def test_a_worker_ends_with_its_trainer(tmp_path: Path, doing: str):
    file, busy, finished = tmp_path / "my_reward.py", tmp_path / "busy", tmp_path / "finished"
    file.write_text(
        f"import time\ndef score(completion):\n    open({str(busy)!r}, 'w').close()\n    time.sleep(30)\n"
        f"    open({str(finished)!r}, 'w').close()"
    )
    command = [sys.executable, "-c", PARENT, f"{file}:score", doing]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        group = int(parent.stdout.readline())
        if doing == "calling":
            wait_until(busy.exists)
        if doing != "leaving":
            parent.kill()
        parent.wait()
    wait_until(lambda: not is_group_alive(group))
    assert not finished.exists()  # in the middle of its call


def test_a_reward_that_is_closed_during_a_call_ends_it_and_starts_nothing(
    reward_of: Make, sample: Sample, tmp_path: Path
):
    started, busy = tmp_path / "started", tmp_path / "busy"
    reward = reward_of(
        f"import time\nopen({str(started)!r}, 'a').write('1')\n"
        f"def score(completion):\n    open({str(busy)!r}, 'w').close()\n    time.sleep(1000)\n"
    )
    errors: list[BaseException] = []

    def call() -> None:
        try:
            reward([sample("a"), sample("b")])
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    wait_until(busy.exists)
    reward.close()
    with pytest.raises(RewardError, match="was interrupted"):  # also between two requests of the thread
        reward._workers[0]._running()
    thread.join(600)
    assert not thread.is_alive()
    assert errors
    assert started.read_text() == "1"


def test_every_worker_stays_from_call_to_call(reward_of: Make, sample: Sample, tmp_path: Path):
    """Also those that threads of the call start: Linux would end them together with these threads."""
    pids = tmp_path / "pids"
    reward = reward_of(
        "import os, time\ndef score(completion):\n    time.sleep(0.2)\n"
        f"    open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')\n    return 1.0\n",
        workers=2,
    )
    seen: list[set[str]] = []
    for _ in range(2):
        while True:  # until the second worker has started on this machine
            reward([sample(str(number)) for number in range(8)])
            found = set(pids.read_text().split())
            pids.unlink()
            if len(found) == 2:
                break
        seen.append(found)
    assert seen[0] == seen[1]
