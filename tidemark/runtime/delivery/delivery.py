"""The application thread: delivers groups to the target and records the position.

For the outbox, data and delivered position are written in one LMDB transaction; a custom consumer has a separate target
(`consumer_target`). In both cases the journal is made durable first, and the transaction records the position and
checks the epoch. A full outbox makes the thread wait: the queue fills, then the ring, and capture pauses.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from tidemark.decode.transactions.reorder_buffer.committed_run import commit_times_us
from tidemark.engine.progress import Progress
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.disk import StateFull
from tidemark.io.host.logs import Log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.history_files import HistoryWriter
from tidemark.io.state.reader_holds import active_readers, confirmable, unconfirmed_values
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import ExtraWrites, StateTransaction
from tidemark.model.change import ChangeGroup, CopyBoundary, PartitionEvent, SchemaEvent
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark.model.errors import Fenced
from tidemark.model.lsn import Lsn, Oid, format_lsn
from tidemark.model.position import Epoch
from tidemark.runtime.context import Stopped
from tidemark.wire.outbox import encode_group
from tidemark.wire.state.copy_progress import CopyProgress
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.values import Watermark
from tidemark.wire.values import EncodedGroup

IDLE_POLL_S = 0.2  # first interval between polls of the target while nothing is delivered
IDLE_POLL_S_MAX = 2.0  # the interval doubles up to this while the target has nothing to do
SPACE_WAIT_FIRST_S = 0.02
SPACE_WAIT_MAX_S = 1.0
STALE_READERS_S = 5.0  # how often slots of killed readers are freed
CopyKeep = tuple[Oid, Oid, CopyProgress]  # database, relation, progress of its first copy
RECORDED = (SchemaEvent, PartitionEvent, CopyBoundary)  # the items of a group from which a `GroupRecord` may follow


class Groups(Protocol):
    """The source of groups."""

    def receive(self, timeout_s: float) -> ChangeGroup | None:
        """Return the next group; None if there is none within `timeout_s`."""


class GroupRecord(Protocol):
    """A record of the state that follows from delivered groups: from their items of `RECORDED`, and no others."""

    def record(self, transaction: StateTransaction, groups: Sequence[ChangeGroup]) -> None:
        """Write in an open transaction what groups change; it is the one in which they count as delivered."""


class Target(Protocol):
    """The destination of groups; all calls come from the application thread."""

    counts: bool  # accepted groups count as delivered

    def begin(self) -> None:
        """Prepare: called once, before all others."""

    def deliver(self, group: ChangeGroup) -> None:
        """Accept a group; its position is durable on return, or later if the target reports that itself."""

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Accept a group of a first copy; no position moves, the copy's progress becomes durable as a position does."""

    def idle(self) -> bool:
        """Do the work due while there is nothing to deliver; return whether more is expected soon."""

    def drain(self, within_s: float) -> None:
        """Finish within a time what was accepted and is not confirmed. From any thread, before the stop."""

    def close(self) -> None:
        """Release everything."""

    def abandon(self) -> None:
        """Change nothing any more: the capture has stopped during a call into the target. From any thread."""


