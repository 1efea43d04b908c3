"""What Linux says of processes, in `/proc`: who used the processors, and how much memory.

A contender leads a session of its own, and so do the processes it starts: they are counted with it.
"""

import os
from pathlib import Path

PROC = Path("/proc")
TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds


def available() -> bool:
    """Whether there is a `/proc` as Linux has it."""
    return (PROC / "self/stat").exists() and (PROC / "stat").exists()


def busy() -> float:
    """Seconds that the cores have worked for anybody, or were taken by the host, since the machine started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, (PROC / "stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK


def used(session: int) -> float:
    """Processor seconds of a session's processes, with those of their children that have ended."""
    return sum(sum(map(int, fields[11:15])) * TICK for fields in _processes(session).values())


def memory(session: int, field: str) -> int:
    """Bytes of a session's processes: `VmRSS` now, `VmHWM` at most. What they share is counted in each."""
    total = 0
    for process in _processes(session):
        lines = _read(PROC / str(process) / "status").splitlines()
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
    return total


def _processes(session: int) -> dict[int, list[str]]:
    """What `/proc/PID/stat` says of each after its name."""
    found = {int(path.name): _read(path / "stat").rpartition(")")[2].split() for path in PROC.glob("[0-9]*")}
    return {process: fields for process, fields in found.items() if fields and int(fields[3]) == session}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has just ended
        return ""
