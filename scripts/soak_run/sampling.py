"""The resource use of processes and folders, from /proc and the file system."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB, MIB_KIB = 1 << 20, 1024
JAVA = "java"


@dataclass(frozen=True, slots=True)
class Used:
    """The total use of some processes."""

    processes: int = 0
    rss_mb: float = 0.0
    anonymous_mb: float = 0.0  # without mapped files, such as LMDB's and programs
    descriptors: int = 0
    threads: int = 0
    cpu_s: float = 0.0

    def __add__(self, other: "Used") -> "Used":
        """Return the sum."""
        return Used(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Used)))


@dataclass(frozen=True, slots=True)
class SampledFamily:
    """A process and its descendants by kind: itself, the JVM, and the JVM's Python processes."""

    own: tuple[int, ...]
    jvms: tuple[int, ...]
    helpers: tuple[int, ...]


def family(pid: int) -> SampledFamily:
    """Return the kinds of `pid` and its descendants."""
    own: list[int] = []
    jvms: list[int] = []
    helpers: list[int] = []
    for member, below_jvm in _descendants(pid, below_jvm=False):
        kind = jvms if _name(member) == JAVA else helpers if below_jvm else own
        kind.append(member)
    return SampledFamily(tuple(own), tuple(jvms), tuple(helpers))


def used(pids: Iterable[int]) -> Used:
    """Return the processes' use of resources; an ended process uses none."""
    return sum((_used(pid) for pid in pids), Used())


def files(folder: Path) -> tuple[int, float]:
    """Return the number of files below a folder, and their disk space in MB."""
    count, size = 0, 0
    for path in _files(folder):
        try:
            size += path.stat().st_blocks * 512
        except OSError:
            continue  # removed meanwhile
        count += 1
    return count, size / MIB


def _files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (Path(where, name) for name in names)


def _descendants(pid: int, *, below_jvm: bool) -> Iterator[tuple[int, bool]]:
    yield pid, below_jvm
    below_jvm = below_jvm or _name(pid) == JAVA
    for task in _listed(PROC / str(pid) / "task"):
        for child in _read(task / "children").split():
            yield from _descendants(int(child), below_jvm=below_jvm)


def _used(pid: int) -> Used:
    reported = dict(line.split(":", 1) for line in _read(PROC / str(pid) / "status").splitlines() if ":" in line)
    stat = _read(PROC / str(pid) / "stat").rpartition(")")[2].split()
    if "VmRSS" not in reported or not stat:
        return Used()
    kib = {name: int(reported[name].split()[0]) for name in ("VmRSS", "RssAnon")}
    descriptors = len(_listed(PROC / str(pid) / "fd"))
    cpu_s = (int(stat[11]) + int(stat[12])) / TICKS_PER_S  # utime, stime of proc(5), counted from the end of the name
    return Used(1, kib["VmRSS"] / MIB_KIB, kib["RssAnon"] / MIB_KIB, descriptors, int(reported["Threads"]), cpu_s)


def _name(pid: int) -> str:
    return _read(PROC / str(pid) / "comm").strip()


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
