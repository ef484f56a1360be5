"""Memory that a process allocates, frees and allocates again: page faults are counted, in a separate process."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.io.host.memory import QUIET_S, FreedMemory

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
THREADS_PROGRAM = """
import sys
import threading
from pathlib import Path

from tidemark.io.host.memory import return_freed_memory

def work() -> None:
    kept.append([bytearray(20_000) for _ in range(4000)][::100])

def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

kept = []
threads = [threading.Thread(target=work) for _ in range(3)]
for each in threads:
    each.start()
    each.join()
before = resident()
return_freed_memory()
print(before, resident())
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


@needs_glibc
def test_memory_that_threads_have_freed_is_returned_to_the_system() -> None:
    command = [sys.executable, "-c", THREADS_PROGRAM]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    before, after = map(int, done.stdout.split())
    assert after * 4 < before


def test_memory_is_returned_once_after_each_burst_and_not_during_it() -> None:
    returned: list[float] = []
    now_s = 0.0
    memory = FreedMemory(1000, lambda: returned.append(now_s))
    work = {0: 0, 30: 5000, 40: 5000, 41: 500, 90: 999, 120: 1000}
    done = 0
    for second in range(200):
        now_s = float(second)
        done += work.get(second, 0)
        memory.step(done, now_s)
    assert returned == [50.0, 130.0]


def test_memory_is_returned_after_work_that_is_not_counted() -> None:
    returned: list[str] = []
    memory = FreedMemory(1000, lambda: returned.append("returned"))
    memory.step(0, 100.0)
    memory.expect()
    memory.step(1, 100.0 + QUIET_S)
    memory.step(1, 100.0 + 2 * QUIET_S)
    assert returned == ["returned"]