class OutboxTarget:
    """The built-in consumer: groups into the outbox, in the delivered position's own transaction."""

    counts = True

    def __init__(
        self,
        store: StateStore,
        epoch: Epoch,
        *,
        history: HistoryWriter,
        records: Sequence[GroupRecord],
        progress: Progress,
        hold_bytes: int = 0,
        metrics: Metrics,
        log: Log,
        stopping: threading.Event,
    ) -> None:
        """`hold_bytes`: of the outbox, that a reader may hold; 0: the default."""
        self._store = store
        self._epoch = epoch
        self._history = history
        self._records = records
        self._progress = progress
        self._hold_bytes = hold_bytes
        self._metrics = metrics
        self._log = log
        self._stopping = stopping
        self._clock = SystemClock()
        self._cleared_s = 0.0

    def begin(self) -> None:
        """Do nothing: the outbox is always ready."""

    def deliver(self, group: ChangeGroup) -> None:
        """Store a group; wait while the outbox is full."""

        def extra_writes(transaction: StateTransaction) -> None:
            transaction.rely_on_journal(self._history.durable_lsn)
            self._record(transaction, group)
            transaction.record_databases(group.databases)

        self._store_group(encode_group(group), extra_writes)

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Store a group of a first copy, and the copy's progress, in one transaction."""
        encoded = replace(encode_group(group), moves_delivered=False)

        def extra_writes(transaction: StateTransaction) -> None:
            transaction.put_copy(*progress)
            self._record(transaction, group)

        self._store_group(encoded, extra_writes)

    def _record(self, transaction: StateTransaction, group: ChangeGroup) -> None:
        for record in self._records:
            record.record(transaction, [group])

    def idle(self) -> bool:
        """Move the confirmed pointer and trim, if readers confirmed meanwhile."""
        self._clear_stale_readers()
        marks = self._store.marks()
        active = active_readers(marks.readers).values()
        trimmable = min((reader.trimmable for reader in active), default=marks.ledger.trimmed)
        applied = confirmable(marks.readers, marks.ledger, marks.confirmed)
        has_confirmed = trimmable > marks.ledger.trimmed or applied is not None
        if has_confirmed:
            self._apply_confirmations()
        return has_confirmed

    def drain(self, within_s: float) -> None:
        """Do nothing: what is accepted is stored."""

    def close(self) -> None:
        """Do nothing: the caller that opened the state closes it."""

    def abandon(self) -> None:
        """Do nothing: no call into the outbox outlasts a stop, except a running transaction."""

    def _store_group(self, encoded: EncodedGroup, extra_writes: ExtraWrites) -> None:
        wait_s = SPACE_WAIT_FIRST_S
        while True:
            try:
                with self._store.transaction(self._epoch) as transaction:
                    transaction.apply_confirmations(self._hold_bytes, encoded.byte_count)
                    delivered = transaction.deliver(encoded)
                    extra_writes(transaction)
                    reported = self._reported(transaction)
            except StateFull as full:
                self._wait_for_space(full, encoded.byte_count, wait_s)
                wait_s = min(SPACE_WAIT_MAX_S, wait_s * 2)
            else:
                self._progress.waits_for_room = ""
                if encoded.moves_delivered:
                    self._progress.deliver(delivered.pointer)
                self._report_lapsed(transaction)
                self._report(*reported)
                return

    def _wait_for_space(self, full: StateFull, wanted_bytes: int, wait_s: float) -> None:
        if wait_s == SPACE_WAIT_FIRST_S:
            self._metrics.outbox_full.inc()
            self._log.warning("the outbox or its disk is full, delivery waits", reason=str(full))
        self._progress.waits_for_room = str(full)
        self._clear_stale_readers()
        # Pages freed by one transaction are usable two transactions later: trim, then a small write, then the group.
        with suppress(StateFull):  # of the disk itself: not even this write finds space
            self._apply_confirmations(wanted_bytes)
            self._apply_confirmations(wanted_bytes)
        if self._stopping.wait(wait_s):
            raise Stopped

    def _apply_confirmations(self, wanted_bytes: int = 0) -> None:
        with self._store.transaction(self._epoch) as transaction:
            transaction.apply_confirmations(self._hold_bytes, wanted_bytes)
            reported = self._reported(transaction)
        self._report_lapsed(transaction)
        self._report(*reported)

    def _report_lapsed(self, transaction: StateTransaction) -> None:
        for name, reader in transaction.lapsed.items():
            self._log.warning(
                "a reader lapsed: it held too much of the outbox",
                reader=name,
                sequence=reader.trimmable,
                lsn=format_lsn(reader.lapsed_lsn),
                hint=f"continue with cdcctl reader resume {name}, or remove it with cdcctl reader drop {name}",
            )

    @staticmethod
    def _reported(transaction: StateTransaction) -> tuple[OutboxLedger, int, Watermark | None]:
        ledger = transaction.ledger()
        return ledger, unconfirmed_values(transaction.readers()[0], ledger), transaction.counted()

    def _report(self, ledger: OutboxLedger, unconfirmed: int, confirmed: Watermark | None) -> None:
        self._metrics.outbox_used.set(ledger.byte_count)
        self._metrics.reader_lag.set(unconfirmed)
        known = self._progress.confirmed
        # NB: a damaged reader counts as required: the position of the last required one before it is confirmed again.
        if confirmed is not None and (known is None or confirmed.pointer.position >= known.position):
            self._progress.confirm(confirmed.pointer)

    def _clear_stale_readers(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._cleared_s >= STALE_READERS_S:
            self._store.environment.clear_stale_readers()
            self._cleared_s = now_s


class ApplicationThread:
    """Moves groups from the queue to the target; runs all callbacks of the user."""

    def __init__(
        self,
        groups: Groups,
        target: Target,
        history: HistoryWriter,
        *,
        prelude: Callable[[], None],
        received_lsn: Callable[[], Lsn],
        metrics: Metrics,
        stopping: threading.Event,
    ) -> None:
        """`prelude` runs first, in the same thread: the first copy. `received_lsn`: end of the received WAL."""
        self.error: BaseException | None = None
        self.prelude_is_over = threading.Event()
        self._prelude = prelude
        self._groups = groups
        self._target = target
        self._history = history
        self._received_lsn = received_lsn
        self._metrics = metrics
        self._stopping = stopping
        self._clock = SystemClock()
        self._thread = threading.Thread(target=self._run, name="application", daemon=True)

    def start(self) -> None:
        """Start delivering."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the current batch; return whether the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._target.begin()
            self._prelude()
            self.prelude_is_over.set()
            poll_s = IDLE_POLL_S
            while not self._stopping.is_set():
                group = self._groups.receive(poll_s)
                if group is not None:
                    self._deliver(group)
                    poll_s = IDLE_POLL_S
                elif self._target.idle():
                    poll_s = IDLE_POLL_S
                else:
                    poll_s = min(IDLE_POLL_S_MAX, 2 * poll_s)
        except Stopped:
            pass
        except Fenced as error:  # another process delivers: a pool need not finish what waits in it
            self.error = error
            self._target.drain(0.0)
        except BaseException as error:  # noqa: BLE001 - the one place: whatever it is, the capture ends with it
            self.error = error
        finally:
            self._close()

    def _deliver(self, group: ChangeGroup) -> None:
        began_s = self._clock.monotonic_s()
        self._history.sync()
        self._target.deliver(group)
        if not self._target.counts:
            return
        self._metrics.delivery_seconds.observe(self._clock.monotonic_s() - began_s)
        self._metrics.groups.inc()
        self._metrics.rows.inc(group.row_count)
        self._metrics.transactions.inc(len(group.transactions))
        self._metrics.delivery_lag_bytes.observe(max(0, self._received_lsn() - group.first.commit_lsn))
        now_us = self._clock.wall_us()
        for time_us in commit_times_us(group.transactions):
            self._metrics.lag_seconds.observe(max(0, now_us - time_us) / USECS_PER_SECOND)

    def _close(self) -> None:
        try:
            self._target.close()
        except BaseException as error:  # noqa: BLE001 - the first error is the one to report
            self.error = self.error or error
