"""The role of a capture that an application embeds: the capture does what a daemon does around its captures.

The other process judges by the role's lock and by the holder's heartbeat. Without them it would consider the
capture dead or hung, kill the process, and deliver in its place.
"""

import os
import threading

from tidemark.io.host.clock import boot_id, host_name, own_start_ticks
from tidemark.io.state.locking.heartbeat import START_S_MAX, STOP_S_MAX, Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.model.errors import Fenced
from tidemark.model.position import Epoch
from tidemark.wire.state.process_log import Owner

BEATS = 10  # within `watchdog.watchdog_s`


class RoleHolding:
    """Holds the role of an epoch's owner and beats for it, by a thread, until it is released.

    NB: the beats show that the process runs, as those of a daemon's loop do; the caller of `poll` gets the errors.
    """

    def __init__(self, store: StateStore, epoch: Epoch, watchdog_s: float) -> None:
        """Raise `Fenced` if the epoch is over. If this process has the lock, write the first heartbeat."""
        term = store.marks().term
        if term is None or term.epoch != epoch or term.owner is None:
            raise Fenced(f"epoch {epoch} has ended", hint="another process delivers now")
        self._store = store
        self._role = term.owner.role
        self._slot = Slot[self._role.upper()]
        self._beat_s = watchdog_s / BEATS
        self._lock: RoleLock | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        if self._is_held_here():
            store.environment.heartbeat.beat(self._slot, ahead_s=START_S_MAX)  # the next steps may take long

    def start(self) -> None:
        """Take the role's lock, unless this process has it; raise `AlreadyRunning` if another one does."""
        if not self._is_held_here():
            self._lock = RoleLock.acquire(self._store.folder, self._role)
        self._thread.start()

    def stop(self) -> None:
        """Write the last heartbeat: the capture has as long to stop as a daemon has."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._store.environment.heartbeat.beat(self._slot, ahead_s=STOP_S_MAX)

    def release(self) -> None:
        """Release the role: another process may take it at once."""
        self._store.environment.heartbeat.clear(self._slot)
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _is_held_here(self) -> bool:
        lock = RoleLock.status(self._store.folder, self._role)
        own = Owner(self._role, host_name(), boot_id(), os.getpid(), own_start_ticks())
        return lock.is_locked and lock.owner == own

    def _run(self) -> None:
        while True:
            self._store.environment.heartbeat.beat(self._slot)
            if self._stopping.wait(self._beat_s):
                return
