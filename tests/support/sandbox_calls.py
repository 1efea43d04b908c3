"""What calls of a sandbox leave behind, counted in a process of their own: `python sandbox_calls.py TIER CALLS`.

In the process of the tests, threads of other libraries allocate memory at any time.
"""

import ctypes
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from outdo.extras.sandbox import Limits, Outcome, open_sandbox

PR_SET_CHILD_SUBREAPER = 36

WARM_UP = 10

PROGRAMS = (
    "print(input())",
    "import sys; sys.exit(3)",
    "while True: print('a' * 1000)",
    "a = [0] * 10 ** 10",
    "import os; os.close(1); os._exit(0)",
)


def children(process: int | str = "self") -> list[int]:
    """Return the children of a process; each of its threads has children of its own."""
    found: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends meanwhile
            found += map(int, file.read_text().split())
    return found


def resident_kib() -> int:
    """Return how much memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def main(tier: str, calls: int) -> None:
    """Print how the calls ended, and what is there besides what was there after the warm-up."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # processes that lose their parent become ours
    sandbox = open_sandbox(tier)

    def call(number: int) -> Outcome:
        limits = Limits(seconds=1, wall_seconds=5, memory=128)
        return sandbox.run(PROGRAMS[number % len(PROGRAMS)], "text", limits)

    for number in range(WARM_UP):
        call(number)
    before, descriptors, memory = children(), len(os.listdir("/proc/self/fd")), resident_kib()
    endings = {call(number).ending for number in range(calls)}
    sandbox.run("import time; time.sleep(1000)", limits=Limits(wall_seconds=5))
    left = {
        "endings": sorted(endings),
        "processes": len(set(children()) - set(before)),
        "descriptors": len(os.listdir("/proc/self/fd")) - descriptors,
        "kib": resident_kib() - memory,
    }
    print(json.dumps(left))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
