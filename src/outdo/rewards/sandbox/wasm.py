"""The sandbox of WebAssembly: CPython as a component that wasmtime executes inside of this process.

A program has nothing but its memory: there is no file, no process, no socket and no environment variable that it could
name. The instructions that it executes are counted, and clocks and random numbers are computed from this count, so that
a program has the same output, the same ending and the same count in each run, however busy the machine is.
"""

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ctypes import byref
from dataclasses import dataclass, field
from typing import Any

from wasmtime import Engine, ExitTrap, Store, WasiConfig, WasmtimeError, _ffi
from wasmtime.component import Component, Linker, Record

from outdo.rewards.sandbox.base import DEFAULT_LIMITS, Ending, Limits, Outcome
from outdo.rewards.sandbox.wasm_build import STACK, engine, interpreter

FUEL_PER_SECOND = 5 * 10**9
"""Instructions that count as one second of computing: what wasmtime executes in about one second."""

INTERPRETER_MEMORY = 128
"""MiB that the interpreter and its standard library have besides `Limits.memory`."""

_STARTED_AT = 1_767_225_600
"""The time at which each program begins: the first second of 2026, in UTC."""

_HOST_CALL = 250_000
"""Instructions that a call of a clock counts as: it leaves the sandbox, which takes longer than it computes."""

_ABORTED = 128 + 6
"""The exit status of a program whose interpreter gave up, as that of a process after SIGABRT."""

_LAST_LINE = 200
_STARTING = threading.Lock()


@dataclass(slots=True)
class _Run:
    """One run of a program: what it has used."""

    store: Store
    limits: Limits
    slept: float = 0.0
    ending: Ending | None = None
    """Why it was ended from outside."""
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    @property
    def computed(self) -> float:
        """Seconds of computing."""
        return self.limits.seconds - self.store.get_fuel() / FUEL_PER_SECOND

    def nanoseconds(self) -> int:
        """Return the time since the start; the call itself counts as computing."""
        self.store.set_fuel(max(0, self.store.get_fuel() - _HOST_CALL))
        return round((self.computed + self.slept) * 1e9)

    def sleep(self, seconds: float) -> None:
        """Let time pass. A program that would wait for longer than it may is ended."""
        self.slept += seconds
        if self.nanoseconds() > self.limits.wall_seconds * 1e9:
            self.wait()

    def wait(self) -> None:
        """End the program: it waits for something that cannot happen."""
        self.ending = Ending.timeout
        raise WasmtimeError("the program waits")

    def write(self, stream: bytearray, text: bytes) -> int:
        """Keep what a program prints; return the number of bytes, or the error that it sees."""
        if self.ending is not None:
            return -errno.EIO
        stream += text[: self.limits.output + 1 - len(stream)]
        if len(stream) > self.limits.output:
            self.ending = Ending.resource
            return -errno.EIO
        return len(text)


