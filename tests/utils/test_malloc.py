"""Freed memory stays with the process, so that the next step need not ask the system for it page by page."""

import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys, torch
from outdo.utils.malloc import disable_trim

if sys.argv[1] == "kept":
    disable_trim()

def round():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made = [torch.ones(size) for size in (10_000, 100_000, 1_000_000, 4_000_000) * 6]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(sum(round() for _ in range(4)))
"""


def pages(how: str) -> int:
    """How many were taken from the system in all rounds."""
    done = subprocess.run([sys.executable, "-c", ROUNDS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator alone gives memory back in this way")
def test_freed_memory_is_used_again():
    assert pages("kept") < 2 / 3 * pages("given back")
