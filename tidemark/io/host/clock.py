"""The clocks of this machine, and the identity of a process as distinct from a later one with the same pid.

Wall time is for people and for lag; timeouts are measured on the boot clock, which also counts suspend.
"""

import os
import socket
import time
from functools import lru_cache
from pathlib import Path

NS_PER_S = 1_000_000_000
_START_TIME_FIELD = 22  # in /proc/PID/stat, proc(5)


class SystemClock:
    """The real clock (`tidemark.engine.ports.Clock`)."""

    monotonic_s = staticmethod(time.monotonic)
    """Return the seconds of a clock that never goes back: without a Python call, since each commit asks."""

    def wall_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1000


def boot_ns() -> int:
    """Return nanoseconds since boot, with suspend: comparable between processes of one boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the kernel's random identifier of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def host_name() -> str:
    """Return this host's name."""
    return socket.gethostname()


def process_start_ticks(pid: int) -> int | None:
    """Return the start time of the process `pid`, in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # NB: the second field is the program's name in parentheses; the name may contain parentheses too.
    after_name = stat[stat.rindex(b")") + 2 :].split()
    return int(after_name[_START_TIME_FIELD - 3])


def process_of_thread(thread_id: int) -> int | None:
    """Return the pid of a thread's process; None if there is no such thread, or it is not visible."""
    try:
        status = Path(f"/proc/{thread_id}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return int(status.partition(b"\nTgid:")[2].split(maxsplit=1)[0])


def program_name(pid: int) -> str:
    """Return the name of a process's program, without its arguments, which may contain secrets."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "unknown"


def own_start_ticks() -> int:
    """Return `process_start_ticks` of this process."""
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None, "a running process has no entry in /proc"
    return ticks
