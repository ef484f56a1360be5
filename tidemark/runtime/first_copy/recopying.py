"""Copies tables again at an operator's request (`cdcctl table recopy`, I30).

A request is a durable value of the state. It passes through these steps, each of them one transaction:

    requested    the request is in the state, the table's copy is unchanged
    queued       `CopyProgress` is WAITING: the next capture copies the table before it streams
    copying      COPYING, as in the first copy; after a kill the table is copied again as the next generation
    done         DONE with a later generation than at the request; the request is removed
    failed       the table cannot be copied (SELECT was revoked): its copy is unchanged, the request has the reason

The copy waits for transactions that are older than it. The sidecar checks for them before it stops a capture, but one
may begin between that check and the copy, and a start of the sidecar does not check. So the copy waits for
`OLDER_WAIT_S` at most. Then its requests are postponed: the copies are unchanged, and the stream continues. Each
postponement doubles both times: a load in which a longer transaction is always open delays a copy but does not
prevent it.

Only the sidecar queues, in stage REALTIME: the archiver's node may be down. It restarts a running capture once the node
is known to have the WAL for that, and the stream has delivered all WAL written before the request: the change log then
has each of those changes. Changes that commit between then and the copy's snapshot reach the readers in the copied
rows, as in every first copy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum

from tidemark.engine.progress import Progress
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch
from tidemark.wire.recopies import RecopyStep, RequestedTable, TableKey, recopies_by_table, recopies_of, step_of
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice, Recopy

OLDER_WAIT_S = 5.0  # of a requested copy for older transactions; nothing is delivered meanwhile
PAUSE_S = 30.0  # between the starts of a postponed copy: each one stops the stream for so long
DOUBLED_MAX = 6  # times: then the copy waits for 320 s, and is tried again after half an hour


class FollowerCopiesNothing(ConfigError):
    """A request to a capture that delivers nothing."""

    hint = "run the command with the state of the delivering capture, on the host of the primary"


def request_recopies(
    store: StateStore, requested: Iterable[RequestedTable], after_lsn: Lsn, now_us: int
) -> dict[TableKey, int]:
    """Make the requests durable; return each table's generation that a later one has to follow.

    An open request stays as it is, and its copy fulfils this one too.
    """
    found: dict[TableKey, Recopy] = {}
    with store.transaction(None) as transaction:
        if transaction.stage() is Stage.FOLLOWER:
            raise FollowerCopiesNothing("this capture follows a standby and delivers nothing")
        requests = _kept(transaction)
        for table in requested:
            copy, open_one = transaction.copy(*table.key), requests.get(table.key)
            fresh = Recopy(table.name, now_us, after_lsn, copy.generation if copy is not None else 0)
            found[table.key] = fresh if open_one is None or open_one.failed else open_one
        transaction.put_recopies(recopies_of(requests | found))
    return {key: request.generation for key, request in found.items()}


class Due(Enum):
    """What a running capture has to do about the requests."""

    NOTHING = "nothing"
    LATER = "later"  # requests are due and have to wait
    NOW = "now"  # the capture is to be stopped, so that the next one copies


class Recopying:
    """The sidecar's part: finds the requests that are due, and queues them."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._queued_s = 0.0
        self.waits_for = ""  # why due requests have to wait, if `step` returns that

    @property
    def has_requests(self) -> bool:
        """Return whether there are requests whose copy is not complete, and has not failed."""
        return any(not request.failed for request in recopies_by_table(self._store.recopies()).values())

    def step(self, progress: Progress, epoch: Epoch, now_s: float) -> Due:
        """Remove finished requests; return whether the capture is to be stopped, so that the next one can copy.

        `progress`: of the capture, which is not copying.
        """
        requests = recopies_by_table(self._store.recopies())
        if any(_is_gone(request, self._store.copy(*key)) for key, request in requests.items()):
            with self._store.transaction(epoch) as transaction:
                transaction.put_recopies(recopies_of(_kept(transaction)))
        delivered = progress.delivered
        if delivered is None:
            return Due.NOTHING
        due = [request for request in requests.values() if _is_due(request, delivered.position.commit_lsn)]
        if not due:
            return Due.NOTHING
        segment_bytes = self._store.identity.segment_bytes
        if progress.lag_bytes > segment_bytes:
            self.waits_for = (
                f"the stream is {progress.lag_bytes} bytes behind the WAL that was received: a requested copy begins "
                f"when it is at most {segment_bytes} bytes behind"
            )
            return Due.LATER
        least = min(request.put_off for request in due)
        pause_s = _doubled(PAUSE_S, least - 1)
        if least and now_s < self._queued_s + pause_s:
            self.waits_for = (
                f"older transactions were open for more than {_doubled(OLDER_WAIT_S, least - 1):g} s when the copy was "
                f"due, or the node gave no connection: it is retried {pause_s:g} s later"
            )
            return Due.LATER
        return Due.NOW

    def queue(self, epoch: Epoch, now_s: float) -> int:
        """Queue the requests that are due, before a capture begins; return how many."""
        if not self._store.recopies().tables:
            return 0
        self._queued_s = now_s
        with self._store.transaction(epoch) as transaction:
            delivered, requests = transaction.delivered(), _kept(transaction)
            reached_lsn = delivered.pointer.position.commit_lsn if delivered is not None else INVALID_LSN
            due = {key: request for key, request in requests.items() if _is_due(request, reached_lsn)}
            queued: dict[TableKey, Recopy] = {}
            for key, request in due.items():
                copy = transaction.copy(*key) or CopyProgress(CopyPhase.PARTIAL, 0)
                before = None if copy.is_open else copy.phase
                queued[key] = replace(request, is_queued=True, phase_before=before)
                if before is not None:
                    transaction.put_copy(*key, replace(copy, phase=CopyPhase.WAITING))
            transaction.put_recopies(recopies_of(requests | queued))
        return len(due)


