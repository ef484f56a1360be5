"""Keeps freed memory in the process, or returns it to the system; uses huge pages for the heap.

A group of changes needs megabytes, and frees them before the next one. The C library returns them to the kernel, and
requests them again page by page, until it has adapted: a run of one second is over by then. So this module
sets the C library to keep freed memory, and the kernel to back the heap with huge pages, each in place of 512.

A daemon has the opposite need: the C library keeps the memory that each thread has freed, so a sidecar that delivered a
transaction of ten million rows had 420 MB afterwards, of which it used 105 (without the ring).
"""

import ctypes
import mmap
from collections.abc import Callable

HEAP_BYTES = 192 << 20  # by which the heap grows at once: address space only, memory is allocated when it is written
KEPT_BYTES = HEAP_BYTES + (64 << 20)  # free bytes at the end of the heap before they are returned
MAPPED_FROM_BYTES = 32 << 20  # larger allocations are mapped, and unmapped when freed; glibc's maximum
HUGE_BYTES = 2 << 20  # of a huge page
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_TOP_PAD_BYTES = 128 << 10  # glibc's default of M_TOP_PAD
QUIET_S = 10.0


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


def return_freed_memory() -> None:
    """Return the memory that this process has freed to the system, if its C library is glibc; takes milliseconds."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))


class FreedMemory:
    """Returns the memory that a burst of work has needed, after the next interval of `QUIET_S` with less of it."""

    def __init__(self, much: int, return_memory: Callable[[], None] = return_freed_memory) -> None:
        """`much`: the work of a burst in `QUIET_S`, in the units of the counter that `step` gets."""
        self._much = much
        self._return_memory = return_memory
        self._is_due = False
        self._done = 0
        self._since_s: float | None = None  # when the present interval began

    def expect(self) -> None:
        """Return memory after the next quiet interval: work that the counter does not contain has ended."""
        self._is_due = True

    def step(self, done: int, now_s: float) -> None:
        """Look at the counter of the work; to be called at short intervals."""
        if self._since_s is None:
            self._since_s, self._done = now_s, done
        if now_s - self._since_s < QUIET_S:
            return
        is_burst = done - self._done >= self._much
        if self._is_due and not is_burst:
            self._return_memory()
        self._is_due = is_burst
        self._since_s, self._done = now_s, done
