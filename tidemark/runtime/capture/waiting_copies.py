"""Copies of tables that wait until the stream has delivered all up to an LSN, and then need a restart of the capture.

A rewind queues them, or an interrupted start has planned them for later.
"""

from typing import TYPE_CHECKING

from tidemark.engine.progress import Progress
from tidemark.io.state.state import StateStore
from tidemark.runtime.seed.copy_plan import has_waited, waits_for

if TYPE_CHECKING:
    from tidemark.model.lsn import Lsn


class WaitingCopies:
    """The waiting copies of one capture."""

    def __init__(self, store: StateStore, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._wait_for: Lsn | None = None  # known once a first copy is planned

    def read(self) -> None:
        """Read from the state up to which LSN the stream has to be delivered."""
        self._wait_for = waits_for(self._store.view())

    def check(self) -> None:
        """Read it again if the stream has reached that LSN, and no copy is due there."""
        if self._are_reached and not self._are_due():
            self.read()

    @property
    def exist(self) -> bool:
        """Return whether tables wait for a restart."""
        return self._wait_for is not None

    @property
    def need_restart(self) -> bool:
        """Return whether everything that a waiting copy needs is delivered; later changes are in the copied rows."""
        if not self._are_reached or self._progress.lag_bytes > self._store.identity.segment_bytes:
            return False
        return self._are_due()

    @property
    def _are_reached(self) -> bool:
        wanted, delivered = self._wait_for, self._progress.delivered
        return wanted is not None and delivered is not None and delivered.position.commit_lsn >= wanted

    def _are_due(self) -> bool:
        """Return whether a copy that waited is due: the stream may have shown the creation of the table instead."""
        return self._wait_for is not None and has_waited(self._store.view(), self._wait_for)
