"""Memory that a process allocates, frees and allocates again: page faults are counted, in a separate process."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import resource
import sys

from tidemark.io.host.memory import keep_freed_memory

PIECE = b"x" * (8 << 20)

def take() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytearray(PIECE) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if "keep" in sys.argv:
    keep_freed_memory()
print(take(), take())
"""
needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def faults(*arguments: str) -> tuple[int, int]:
    """Return the page faults of the first and the second allocation."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    first, again = map(int, done.stdout.split())
    return first, again


@needs_glibc
def test_freed_memory_is_allocated_again_without_page_faults() -> None:
    assert faults("keep")[1] * 100 < faults()[1]


@needs_glibc
@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text(), reason="huge pages are not for who asks"
)
def test_memory_comes_in_huge_pages() -> None:
    assert faults("keep")[0] * 10 < faults()[0]
