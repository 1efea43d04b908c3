"""Memory that a step has freed stays with the process, for the next step asks for as much again."""

import contextlib
import ctypes
import sys

# Of glibc's `mallopt`. Set alone, either would switch off what glibc does for large tensors by itself.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
NEVER, LARGEST = 2**31 - 1, 32 * 2**20


def disable_trim() -> None:
    """From now on, in this process, only tensors above 32 MiB go back to the system when they are freed.

    Otherwise glibc gives back what is free at the end of its heap, and every step begins by taking thousands of pages
    anew. Where there is another C library, nothing happens.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            allocator = ctypes.CDLL(None)
            allocator.mallopt(TRIM_THRESHOLD, NEVER)
            allocator.mallopt(MMAP_THRESHOLD, LARGEST)
