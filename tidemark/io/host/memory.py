"""Keeps freed memory in the process, and uses huge pages for the heap.

A group of changes needs megabytes, and frees them before the next one. The C library returns them to the kernel, and
requests them again page by page, until it has adapted: a run of one second is over by then. So this module
sets the C library to keep freed memory, and the kernel to back the heap with huge pages, each in place of 512.
"""

import ctypes
import mmap

HEAP_BYTES = 192 << 20  # by which the heap grows at once: address space only, memory is allocated when it is written
KEPT_BYTES = HEAP_BYTES + (64 << 20)  # free bytes at the end of the heap before they are returned
MAPPED_FROM_BYTES = 32 << 20  # larger allocations are mapped, and unmapped when freed; glibc's maximum
HUGE_BYTES = 2 << 20  # of a huge page
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_TOP_PAD_BYTES = 128 << 10  # glibc's default of M_TOP_PAD


def keep_freed_memory() -> None:
    """Keep freed memory in this process from the start, in huge pages, if its C library is glibc."""
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
    libc.free(libc.malloc(MAPPED_FROM_BYTES - HUGE_BYTES))  # more than is free, so that the heap grows
    libc.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
    first_huge = (begin + HUGE_BYTES - 1) // HUGE_BYTES * HUGE_BYTES
    byte_count = libc.sbrk(0) - first_huge
    if byte_count > 0:
        libc.madvise(first_huge, byte_count, mmap.MADV_HUGEPAGE)  # NB: rejected by a kernel without huge pages
