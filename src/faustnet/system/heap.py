"""Settings of the C library's memory allocator."""

import ctypes
from functools import cache

KEPT = 64 * 2**20  # bytes of freed memory that a process keeps at the end of its heap
LARGEST = 32 * 2**20  # bytes of a block on the heap; larger ones are mapped one by one. It is the largest possible value.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # in glibc's malloc.h


@cache
def keep_freed_memory() -> bool:
    """Let this process keep freed memory for its next tensors, and return whether the C library can.

    By default, glibc returns it to the system whenever a layer has been trained, and the next layer gets it back page by
    page, which takes a part of every step. Only glibc has these settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
