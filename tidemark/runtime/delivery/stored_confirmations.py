"""What a consumer confirmed, as the state records it: in one transaction with copies, DDL and parked changes."""

from collections.abc import Sequence

from tidemark.decode.transactions.reorder_buffer.committed_run import commit_times_us
from tidemark.engine.progress import Progress
from tidemark.io.host.logs import Log
from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.state.history_files import HistoryWriter
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.position import Epoch, Position
from tidemark.runtime.delivery.delivery import CopyKeep, GroupRecord
from tidemark.runtime.delivery.offset_rounds import ConfirmedGroup
from tidemark.wire.state.partition_positions import PartitionPositions
from tidemark.wire.state.state_keys import ADDED_POSITIONS, CONFIRMED
from tidemark.wire.values import EncodedGroup


class StoredConfirmations:
    """The confirmations of one consumer in the state."""

    def __init__(
        self,
        store: StateStore,
        epoch: Epoch,
        *,
        history: HistoryWriter,
        records: Sequence[GroupRecord],
        progress: Progress,
        log: Log,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._history = history
        self._records = records
        self._progress = progress
        self._log = log
        # The last of the changes that were parked and not confirmed before the start, and are not delivered yet:
        self.parked_upto: Position | None = None

    def begin(self) -> None:
        """Read which changes were parked and not confirmed before the start."""
        with self._store.reading() as transaction:
            stored = transaction.delivered()
            at = None if stored is None else stored.pointer.position
            self.parked_upto = ParkedTable(transaction).latest_after(at, self._epoch)

    def make_durable(self, confirmed: Sequence[ConfirmedGroup]) -> None:
        """Make confirmations durable; called by the confirm thread."""
        last = confirmed[-1].group
        latest = max(commit_times_us(last.transactions), default=0)
        with self._store.transaction(self._epoch) as transaction:
            for offered in confirmed:
                if offered.copying is not None:
                    _record_copied(transaction, offered.copying)
            transaction.rely_on_journal(self._history.durable_lsn)
            for record in self._records:
                record.record(transaction, [offered.group for offered in confirmed])
            for offered in confirmed:
                ParkedTable(transaction).rename_databases(offered.group.databases)
                transaction.record_databases(offered.group.databases)
            self._drop_delivered(transaction, last.last.position)
            delivered = transaction.deliver(EncodedGroup(last.last, latest, ()))
            transaction.put(CONFIRMED, delivered)
            if confirmed[-1].added is not None:
                transaction.put(ADDED_POSITIONS, PartitionPositions.of(confirmed[-1].added))
        self._progress.deliver(delivered.pointer)
        self._progress.confirm(delivered.pointer)

    def begin_copy(self, progress: CopyKeep, upto: Position) -> None:
        """Record that a generation of a copy is offered to the consumer, with rows up to a position.

        It is used up then: after a kill before its confirmation, the next one is greater.
        """
        with self._store.transaction(self._epoch) as transaction:
            transaction.put_copy(*progress)
            self._drop_parked(transaction, progress, upto)

    def _drop_parked(self, transaction: StateTransaction, copied: CopyKeep, upto: Position) -> None:
        """Drop parked changes of a table that is copied again: its last copy, and the stream below the new one."""
        database, relation, _ = copied
        dropped = ParkedTable(transaction).drop_of(database, relation, upto)
        if dropped:
            self._log.info("parked changes of a table that is copied are dropped", relation=relation, count=dropped)

    def _drop_delivered(self, transaction: StateTransaction, upto: Position) -> None:
        """Drop changes that were parked before the start, never confirmed, and delivered now."""
        before = transaction.delivered()
        if self.parked_upto is None:
            return
        after = None if before is None else before.pointer.position
        dropped = ParkedTable(transaction).drop_between(after, upto, self._epoch)
        if dropped:
            self._log.info("parked changes were delivered by the stream and are dropped", count=dropped)
        if upto >= self.parked_upto:
            self.parked_upto = None


def _record_copied(transaction: StateTransaction, copied: CopyKeep) -> None:
    """Record the progress of a copy, unless its next generation has begun: the rows of this one are given up."""
    database, relation, progress = copied
    known = transaction.copy(database, relation)
    if known is None or progress.generation >= known.generation:
        transaction.put_copy(*copied)
