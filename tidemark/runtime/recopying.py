"""Copying tables again at an operator's request (`cdcctl table recopy`, I30).

A request is a durable value of the state. It passes through these steps, each of them one transaction:

    requested    the request is in the state, the table's copy as it was
    queued       `CopyProgress` is WAITING: the next capture copies the table before it streams
    copying      COPYING, as the first copy does it; after a kill the table is copied again as the next generation
    done         DONE with a later generation than at the request; the request is removed

Only the sidecar queues, in stage REALTIME: the archiver's node may be down. A running capture is restarted for it, once
the node is known to have the WAL for that (`sidecar.recopies`), and the stream has delivered what was written before
the request: the change log then has each of those changes. What commits between then and the copy's snapshot reaches
the readers by the copied rows, as with every first copy.
"""

from collections.abc import Iterable
from dataclasses import replace

from tidemark.engine.progress import Progress
from tidemark.io.state import StateStore
from tidemark.io.state_transaction import StateTransaction
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch
from tidemark.wire.recopies import TableKey, Wanted, recopies_by_table, recopies_of, step_of
from tidemark.wire.state import CopyPhase, CopyProgress, Recopy


class FollowerCopiesNothing(ConfigError):
    """A request to a capture that delivers nothing."""

    hint = "run it with the state of the capture that delivers, on the primary's host"


def request_recopies(store: StateStore, wanted: Iterable[Wanted], after_lsn: Lsn, now_us: int) -> dict[TableKey, int]:
    """Make the requests durable; return each table's generation that a later one has to follow.

    A request that is open stays as it is, and its copy fulfils this one too.
    """
    found: dict[TableKey, Recopy] = {}
    with store.transaction(None) as moving:
        if moving.stage() is Stage.FOLLOWER:
            raise FollowerCopiesNothing("this capture follows a standby and delivers nothing")
        requests = _open(moving)
        for table in wanted:
            copy = moving.copy(*table.key)
            fresh = Recopy(table.name, now_us, after_lsn, copy.generation if copy is not None else 0)
            found[table.key] = requests.get(table.key, fresh)
        moving.put_recopies(recopies_of(requests | found))
    return {key: request.generation for key, request in found.items()}


class Recopying:
    """The sidecar's part: finds the requests that are due, and queues them."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def step(self, progress: Progress, epoch: Epoch) -> bool:
        """Remove the requests that are over; tell if the capture is to be stopped, so that the next one can copy.

        `progress`: of the capture, which is not copying.
        """
        requests = recopies_by_table(self._store.recopies())
        if any(step_of(request, self._store.copy(*key)).is_over for key, request in requests.items()):
            with self._store.transaction(epoch) as moving:
                moving.put_recopies(recopies_of(_open(moving)))
        if progress.delivered is None or progress.lag_bytes > self._store.identity.segment_bytes:
            return False
        return any(_is_due(request, progress.delivered.position.commit_lsn) for request in requests.values())

    def queue(self, epoch: Epoch) -> int:
        """Queue the requests that are due, before a capture begins; return how many."""
        if not self._store.recopies().tables:
            return 0
        with self._store.transaction(epoch) as moving:
            delivered, requests = moving.delivered(), _open(moving)
            reached_lsn = delivered.pointer.position.commit_lsn if delivered is not None else INVALID_LSN
            due = {key: request for key, request in requests.items() if _is_due(request, reached_lsn)}
            for key in due:
                copy = moving.copy(*key) or CopyProgress(CopyPhase.LEFT, 0)
                if not copy.is_open:
                    moving.put_copy(*key, replace(copy, phase=CopyPhase.WAITING))
            queued = {key: replace(request, is_queued=True) for key, request in due.items()}
            moving.put_recopies(recopies_of(requests | queued))
        return len(due)


def _is_due(request: Recopy, reached_lsn: Lsn) -> bool:
    return not request.is_queued and request.after_lsn <= reached_lsn


def _open(moving: StateTransaction) -> dict[TableKey, Recopy]:
    """Return the requests that are not over."""
    requests = recopies_by_table(moving.recopies())
    return {key: request for key, request in requests.items() if not step_of(request, moving.copy(*key)).is_over}
