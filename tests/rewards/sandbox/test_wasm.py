"""The sandbox of WebAssembly: the same verdict on a busy machine, a clock of its own, and how it is built."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from outdo.rewards.sandbox import Ending, Limits, Sandbox, choose, open_sandbox
from outdo.utils.errors import UserError

pytest.importorskip("wasmtime")
pytest.importorskip("componentize_py")

from outdo.rewards.sandbox import wasm, wasm_build

IN_WASM = pytest.mark.parametrize("sandbox", ["wasm"], indirect=True)
LIMITS = Limits(seconds=1)


@contextmanager
def every_core_busy() -> Iterator[None]:
    cores = os.cpu_count() or 1
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores)]
    try:
        yield
    finally:
        for each in burners:
            each.kill()
            each.wait()


@IN_WASM
def test_a_program_has_the_same_ending_and_the_same_count_on_a_busy_machine(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    """The second program just keeps its limit, the third exceeds it."""
    monkeypatch.setattr(wasm, "FUEL_PER_SECOND", 10**9)  # a fifth of the time
    programs = [
        "print(sorted({*map(str, range(1000))})[:3], {*'abcdef'}, hash('a'))",
        "for number in range(1_000_000): pass\nprint(number)",
        "for number in range(2_000_000): pass\nprint(number)",
        "while True: print(input())",
    ]
    stdin = "a line\n" * 5000
    alone = [sandbox.run(program, stdin, LIMITS) for program in programs]
    with every_core_busy():
        busy = [sandbox.run(program, stdin, LIMITS) for program in programs]
    assert busy == alone  # also `seconds`, which counts instructions
    assert [each.ending for each in alone] == [Ending.exited, Ending.exited, Ending.timeout, Ending.exited]
    assert 0.4 < alone[1].seconds < alone[2].seconds == 1.0


@IN_WASM
def test_clocks_and_random_numbers_are_the_same_in_each_run(sandbox: Sandbox):
    program = """
import datetime, os, random, secrets, time, uuid
print(datetime.datetime.now(), time.time(), time.monotonic(), time.perf_counter_ns(), time.process_time())
print(random.random(), os.urandom(4), secrets.token_hex(), uuid.uuid4(), id(object()))
"""
    first, second = (sandbox.run(program) for _ in range(2))
    assert first == second
    assert first.stdout.startswith("2026-01-01 00:00:00.")


@IN_WASM
def test_sleeping_takes_time_of_the_program_alone(sandbox: Sandbox):
    program = "import time\nstart = time.monotonic()\ntime.sleep({0})\nprint(time.monotonic() - start >= {0})"
    started = time.monotonic()
    assert sandbox.run(program.format(4000), limits=Limits(wall_seconds=5000)).stdout == "True\n"
    assert time.monotonic() - started < 4000
    for waits in ("time.sleep(6)", "__import__('select').select([], [], [], 1)"):
        outcome = sandbox.run(f"import time\n{waits}", limits=Limits(wall_seconds=5))
        assert (outcome.ending, outcome.exit_status) == (Ending.timeout, None)


@IN_WASM
def test_the_threads_of_a_process_run_programs_at_the_same_time(sandbox: Sandbox):
    program = "import time\nfor number in range(20_000): pass\nprint(input(), time.monotonic() < 1)"
    inputs = ["some", "input\n" * 20_000, ""] * 4
    one_after_another = [sandbox.run(program, given) for given in inputs]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda given: sandbox.run(program, given), inputs)) == one_after_another
    assert [each.stdout for each in one_after_another] == ["some True\n", "input True\n", ""] * 4


@IN_WASM
@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("import os; os._exit(0)", 0),
        ("import os; os._exit(3)", 1),  # WASI knows success and failure only
        ("import os; os.abort()", 128 + 6),
        ("a = []\nfor _ in range(100_000): a = [a]\nrepr(a)", 128 + 6),
        ("def f(): f()\nf()", 1),
        ("import functools\n@functools.lru_cache\ndef f(n): return n and f(n - 1)\nf(950)", 0),
    ],
)
def test_the_exit_status_of_a_program(program: str, status: int, sandbox: Sandbox):
    outcome = sandbox.run(program)
    assert (outcome.ending, outcome.exit_status) == (Ending.exited, status)


@IN_WASM
def test_the_standard_library_is_there(sandbox: Sandbox):
    program = """
import collections.abc, concurrent.futures, dataclasses, decimal, email.mime.text, encodings.idna, functools, heapq
import itertools, json, re, statistics, unittest.mock, xml.etree.ElementTree, zoneinfo
"""
    assert sandbox.run(program).exit_status == 0


@IN_WASM
def test_it_passes_the_probe_and_is_used_by_name_only(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    assert choose.probe(sandbox) is None
    monkeypatch.setattr(choose, "TIERS", {"wasm": lambda: iter([sandbox])})
    assert open_sandbox.__wrapped__("wasm") is sandbox
    with pytest.raises(UserError, match="no sandbox for programs of the model works on this machine"):
        open_sandbox.__wrapped__()


def test_without_its_packages_it_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    for name in ("wasm", "wasm_build"):
        monkeypatch.delitem(sys.modules, f"outdo.rewards.sandbox.{name}", raising=False)
    with pytest.raises(UserError, match=r"it needs wasmtime: pip install 'outdo\[wasm\]'"):
        open_sandbox.__wrapped__("wasm")


def test_the_interpreter_is_built_once_by_processes_that_start_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    built: list[str] = []

    def slowly(command: list[str], **_: object) -> SimpleNamespace:
        time.sleep(0.5)
        Path(command[-2]).write_bytes(b"made")
        built.append(Path(command[-2]).suffix)
        return SimpleNamespace(returncode=0)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wasm_build, "subprocess", SimpleNamespace(run=slowly))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(wasm_build.interpreter())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [".wasm", ".cwasm"]
    assert len({*found}) == 1
    assert found[0].read_bytes() == b"made"
    assert "the WebAssembly sandbox, once on this machine: packing Python" in capsys.readouterr().err
    assert found[0].parent.stat().st_mode & 0o77 == 0  # wasmtime executes what others could write there


def test_a_build_that_fails_leaves_nothing_and_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(command: list[str], **_: object) -> SimpleNamespace:
        Path(command[-2]).write_bytes(b"half")
        return SimpleNamespace(returncode=1, stderr="Traceback ...\nOSError: no space left\n")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wasm_build, "subprocess", SimpleNamespace(run=fails))
    with pytest.raises(OSError, match="its interpreter cannot be built: OSError: no space left"):
        wasm_build.interpreter()
    assert [each.name for each in (tmp_path / "outdo" / "wasm").iterdir()] == ["lock"]
