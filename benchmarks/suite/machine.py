"""Read from `/proc` which processes used the processors, and how much memory they have (Linux only).

An implementation leads its own session; all processes of the session are counted together.
"""

import os
from pathlib import Path

PROC = Path("/proc")
TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds


def available() -> bool:
    """Return whether there is a `/proc` as on Linux."""
    return (PROC / "self/stat").exists() and (PROC / "stat").exists()


def busy() -> float:
    """Return the seconds that the cores were busy, or taken by the host, since the machine started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, (PROC / "stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK


def used(session: int) -> float:
    """Return the processor seconds of a session, including children that have ended."""
    return sum(sum(map(int, fields[11:15])) * TICK for fields in _processes(session).values())


def memory(session: int, field: str) -> int:
    """Return the bytes of a session: `VmRSS` now, `VmHWM` at the peak. Shared memory counts in each process."""
    total = 0
    for process in _processes(session):
        lines = _read(PROC / str(process) / "status").splitlines()
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
    return total


def _processes(session: int) -> dict[int, list[str]]:
    """Return the fields of `/proc/PID/stat` after the name, for each process of a session."""
    found = {int(path.name): _read(path / "stat").rpartition(")")[2].split() for path in PROC.glob("[0-9]*")}
    return {process: fields for process, fields in found.items() if fields and int(fields[3]) == session}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has just ended
        return ""
