"""The guard on LMDB's write lock: a process stuck in a write transaction blocks all others, so the guard kills it.

Each daemon runs one; every other writer runs one that kills no process, and reports the process that it waits for.
The lock itself shows its holder (`tidemark.io.state.locking.write_lock`): any process of ours, also `cdcctl` and the
runner of Spark, wherever it stopped between acquiring and releasing the lock. The WRITER slot's count, which every
transaction changes twice, shows that it is still the same transaction; its start is in the slot, or is the guard's
first check if the slot is empty. Death frees the lock, and the transaction's writes are discarded.

A process cannot repair itself: if the stuck thread is in the guard's own process, the guard reports it, and the other
daemon's guard kills it, or the supervisor of the process.
"""

import os
import threading
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from tidemark.io.host.clock import (
    NS_PER_S,
    boot_id,
    boot_ns,
    host_name,
    process_of_thread,
    process_start_ticks,
    program_name,
)
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.host.process_kill import DEATH_S, kill_process
from tidemark.io.state.environment import Environment, Guarded
from tidemark.io.state.locking.heartbeat import WATCHDOG_S_DEFAULT, Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.model.mode import Role
from tidemark.wire.state.process_log import Owner

# Of `watchdog_s`: a process that waits for a stuck writer may write no heartbeat, and must not count as hung.
STUCK_SHARE = 2 / 3
CHECKS_PER_WAIT = 10  # checks in `stuck_s`
CHECK_S_MAX = 1.0
# After a suspend of the host, or a stop of this process, everything looks stuck at the first check.
CHECKS_MIN = 3
HINT = "all writers wait for it: continue or kill it; a daemon that starts kills it as well"


@dataclass(frozen=True, slots=True)
class Writing:
    """One write transaction and its process."""

    thread_id: int
    pid: int  # 0: the process is not visible
    start_ticks: int
    slot_count: int
    began_ns: int | None  # from the heartbeat file, if that names the same process


class WriterWatch:
    """Observes the current write transaction, and since when it has been open."""

    def __init__(self, environment: Environment, stuck_s: float) -> None:
        self._lock = environment.write_lock
        self._heartbeat = environment.heartbeat
        self._stuck_ns = int(stuck_s * NS_PER_S)
        self._seen: Writing | None = None
        self._since_ns = 0
        self._checks = 0

    @property
    def sees_open(self) -> bool:
        """Return whether a transaction was open at the last check."""
        return self._seen is not None

    def find_stuck(self, now_boot_ns: int) -> Writing | None:
        """Return the stuck transaction, if there is one; the same one again only after another `stuck_s`."""
        found = self.writing()
        if found != self._seen:
            self._seen = found
            self._since_ns = found.began_ns if found is not None and found.began_ns is not None else now_boot_ns
            self._checks = 0
        self._checks += 1
        if found is None or self._checks < CHECKS_MIN or now_boot_ns - self._since_ns < self._stuck_ns:
            return None
        self._since_ns, self._checks = now_boot_ns, 0
        return found

    def writing(self) -> Writing | None:
        """Return the open write transaction."""
        thread_id = self._lock.holder()
        if thread_id is None:
            return None
        count = self._heartbeat.count(Slot.WRITER)
        pid = process_of_thread(thread_id) or 0
        start_ticks = process_start_ticks(pid) or 0
        beat = self._heartbeat.read(Slot.WRITER)
        is_its = beat is not None and (beat.pid, beat.start_ticks, beat.boot_id) == (pid, start_ticks, boot_id())
        return Writing(thread_id, pid, start_ticks, count, beat.boot_ns if beat is not None and is_its else None)


class WriteGuard:
    """The guard's thread."""

    def __init__(self, environment: Environment, *, watchdog_s: float, log: Log, kills: bool = True) -> None:
        """Start no thread yet. Close the environment after `stop` only. Without `kills` it reports stuck writers."""
        self._environment = environment
        self._stuck_s = watchdog_s * STUCK_SHARE
        self._log = log
        self._kills = kills
        self._watch = WriterWatch(environment, self._stuck_s)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="write-guard", daemon=True)

    def start(self) -> None:
        """Start checking."""
        if self._environment.write_lock.is_known:
            self._thread.start()
        else:
            self._log.warning("stuck writers are not detected: LMDB's lock file has an unknown layout")

    def stop(self) -> None:
        """Stop; wait for a kill in progress."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * DEATH_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        check_s = min(CHECK_S_MAX, self._stuck_s / CHECKS_PER_WAIT)
        try:
            # While no transaction is open, checks are half as frequent: each one wakes the processor.
            while not self._stopping.wait(check_s if self._watch.sees_open else 2 * check_s):
                stuck = self._watch.find_stuck(boot_ns())
                if stuck is not None:
                    self.end_writer(stuck)
        except Exception as error:  # noqa: BLE001 - the one place: the daemon continues, and reports what does not work
            self._log.error("the guard on writers ended", **describe_error(error))

    def end_writer(self, stuck: Writing) -> None:
        """Kill a writer that is still stuck, if this process may; otherwise report it."""
        fields = {"pid": stuck.pid, "writer": self._name(stuck), "stuck_s": round(self._stuck_s, 1)}
        if stuck.pid == os.getpid():
            self._log.error("this process is stuck inside a write transaction", **fields)
        elif self._kills and self._is_ours(stuck) and self._kill(stuck):
            self._log.warning("killed a process that was stuck inside a write transaction", **fields)
        elif self._watch.writing() == stuck:
            self._log.error(
                "a process is stuck inside a write transaction, and this process may not kill it", **fields, hint=HINT
            )

    def _is_ours(self, stuck: Writing) -> bool:
        """Return whether the process surely writes here: thread ids of another pid namespace may match any process."""
        return stuck.pid != 0 and (stuck.began_ns is not None or self._environment.write_lock.is_open_in(stuck.pid))

    def _kill(self, stuck: Writing) -> bool:
        process = Owner("writer", host_name(), boot_id(), stuck.pid, stuck.start_ticks)
        return kill_process(process, is_still_due=lambda: self._watch.writing() == stuck)

    def _name(self, stuck: Writing) -> str:
        """Return the role of which a process has the lock, or the name of its program."""
        folder = self._environment.folder
        for role in Role:
            owner = RoleLock.status(folder, role.value).owner
            if owner is not None and (owner.pid, owner.start_ticks) == (stuck.pid, stuck.start_ticks):
                return owner.role
        return program_name(stuck.pid)


def reporting_stuck_writers(log: Log) -> Guarded:
    """Return the guard of a program that is not a daemon: it only reports the process it waits for."""
    return partial(WriteGuard, watchdog_s=WATCHDOG_S_DEFAULT, log=log, kills=False)
