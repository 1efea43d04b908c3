"""What this machine, or the container on it, has for a process: cores and main memory. Nothing here loads torch."""

import os
from pathlib import Path

MOST_THREADS = 1024
"""OpenMP ends the process without a word where it cannot start so many threads as it is asked for."""

CGROUP = Path("/sys/fs/cgroup")
MEMORY_FILES = (  # of the versions 2 and 1: the limit of a container, what it uses, and for what
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def cores(root: Path = CGROUP) -> int:
    """Return how many cores this process may use: those of its affinity, or fewer if a container has a limit."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except OSError:
        return seen
    return seen if quota == "max" else max(1, min(seen, int(quota) // int(period)))


def main_memory() -> int:
    """Return the bytes of memory of the machine, or of the container that this runs in."""
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), container_limit())


def free_main_memory() -> int:
    """Return the free bytes of the machine, or of the container that this runs in."""
    return min(_free_on_machine(), free_in_container())


def container_limit(root: Path = CGROUP) -> int:
    """Return the bytes that the container of this process may use; if it has no limit, more than any machine has."""
    for limit, _, _ in MEMORY_FILES:
        if (root / limit).exists() and (most := (root / limit).read_text().strip()).isdigit():
            return int(most)
    return 1 << 62


def free_in_container(root: Path = CGROUP) -> int:
    """Return what a container's limit leaves, without file caches; if it has no limit, more than any machine has."""
    for limit, used, stat in MEMORY_FILES:
        if (root / limit).exists() and (most := (root / limit).read_text().strip()).isdigit():
            caches = dict(line.split() for line in (root / stat).read_text().splitlines())
            return int(most) - int((root / used).read_text()) + int(caches.get("inactive_file", 0))
    return 1 << 62


def _free_on_machine() -> int:
    """Return what the machine has left, by Linux's own estimate; elsewhere, half of its memory."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024
