"""The processes that use a state: which one owns the epoch, which ones run, and how the others ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of the current epoch: a process; its start time distinguishes it from a later one with the same pid."""

    role: str  # sidecar, archiver, cdcctl
    host: str
    boot_id: str
    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended, for people and metrics."""

    at_us: int  # wall clock; 0: not known
    exit_code: int | None  # None: it left no record
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """The runs of each process, by role: the running process, and how the last run ended."""

    running: Mapping[str, Owner] = field(default_factory=dict)  # includes a run that left no record of its end
    ends: Mapping[str, ProcessEnd] = field(default_factory=dict)
