"""What becomes of memory that is freed.

A group of changes takes some tens of megabytes, and lets go of them before the next one. The C library gives them back
to the kernel, and gets them again page by page, until it has learned from this to keep them: by then a run of a second
is over.
"""

import ctypes

KEPT_BYTES = 64 << 20  # free at the end of the heap, before it is given back
MAPPED_FROM_BYTES = 32 << 20  # a piece of its own, given back as soon as it is freed; glibc allows no more
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> None:
    """Let this process keep freed memory from the start, where its C library can be told so."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
