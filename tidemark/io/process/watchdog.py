"""The watch on the other process: whether it lives, and the kill of a process that hangs (I20).

    ALIVE ──► RESTARTING ──► GONE      its lock is free, for less or more than `restart_s`; if it was never seen,
      │                                `stale_s`: after a boot one of the two daemons starts first
      └─────► HUNG                     its lock is held, and its last heartbeat is older than `stale_s`

A process that restarts and ends again, before it has lived for `stale_s`, counts as absent: after `stale_s` of that it
is GONE the next time its lock is free, however soon the service manager would restart it.

Heartbeats are on the boot clock. Only those of the process that holds the lock count: an earlier one's in the
heartbeat file do not apply to one that has just started. For a process without a heartbeat, its lock is the first sign.
"""

from enum import Enum
from typing import Self

from tidemark.io.host.clock import NS_PER_S, boot_id, host_name
from tidemark.io.host.process_kill import kill_process
from tidemark.io.process.config import WatchdogConfig
from tidemark.io.state.environment import Environment
from tidemark.io.state.locking.heartbeat import Heartbeat, HeartbeatFile, Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.mode import Role
from tidemark.wire.state.process_log import Owner

# How long an old heartbeat must remain the last one: after a suspend of the host all heartbeats are old at first.
STILL_NS = NS_PER_S


class Condition(Enum):
    """The condition of another process."""

    ALIVE = "alive"
    RESTARTING = "restarting"
    GONE = "gone"
    HUNG = "hung"


class Watch:
    """Observes one role's lock and heartbeat."""

    def __init__(
        self, folder: StateFolder, heartbeat: HeartbeatFile, role: Role, *, stale_s: float, restart_s: float
    ) -> None:
        self._folder = folder
        self._heartbeat = heartbeat
        self._role = role
        self._slot = Slot[role.name]
        self._stale_ns = int(stale_s * NS_PER_S)
        self._restart_ns = int(restart_s * NS_PER_S)
        self._condition: Condition | None = None
        self._was_seen = False  # since this watch began
        self._free_since_ns = 0
        self._held_since_ns = 0
        self._ended_since_ns: int | None = None  # its first end after which it has not lived long enough
        self._holder: Owner | None = None
        self._beat: Heartbeat | None = None  # at the last check
        self._sign_ns = 0  # the holder's last heartbeat
        self._old_since_ns: int | None = None  # since when it is known to be old

    @classmethod
    def configured(cls, environment: Environment, role: Role, config: WatchdogConfig) -> Self:
        """Watch a role over the open `environment`, with the times of the configuration."""
        times = {"stale_s": config.watchdog_s, "restart_s": config.restart_s}
        return cls(environment.folder, environment.heartbeat, role, **times)

    def condition(self, now_boot_ns: int) -> Condition:
        """Return the condition of the process."""
        lock = RoleLock.status(self._folder, self._role.value)
        self._beat = self._heartbeat.read(self._slot)
        was = self._condition
        if lock.is_locked:
            self._was_seen = True
            if was in (None, Condition.RESTARTING, Condition.GONE) or self._holder != lock.owner:
                self._begin(lock.owner, now_boot_ns)
            if was is Condition.GONE or now_boot_ns - self._held_since_ns >= self._stale_ns:
                self._ended_since_ns = None
            self._condition = self._condition_of_holder(now_boot_ns)
        else:
            if was in (None, Condition.ALIVE, Condition.HUNG):
                self._free_since_ns = now_boot_ns
            self._condition = Condition.GONE if self._is_late(now_boot_ns) else Condition.RESTARTING
        return self._condition

    def kill_process(self) -> bool:
        """Kill a process that is HUNG or GONE; return whether it is dead.

        It is spared, and False returned, if it has written a heartbeat since the last check.
        """
        if self._condition not in (Condition.HUNG, Condition.GONE):
            return False
        beat = self._beat
        process = self._holder if self._condition is Condition.HUNG else None
        if process is None and beat is not None:
            # Also a process without a lock: a normal end clears its slot before it releases the lock.
            process = Owner(self._role.value, host_name(), beat.boot_id, beat.pid, beat.start_ticks)
        if process is None:
            return self._condition is Condition.GONE
        return kill_process(process, is_still_due=lambda: self._heartbeat.read(self._slot) == beat)

    def _is_late(self, now_boot_ns: int) -> bool:
        """Return whether a process has been without its lock for too long: since this end, or the first of a series."""
        if self._ended_since_ns is None:
            self._ended_since_ns = self._free_since_ns
        long_ns = max(self._restart_ns, self._stale_ns)
        wait_ns = self._restart_ns if self._was_seen else long_ns
        return now_boot_ns - self._free_since_ns >= wait_ns or now_boot_ns - self._ended_since_ns >= long_ns

    def _begin(self, holder: Owner | None, now_boot_ns: int) -> None:
        self._holder = holder
        self._held_since_ns = now_boot_ns
        self._sign_ns = now_boot_ns
        self._old_since_ns = None

    def _condition_of_holder(self, now_boot_ns: int) -> Condition:
        beat = self._beat
        if beat is not None and self._is_holders(beat) and beat.boot_ns != self._sign_ns:
            self._sign_ns = beat.boot_ns
            self._old_since_ns = None
        if now_boot_ns - self._sign_ns < self._stale_ns:
            return Condition.ALIVE
        if self._old_since_ns is None:
            self._old_since_ns = now_boot_ns
        return Condition.HUNG if now_boot_ns - self._old_since_ns >= STILL_NS else Condition.ALIVE

    def _is_holders(self, beat: Heartbeat) -> bool:
        if beat.boot_id != boot_id():
            return False
        # A lock is held for a moment before its file names the holder.
        return self._holder is None or (beat.pid, beat.start_ticks) == (self._holder.pid, self._holder.start_ticks)
