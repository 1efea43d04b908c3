"""Build the Python interpreter of the WebAssembly sandbox, once on each machine.

componentize-py packs CPython and its standard library into one component, with every module already imported; wasmtime
compiles it for this processor. Both files stay in the cache folder of the user, under a name that changes with
everything they are made of.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import componentize_py
from wasmtime import Config, Engine, _ffi
from wasmtime.component import Component

from outdo.utils.user_cache import locked, user_cache

_WORLD = """
package outdo:sandbox;

world sandbox {
  import sleep: func(seconds: f64);
  export run: func(program: string) -> s32;
}
"""

_APP = '''
import atexit, builtins, importlib, io, math, os, pkgutil, sys, time, traceback, types
import wit_world

SKIPPED = {"__main__", "__phello__", "_pyrepl", "antigravity", "ensurepip", "idlelib", "lib2to3", "test", "tests",
           "this", "tkinter", "turtle", "turtledemo", "venv"}

def import_all(names):
    """There are no files later: what is not imported now is not there."""
    for name in names:
        if SKIPPED & {*name.split(".")}:
            continue
        try:
            module = importlib.import_module(name)
        except BaseException:
            continue
        import_all([f"{name}.{each.name}" for each in pkgutil.iter_modules(getattr(module, "__path__", ()))])

import_all(sorted(sys.stdlib_module_names))
os.environ.clear()
sys.path.clear()

def sleep(seconds, /):
    """Only the clock of the program advances."""
    if not isinstance(seconds, (int, float)) and not hasattr(type(seconds), "__index__"):
        raise TypeError(f"'{type(seconds).__name__}' object cannot be interpreted as an integer")
    if math.isnan(seconds) or seconds < 0:
        raise ValueError("sleep length must be non-negative")
    wit_world.sleep(float(seconds))

time.sleep = sleep

def stream(descriptor, mode, errors, **options):
    return open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False, **options)

def execute(program):
    """Return the exit status of a program."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__builtins__ = builtins
    try:
        exec(compile(program, "program.py", "exec"), vars(module))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        return 1
    return 0

class WitWorld(wit_world.WitWorld):
    def run(self, program: str) -> int:
        sys.argv[:] = ["program.py"]
        sys.stdin = sys.__stdin__ = stream(0, "r", "surrogateescape")
        sys.stdout = sys.__stdout__ = stream(1, "w", "surrogateescape")
        sys.stderr = sys.__stderr__ = stream(2, "w", "backslashreplace", buffering=1)
        status = execute(program)
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
        except BaseException:
            return status or 120
        return status
'''
"""The program around the program. All of it but the last class runs while the component is built."""

_BUILD = "import sys; from outdo.rewards.sandbox.wasm_build import build; build(*sys.argv[1:])"


STACK = 4 << 20
"""Bytes of stack. Python's own limit of recursion is reached first, also where C calls Python, as in `lru_cache`."""


def engine() -> Engine:
    """Return what compiles and runs the component: it counts instructions, and each NaN has the same bits."""
    config = Config()
    config.consume_fuel = True
    config.cranelift_nan_canonicalization = True
    config.max_wasm_stack = STACK
    _ffi.wasmtime_config_async_stack_size_set(config.ptr(), 2 * STACK)  # which may not be the smaller one
    return Engine(config)


def interpreter() -> Path:
    """Return the compiled interpreter; build it first if it is not in the cache.

    Several processes may call this at the same time: one builds, the others wait.

    Raises:
        OSError: it cannot be built.
    """
    portable = _cache() / f"python-{_digest(_WORLD, _APP, version('componentize-py'))}.wasm"
    compiled = portable.with_suffix(f".{_digest(version('wasmtime'), _processor())}.cwasm")
    if not compiled.exists():
        with locked(portable.parent / "lock"):
            for file, step, takes in (
                (portable, "packing Python and its standard library", "half a minute"),
                (compiled, "compiling it for this processor", "half a minute"),
            ):
                if not file.exists():
                    print(f"outdo: the WebAssembly sandbox, once on this machine: {step}, {takes}", file=sys.stderr)
                    _run_build(file, portable)
    return compiled


def _run_build(file: Path, portable: Path) -> None:
    """Build in a process of its own, which needs half a gigabyte. Others see the finished file only."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        command = [sys.executable, "-c", _BUILD, folder, str(made), str(portable)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        built = subprocess.run(command, capture_output=True, text=True, env=environment)
        if built.returncode != 0:
            raise OSError(f"its interpreter cannot be built: {(built.stderr.strip().splitlines() or ['killed'])[-1]}")
        os.replace(made, file)


def build(folder: str, made: str, portable: str) -> None:
    """Write the file `made`: the component, or what `portable` is compiled to."""
    if made.endswith(".cwasm"):
        Path(made).write_bytes(Component(engine(), Path(portable).read_bytes()).serialize())
        return
    (Path(folder) / "sandbox.wit").write_text(_WORLD)
    (Path(folder) / "outdo_app.py").write_text(_APP)
    componentize: Callable[..., None] = componentize_py.componentize  # pyright: ignore[reportAttributeAccessIssue]
    componentize(
        wit_path=[str(Path(folder) / "sandbox.wit")],
        worlds=["sandbox"],
        features=[],
        all_features=False,
        world_module=None,
        python_path=[folder],
        module_worlds=[],
        app_name="outdo_app",
        output_path=made,
        stub_wasi=False,
        import_interface_names=[],
        export_interface_names=[],
        full_names=False,
        intersect_world=None,
    )


def _cache() -> Path:
    folder = user_cache("wasm")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # the files are machine code, which wasmtime trusts
    return folder


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return what the machine code depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{sys.platform} {platform.machine()} {features}"
