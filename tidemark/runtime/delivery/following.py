"""Following on a standby: decodes everything, keeps the catalog history, delivers nothing (I12).

    followed    the position to which this follower has decoded; a restart continues there
    delivered   the position that the deliverer's readers confirmed, by its newest marker; a promotion starts there

The marker may be any distance behind `followed`, so both are stored, in one transaction for each group. The WAL and
history kept for a start at `delivered` are bounded by `standby.unmarked_bytes_max`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidemark.engine.progress import Progress
from tidemark.io.host.logs import Log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.history_files import HistoryWriter
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.change import ChangeGroup
from tidemark.model.errors import InternalError
from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer
from tidemark.runtime.delivery.delivery import CopyKeep, GroupRecord
from tidemark.wire.marker import Marker, MarkerKind
from tidemark.wire.state.state_keys import DELIVERED, FOLLOWED
from tidemark.wire.state.values import Followed, FollowedDeliverer, Watermark


@dataclass(frozen=True, slots=True)
class DelivererMarker:
    """A marker of the deliverer and its LSN; it states the positions of its own timeline, up to itself."""

    marker: Marker
    pointer: Pointer
    lsn: Lsn

    def is_newer(self, leader: FollowedDeliverer | None) -> bool:
        """Return whether it is newer than the known position.

        NB: its epoch does not decide: a deliverer whose state was rebuilt counts from 1. A late marker of one that was
        replaced names an earlier pointer, which moves nothing.
        """
        return leader is None or self.lsn > leader.lsn


QueryDeliverer = Callable[[], DelivererMarker | None]  # the newest marker that was read; from any thread


class FollowTarget:
    """Accepts groups and keeps only what the state needs."""

    counts = False

    def __init__(
        self,
        store: StateStore,
        epoch: Epoch,
        query_deliverer: QueryDeliverer,
        *,
        unmarked_bytes_max: int,
        history: HistoryWriter,
        records: Sequence[GroupRecord],
        progress: Progress,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._query_deliverer = query_deliverer
        self._history = history
        self._records = records
        self._progress = progress
        self._metrics = metrics
        self._log = log
        self._unmarked_bytes_max = unmarked_bytes_max

    def begin(self) -> None:
        """Do nothing: there is no consumer."""

    def deliver(self, group: ChangeGroup) -> None:
        """Record how far decoding is, and the deliverer's known position."""
        deliverer_marker = self._query_deliverer()
        with self._store.transaction(self._epoch) as transaction:
            transaction.rely_on_journal(self._history.durable_lsn)
            for record in self._records:
                record.record(transaction, [group])
            transaction.record_databases(group.databases)
            before = transaction.followed()
            if before is None:
                raise InternalError("the state of the follower has no position")
            followed = self._with_deliverer(transaction, replace(before, pointer=group.last), deliverer_marker)
            transaction.put(FOLLOWED, followed)
            known = transaction.delivered()
        self._progress.deliver(group.last)
        leader = followed.leader if followed.has_start else None
        self._metrics.deliverer_lsn.set(leader.lsn if leader is not None else INVALID_LSN)
        if leader is not None and known is not None and known.pointer != self._progress.confirmed:
            self._progress.confirm(known.pointer)

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Refuse: a follower copies nothing."""
        raise InternalError(f"a follower received rows of a first copy: {group.last}, {progress}")

    def idle(self) -> bool:
        """Do nothing."""
        return False

    def drain(self, within_s: float) -> None:
        """Do nothing: nothing is delivered."""

    def close(self) -> None:
        """Do nothing: the caller that opened the state closes it."""

    def abandon(self) -> None:
        """Do nothing: no outside code is called."""

    def _with_deliverer(
        self, transaction: StateTransaction, followed: Followed, deliverer_marker: DelivererMarker | None
    ) -> Followed:
        """Move `delivered` to a new marker's pointer; give it up if none came for too long."""
        delivered = transaction.delivered()
        assert delivered is not None, "a follower begins with one"
        if (
            deliverer_marker is not None
            and deliverer_marker.lsn <= followed.pointer.position.commit_lsn
            and deliverer_marker.is_newer(followed.leader)
        ):
            followed = replace(followed, leader=_leader(deliverer_marker, followed.leader))
            if deliverer_marker.pointer.position >= max(followed.floor.position, delivered.pointer.position):
                restart_lsn = max(deliverer_marker.pointer.restart_lsn, followed.floor.restart_lsn)
                self._move(transaction, Pointer(deliverer_marker.pointer.position, restart_lsn))
                return replace(followed, has_start=True)
        here = followed.pointer
        if here.restart_lsn - delivered.pointer.restart_lsn <= self._unmarked_bytes_max:
            return followed
        self._move(transaction, here)
        if followed.has_start:
            self._log.warning(
                "no marker of the delivering capture for too long; removing the WAL that was kept for a promotion",
                confirmed=str(delivered.pointer.position),
                followed=str(here.position),
                setting="standby.unmarked_bytes_max",
                hint="check that the delivering capture runs, that its readers confirm, and that it has the same key",
            )
        return replace(followed, floor=here, has_start=False)

    @staticmethod
    def _move(transaction: StateTransaction, pointer: Pointer) -> None:
        transaction.put(DELIVERED, Watermark(pointer, transaction.ledger().head))


def _leader(deliverer_marker: DelivererMarker, before: FollowedDeliverer | None) -> FollowedDeliverer:
    """Return what is known of the deliverer after another marker; only confirm markers describe its outbox."""
    known = before.sequence if before is not None else NO_SEQUENCE
    confirmed = deliverer_marker.marker.sequence if deliverer_marker.marker.kind is MarkerKind.CONFIRM else NO_SEQUENCE
    return FollowedDeliverer(deliverer_marker.marker.epoch, deliverer_marker.lsn, max(known, confirmed))