def older_wait_s(store: StateStore) -> float:
    """Return for how long requested copies wait for older transactions before they are postponed."""
    requests = recopies_by_table(store.recopies()).values()
    return _doubled(OLDER_WAIT_S, max((request.put_off for request in requests if request.is_queued), default=0))


def _doubled(seconds: float, times: int) -> float:
    return seconds * 2.0 ** min(times, DOUBLED_MAX)


def not_begun(store: StateStore) -> frozenset[TableKey]:
    """Return the tables that are queued by a request alone, and whose next generation was not delivered in part."""
    requests = recopies_by_table(store.recopies())
    return frozenset(key for key, request in requests.items() if _is_not_begun(request, store.copy(*key)))


def postpone(store: StateStore, epoch: Epoch, keys: Iterable[TableKey]) -> None:
    """Postpone requests whose copy has not begun."""
    _withdraw(store, epoch, dict.fromkeys(keys, ""))


def fail(store: StateStore, epoch: Epoch, reasons: Mapping[TableKey, str]) -> None:
    """End requests whose copy has not begun, each with its reason."""
    _withdraw(store, epoch, reasons)


def refuse(store: StateStore, epoch: Epoch, key: TableKey, refused: Recopy) -> None:
    """Record that a table's copy failed, as the failed request `refused`; all other tables continue.

    A request that has not begun leaves a table unchanged that is captured whole. Of any other table some rows were
    never delivered: it is REFUSED until it is requested again, the selection changes or the state is rebuilt.
    """
    with store.transaction(epoch) as transaction:
        requests = recopies_by_table(transaction.recopies())
        request, copy = requests.get(key), transaction.copy(*key) or CopyProgress(CopyPhase.PARTIAL, 0)
        before = request.phase_before if request is not None and _is_not_begun(request, copy) else None
        if before is CopyPhase.DONE:
            transaction.put_copy(*key, replace(copy, phase=before))
        else:
            left_out = replace(copy.without_snapshot(), phase=CopyPhase.REFUSED, refused_name=refused.name)
            if before not in (CopyPhase.PARTIAL, CopyPhase.REFUSED):  # else it is as it was
                left_out = replace(left_out, capture=DueNotice.BEGINS)
            transaction.put_copy(*key, left_out)
        kept = request or replace(refused, generation=copy.generation)
        requests[key] = replace(kept, is_queued=False, phase_before=None, failed=refused.failed)
        transaction.put_recopies(recopies_of(requests))


def cancel_recopies(store: StateStore, keys: Iterable[TableKey], *, is_copying: bool) -> dict[TableKey, RecopyStep]:
    """Remove requests; return the steps of those that stay. `is_copying`: a sidecar may be about to copy."""
    left: dict[TableKey, RecopyStep] = {}
    with store.transaction(None) as transaction:
        requests = _kept(transaction)
        for key in keys:
            request, copy = requests.get(key), transaction.copy(*key)
            if request is None:
                continue
            step = step_of(request, copy)
            if step is RecopyStep.QUEUED and not is_copying:
                if copy is not None and request.phase_before is not None:  # otherwise it is to be copied in any case
                    transaction.put_copy(*key, replace(copy, phase=request.phase_before))
            elif step not in (RecopyStep.REQUESTED, RecopyStep.FAILED):
                left[key] = step
                continue
            del requests[key]
        transaction.put_recopies(recopies_of(requests))
    return left


def _withdraw(store: StateStore, epoch: Epoch, reasons: Mapping[TableKey, str]) -> None:
    with store.transaction(epoch) as transaction:
        requests = recopies_by_table(transaction.recopies())
        for key, reason in reasons.items():
            request, copy = requests.get(key), transaction.copy(*key)
            if request is None or copy is None or not _is_not_begun(request, copy):
                continue
            assert request.phase_before is not None, "its copy has not begun"
            transaction.put_copy(*key, replace(copy, phase=request.phase_before))
            waits = replace(request, is_queued=False, phase_before=None)
            requests[key] = replace(waits, failed=reason) if reason else replace(waits, put_off=request.put_off + 1)
        transaction.put_recopies(recopies_of(requests))


def _is_due(request: Recopy, reached_lsn: Lsn) -> bool:
    return not request.is_queued and not request.failed and request.after_lsn <= reached_lsn


def _is_not_begun(request: Recopy, copy: CopyProgress | None) -> bool:
    is_waiting = copy is not None and copy.phase is CopyPhase.WAITING and copy.generation == request.generation
    return is_waiting and request.is_queued and request.phase_before is not None


def _is_gone(request: Recopy, copy: CopyProgress | None) -> bool:
    """Return whether a request is over and has nothing to show."""
    step = step_of(request, copy)
    return step.is_over and step is not RecopyStep.FAILED


def _kept(transaction: StateTransaction) -> dict[TableKey, Recopy]:
    """Return the requests that are not over, or have failed."""
    requests = recopies_by_table(transaction.recopies())
    return {key: request for key, request in requests.items() if not _is_gone(request, transaction.copy(*key))}
