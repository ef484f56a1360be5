"""Memory that a process of ours frees and takes again: page faults are counted, in a process of its own."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import sys

from tidemark.io.memory import keep_freed_memory

PIECE = b"x" * (8 << 20)

def take() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytearray(PIECE) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if "keep" in sys.argv:
    keep_freed_memory()
print(take(), take())
"""


def faults(*arguments: str) -> list[int]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_is_freed_is_taken_again_without_page_faults() -> None:
    first, second = faults("keep")
    assert second < first // 10
    assert faults()[1] > second * 10, "there is nothing to be told any more"
