"""What a worker may use is limited, what it prints is bounded and safe, and a secret stays where it is needed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outdo.rewards import FailureCount, Reward, RewardInput, load_reward, loading, signatures
from outdo.rewards.failures import is_unavailable
from outdo.rewards.limits import PASSED_ON, worker_environment
from outdo.utils.errors import RewardError, UserError

Make = Callable[..., Reward]
Sample = Callable[..., RewardInput]


def statuses(reward: Reward, inputs: list[RewardInput]) -> list[str]:
    return [str(output.status) for output in reward(inputs)]


# ---- environment, memory, files, processes


def test_a_worker_gets_no_variable_with_a_secret(reward_of: Make, sample: Sample, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "private")
    monkeypatch.setenv("MY_SERVICE", "unlisted")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = "import os\ndef score(completion): return float(completion in os.environ)"
    inputs = [sample(name) for name in ("PATH", "HF_HUB_OFFLINE", "HF_TOKEN", "MY_SERVICE")]
    assert [output.value for output in reward_of(source)(inputs)] == [1.0, 1.0, 0.0, 0.0]
    asked = reward_of(source, environment=["HF_TOKEN", "MY_SERVICE"])(inputs)
    assert [output.value for output in asked] == [1.0] * 4


def test_patterns_of_variables_match_no_name_of_a_secret():
    names = [pattern.replace("*", "X_API_KEY") for pattern in PASSED_ON if pattern.endswith("*")]
    assert worker_environment(dict.fromkeys(names, "x"), ()).keys() == {"PYTHONHASHSEED"}


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no such limit")
def test_a_worker_that_fills_the_memory_fails_alone(reward_of: Make, sample: Sample):
    source = "def score(completion): return len(bytearray(2**30 if completion == 'bad' else 1)) and 1.0"
    reward = reward_of(source, memory=0.5)
    outputs = reward([sample("1"), sample("bad"), sample("1")])
    assert [output.status for output in outputs] == ["ok", "failed", "ok"]
    assert "MemoryError" in outputs[1].reason


def in_a_limited_process(code: str) -> str:
    """Run Python code after `limit_resources`, as a user without privileges.

    Started by root, the user has no other process: the limit of processes counts those that run when it is set, and
    others of the same user end meanwhile.
    """
    script = f"""
import os, resource
from outdo.rewards import limits
limits.MAX_FILE_BYTES, limits.MAX_FURTHER_PROCESSES = 10**6, 20
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(100_000 + os.getpid())
limits.limit_resources(2**30)
{code}
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    return result.stdout + result.stderr


def test_a_large_file_is_refused():
    code = "import tempfile; tempfile.TemporaryFile(buffering=0).write(bytes(2 * 10**6)) == 10**6 and print('cut off')"
    assert in_a_limited_process(code) == "cut off\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is set on Linux")
def test_a_fork_bomb_ends_at_the_limit_of_processes():
    bomb = """
import signal, time
made = []
try:
    for _ in range(1000):
        made.append(os.fork() or time.sleep(600) or os._exit(0))
except BlockingIOError:
    print("refused after", len(made))
finally:
    [os.kill(each, signal.SIGKILL) for each in made]
"""
    refused = in_a_limited_process(bomb)
    assert refused.startswith("refused after")
    assert int(refused.split()[-1]) <= 20 or os.getuid() != 0


# ---- prints


def test_prints_are_shown_without_control_sequences_and_secrets(
    reward_of: Make, sample: Sample, capfd: pytest.CaptureFixture[str]
):
    reward = reward_of("def score(completion):\n    print('a\\x1b[2Jb', 'sk-' + 'x' * 20)\n    return 1.0")
    reward([sample("1")])
    assert capfd.readouterr().err == "a\\x1b[2Jb ***\n"


# ---- secrets


SECRET_SOURCE = """
import sys
def score(completion, api_key=""):
    print("the key is", api_key)
    if completion == "raise":
        raise ValueError("wrong key " + api_key)
    return float(api_key == "very private" and api_key not in " ".join(sys.argv))
"""


@pytest.mark.parametrize("place", ["env", "file"])
def test_a_secret_reaches_the_function_and_no_reason_print_or_command_line(
    tmp_path: Path,
    sample: Sample,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    place: str,
):
    monkeypatch.setenv("THE_KEY", "very private")
    (tmp_path / "key").write_text("very private\n")
    (tmp_path / "judge.py").write_text(SECRET_SOURCE)
    where = {"env": "THE_KEY"} if place == "env" else {"file": f"{tmp_path}/key"}
    reward: Any = load_reward({"name": f"{tmp_path}/judge.py:score", "api_key": where})
    process = reward.rewards[0]._workers[0]._process.pid
    if sys.platform == "linux":
        assert "very private" not in Path(f"/proc/{process}/cmdline").read_text()
        assert b"very private".hex() not in Path(f"/proc/{process}/cmdline").read_text()
    right, raised = reward([sample("1"), sample("raise")])
    reward.close()
    assert right.value == 1.0
    assert raised.reason.startswith("score: ValueError: wrong key ***")
    assert "very private" not in capfd.readouterr().err


