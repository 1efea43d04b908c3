"""Measure how fast this machine multiplies and copies with the threads in use, in turn with everything else."""

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.suite.setting import Setting, Turn, Turns
from outdo.models.onednn import product

SIDES = (512, 1024, 2048)  # of square matrices
COPIED = 2**26  # bytes, read and written: more than a cache holds
ENOUGH = 0.1  # seconds for each measurement


def measure(setting: Setting, turns: Turns) -> None:
    """Report operations per second of the fastest square product, and bytes per second of a copy, read and written."""
    with torch.no_grad():
        turns.take(lambda: Turn(figures=speed(setting.device)), processor=processor())


def processor() -> str:
    """Return the name of the processor, and the instructions that torch uses of it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def speed(device: str) -> dict[str, float]:
    """Measure `multiply` [operations/s] and `copy` [bytes/s]."""
    multiply = 0.0
    for side in SIDES:
        a, b = torch.randn(2, side, side, device=device)
        fastest = min(_best(lambda a=a, b=b, by=by: by(a, b), device) for by in (torch.mm, product))
        multiply = max(multiply, 2 * side**3 / fastest)
    source = torch.ones(COPIED // 4, device=device)  # not zeros, which need not be read from memory
    target = torch.empty_like(source)
    return {"multiply": multiply, "copy": 2 * COPIED / _best(lambda: target.copy_(source), device)}


def _best(work: Callable[[], object], device: str) -> float:
    """Return the seconds of the fastest of some repetitions."""
    best, end = float("inf"), time.perf_counter() + ENOUGH
    while time.perf_counter() < end:
        began = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best
