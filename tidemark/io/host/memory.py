"""Settings for freed memory and for page size.

A group of changes needs megabytes, and frees them before the next one. The C library returns them to the kernel, and
gets them again page by page, until it has adapted and keeps them: a run of a second is over by then. So this module
sets the C library to keep them, and the kernel to provide the heap in huge pages, each for 512 others.
"""

import ctypes
import mmap

HEAP_BYTES = 192 << 20  # by which the heap gets longer at once: of addresses, memory comes when it is written to
KEPT_BYTES = HEAP_BYTES + (64 << 20)  # free at the end of the heap, before it is given back
MAPPED_FROM_BYTES = 32 << 20  # a piece of its own, given back as soon as it is freed; glibc allows no more
HUGE_BYTES = 2 << 20  # a huge page
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_TOP_PAD_BYTES = 128 << 10  # what M_TOP_PAD is as long as nobody sets it


def keep_freed_memory() -> None:
    """Let this process keep freed memory from the start, in huge pages, where its C library can be told so."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    libc.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.sbrk.argtypes, libc.malloc.argtypes = [ctypes.c_ssize_t], [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    begin: int = libc.sbrk(0)
    libc.mallopt(_M_TOP_PAD, HEAP_BYTES)
    libc.free(libc.malloc(MAPPED_FROM_BYTES - HUGE_BYTES))  # more than is left, so that the heap gets longer
    libc.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
    first_huge = (begin + HUGE_BYTES - 1) // HUGE_BYTES * HUGE_BYTES
    byte_count = libc.sbrk(0) - first_huge
    if byte_count > 0:
        libc.madvise(first_huge, byte_count, mmap.MADV_HUGEPAGE)  # NB: a kernel without huge pages refuses: as before