def test_a_secret_that_is_not_there_is_refused_with_its_place(tmp_path: Path):
    (tmp_path / "judge.py").write_text(SECRET_SOURCE)
    spec = {"name": f"{tmp_path}/judge.py:score"}
    with pytest.raises(UserError, match="api_key: the environment variable NO_SUCH_KEY is not set"):
        load_reward(spec | {"api_key": {"env": "NO_SUCH_KEY"}})
    with pytest.raises(UserError, match=r"api_key: .*nowhere cannot be read"):
        load_reward(spec | {"api_key": {"file": f"{tmp_path}/nowhere"}})


# ---- failures of what a reward needs


class BusyError(Exception):
    status_code = 503


def raised_from(error: Exception) -> Exception:
    wrapper = RuntimeError("no answer")
    wrapper.__cause__ = error
    return wrapper


@pytest.mark.parametrize(
    ("error", "unavailable"),
    [
        (OSError(28, "No space left on device"), True),
        (BusyError(), True),
        (raised_from(ConnectionResetError()), True),
        (TimeoutError(), False),
        (ValueError(), False),
    ],
)
def test_only_a_failure_of_what_the_reward_needs_is_unavailable(error: BaseException, unavailable: bool):
    assert is_unavailable(error) is unavailable


FLAKY = """
from pathlib import Path
def score(completion):
    calls = Path(__file__).with_name("calls")
    calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
    if completion == "down" or (completion == "flaky" and len(calls.read_text()) < 3):
        raise ConnectionError("the service is down")
    return 1.0
"""


def test_an_unavailable_service_is_tried_again_and_never_scored(
    reward_of: Make, sample: Sample, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(signatures, "RETRY_AFTER", (0.01, 0.01, 0.01))
    outputs = reward_of(FLAKY)([sample("flaky"), sample("down"), sample("1")])
    assert [output.status for output in outputs] == ["ok", "unavailable", "ok"]
    assert "the service is down" in outputs[1].reason
    assert outputs[1].status.is_failure


# ---- time


def test_the_rewards_of_a_step_end_with_its_time(reward_of: Make, sample: Sample):
    source = "import time\ndef score(completion):\n    time.sleep(1000 * (completion == 'bad'))\n    return 1.0"
    reward, failures = reward_of(source), FailureCount()
    with failures.within(2.0):
        outputs = reward([sample("1"), *[sample("bad")] * 50, sample("1")])
    assert [output.status for output in outputs] == ["ok", *["timed_out"] * 51]
    assert outputs[-1].reason == "the time for the rewards of this step was used up"
    with failures.within(2.0):  # another round of the same step
        assert statuses(reward, [sample("1")]) == ["timed_out"]
    assert statuses(reward, [sample("1")]) == ["ok"]


def test_a_call_that_computes_too_long_times_out_however_busy_the_machine_is(
    tmp_path: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "endless_of_test.py").write_text(
        "import time\ndef f(completion):\n    if completion == 'wait': time.sleep(3)\n"
        "    return sum(range(10**13)) if completion == 'bad' else 1.0"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(loading.BUILTIN, "endless", "endless_of_test:f")
    monkeypatch.setattr(loading, "RUN_IN_WORKER", {"endless"})
    monkeypatch.setattr(loading, "PROCESSOR_SECONDS", 0.5)
    reward = load_reward("endless", timeout=600.0)
    outputs = reward([sample("wait"), sample("bad"), *[sample("1")] * 100])
    reward.close()
    assert [output.status for output in outputs] == ["ok", "timed_out", *["ok"] * 100]
    assert outputs[1].reason == "endless computed for more than 0.5 s"


def test_a_builtin_reward_has_a_limit_of_processor_time(
    tmp_path: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
):
    """Its call would end by itself, long before any deadline."""
    (tmp_path / "busy_of_test.py").write_text(
        "import time\ndef f(completion):\n    end = time.process_time() + 5\n"
        "    while completion == 'bad' and time.process_time() < end: pass\n    return 1.0"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(loading.BUILTIN, "busy", "busy_of_test:f")
    monkeypatch.setattr(loading, "RUN_IN_WORKER", {"busy"})
    monkeypatch.setattr(loading, "PROCESSOR_SECONDS", 0.5)
    reward = load_reward("busy", timeout=6000.0)
    assert statuses(reward, [sample("bad"), sample("1")]) == ["timed_out", "ok"]
    reward.close()


def test_several_workers_score_at_the_same_time_and_in_order(reward_of: Make, sample: Sample):
    source = """
        import os, time
        def score(completion, answer):
            time.sleep(0.7 if completion == "slow" else 0)
            return float(answer)
    """
    reward: Any = reward_of(source, workers=4)
    assert [output.value for output in reward([sample("1", answer=each) for each in range(3)])] == [0.0, 1.0, 2.0]
    assert sum(worker._process is not None for worker in reward._workers) == 1  # fast work starts no other process
    outputs = reward([sample("slow", answer=each) for each in range(12)])
    assert [output.value for output in outputs] == [float(each) for each in range(12)]
    assert sum(worker._process is not None for worker in reward._workers) > 1


def test_an_error_of_a_worker_that_does_not_start_again_is_raised_from_any_thread(
    reward_of: Make, sample: Sample, tmp_path: Path
):
    source = "import time\ndef score(completion):\n    time.sleep(1)\n    return 1.0"
    reward = reward_of(source, workers=2)
    (tmp_path / "my_reward.py").write_text("import no_such_package")
    with pytest.raises(RewardError, match="does not start again"):
        reward([sample("1")] * 4)
