"""Keep the memory that a step has freed in the process, because the next step needs as much again."""

import contextlib
import ctypes
import sys

# Options of glibc's `mallopt`. Either of them alone would switch off how glibc treats large tensors by default.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
NEVER, LARGEST = 2**31 - 1, 32 * 2**20


def disable_trim() -> None:
    """Return only tensors above 32 MiB to the system when they are freed, in this process, from now on.

    By default glibc returns the free memory at the end of its heap, and every step begins by allocating thousands of
    pages again. With another C library this function does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            allocator = ctypes.CDLL(None)
            allocator.mallopt(TRIM_THRESHOLD, NEVER)
            allocator.mallopt(MMAP_THRESHOLD, LARGEST)