class Wasm:
    """Runs programs in CPython for WebAssembly. The threads of a process may run several at the same time."""

    name = "wasm"
    description = "WebAssembly, with counted instructions, Python 3.14 without packages"

    def __init__(self) -> None:
        self._engine: Engine = engine()
        self._component = Component.deserialize_file(self._engine, str(interpreter()))
        self._running = threading.local()  # what the component calls, it calls in the thread of its program
        self._linker = self._linked()

    def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
        """Run the source of a Python program with the text `stdin` as its input."""
        run = _Run(Store(self._engine), limits)
        try:
            return _outcome(run, _with_stack(lambda: self._execute(run, program, stdin)))
        except (OSError, RuntimeError, WasmtimeError) as error:
            return Outcome(ending=Ending.infrastructure, stderr=f"wasmtime: {error}")
        finally:
            run.store.close()

    def _execute(self, run: _Run, program: str, stdin: str) -> int | None:
        """Return the exit status of a program; `None` if it was ended."""
        self._running.run = run
        run.store.set_limits(memory_size=INTERPRETER_MEMORY + run.limits.memory << 20)
        run.store.set_fuel(run.limits.seconds * FUEL_PER_SECOND)
        run.store.set_wasi(_streams(run, stdin.encode(errors="replace")))
        start = self._linker.instantiate(run.store, self._component).get_func(run.store, "run")
        assert start is not None
        try:
            status = start(run.store, program.encode(errors="replace").decode())
        except ExitTrap as end:  # os._exit
            status = end.code
        except WasmtimeError as error:
            status = None if run.ending or not run.store.get_fuel() else _exit_status(str(error))
        if run.ending is None and not run.store.get_fuel():
            run.ending = Ending.timeout
        return status

    def _linked(self) -> Linker:
        """Return what the component imports: WASI without files and network, with clocks of the program's own."""
        linker = Linker(self._engine)
        linker.allow_shadowing = True
        linker.add_wasip2()
        running = self._running

        def ended(*_: Any) -> None:
            running.run.wait()

        def wall_clock(_: Any) -> Record:
            seconds, nanoseconds = divmod(running.run.nanoseconds(), 10**9)
            return _record(seconds=_STARTED_AT + seconds, nanoseconds=nanoseconds)

        replaced: dict[str, dict[str, Callable[..., Any]]] = {
            "clocks/monotonic-clock": {
                "now": lambda _: running.run.nanoseconds(),
                "resolution": lambda _: 1,
                "subscribe-instant": ended,
                "subscribe-duration": ended,
            },
            "clocks/wall-clock": {"now": wall_clock, "resolution": lambda _: _record(seconds=0, nanoseconds=1)},
            "random/random": {
                "get-random-bytes": lambda _, count: bytes(count),
                "get-random-u64": lambda _: 0,
            },
        }
        with linker.root() as root:
            for name in self._component.type.imports(self._engine):
                functions = replaced.pop(name.removeprefix("wasi:").partition("@")[0], None)
                if functions is not None:
                    with root.add_instance(name) as instance:
                        for each, function in functions.items():
                            instance.add_func(each, function)
            root.add_func("sleep", lambda _, seconds: running.run.sleep(seconds))
        assert not replaced, f"the component does not import {', '.join(replaced)}"
        return linker


def _with_stack(function: Callable[[], int | None]) -> int | None:
    """Call a function in a thread that has the stack of a program, and room for what the program calls.

    A program that overflowed the stack of its thread would end this process.
    """
    called: Future[int | None] = Future()

    def call() -> None:
        try:
            called.set_result(function())
        except BaseException as error:
            called.set_exception(error)

    with _STARTING:
        before = threading.stack_size(4 * STACK)
        try:
            threading.Thread(target=call, daemon=True).start()
        finally:
            threading.stack_size(before)
    return called.result()


def wasms() -> Iterator[Wasm]:
    """Yield the sandbox of WebAssembly; its interpreter is built the first time.

    Raises:
        OSError: it cannot be built.
    """
    yield Wasm()


def _record(**fields: int) -> Record:
    record = Record()
    vars(record).update(fields)
    return record


def _streams(run: _Run, stdin: bytes) -> WasiConfig:
    """Return all that a program has of WASI: its input, and where its output goes."""
    wasi = WasiConfig()
    given = _ffi.wasm_byte_vec_t()
    _ffi.wasm_byte_vec_new(byref(given), len(stdin), (_ffi.wasm_byte_t * len(stdin)).from_buffer_copy(stdin))
    _ffi.wasi_config_set_stdin_bytes(wasi.ptr(), byref(given))  # how often a file is read depends on the machine
    wasi.stdout_custom = lambda text: run.write(run.stdout, text)
    wasi.stderr_custom = lambda text: run.write(run.stderr, text)
    return wasi


def _exit_status(fault: str) -> int:
    """Return the exit status of a program that ended by a trap: `os._exit` states one, other traps are crashes."""
    _, exited, status = fault.rpartition("Exited with i32 exit status ")
    return int(status.split()[0]) if exited else _ABORTED


def _outcome(run: _Run, status: int | None) -> Outcome:
    ending = run.ending or Ending.exited
    if ending is Ending.exited and status != 0 and b"MemoryError" in run.stderr[-_LAST_LINE:]:
        ending = Ending.resource
    most = run.limits.output
    return Outcome(
        ending=ending,
        stdout=run.stdout[:most].decode(errors="replace"),
        stderr=run.stderr[:most].decode(errors="replace"),
        exit_status=status if run.ending is None else None,
        seconds=run.computed,
    )
