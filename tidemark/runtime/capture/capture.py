"""A capture: three threads with the ring and the group queue between them, started from the state.

    node or archive ─► source thread ─► ring ─► decode thread ─► queue ─► application thread ─► target
                                                     └─► catalog history (journal, bases)

A start needs only the state: the newest base not above the delivered pointer's restart LSN, the journal up to that LSN,
then WAL from there; changes that were already delivered are skipped. If a first copy is due, the application thread
makes it first, while WAL waits in the spool; the decode thread starts afterwards, when the tables' snapshots are known.
The owner calls `poll` at intervals: it advances these steps and returns the first error.
"""

import threading
from collections.abc import Sequence
from functools import partial

from tidemark.decode.catalog.databases import by_name
from tidemark.decode.catalog.history import Base
from tidemark.decode.transactions.decoder import OnMarker
from tidemark.engine.ports import GroupConsumer
from tidemark.io.archive.trimming import history_horizon_lsn
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.memory import FreedMemory
from tidemark.io.state.history_files import DamagedBase, HistoryWriter, load_catalogs
from tidemark.io.state.state import NotInitialised
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ConsumerFailed, CorruptWal
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId
from tidemark.model.position import Epoch, Pointer
from tidemark.runtime.capture.capture_report import CaptureReport
from tidemark.runtime.capture.capture_settings import CaptureSettings, CaptureStatus, check_types
from tidemark.runtime.capture.decode_thread import DecodeThread
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.group_reader import GroupReader
from tidemark.runtime.capture.reader_making import new_reader
from tidemark.runtime.capture.role_holding import RoleHolding
from tidemark.runtime.capture.source_thread import Link
from tidemark.runtime.capture.start_tables import StartTables
from tidemark.runtime.capture.waiting_copies import WaitingCopies
from tidemark.runtime.capture.wal_source import MakeWalSource
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.delivery.delivery import ApplicationThread
from tidemark.runtime.delivery.following import QueryDeliverer
from tidemark.runtime.delivery.targets import TargetMaker
from tidemark.runtime.first_copy.backup_copy import BackupCopy, may_copy_from_backup
from tidemark.runtime.first_copy.first_copy import FirstCopy
from tidemark.runtime.replay.archive_damage import in_archive
from tidemark.runtime.seed.copy_plan import is_due, needs_wal_buffer
from tidemark.wal.kernel import COMPILED
from tidemark.wal.segments import first_page_lsn
from tidemark.wire.state.history_index import HistoryIndex
from tidemark.wire.state.values import Beginning

CLOSE_S = 1.0  # for the application thread, after a pool took the whole time of a stop
BURST_BYTES = 64 << 20  # of records in `QUIET_S`; a busy node without large transactions writes less
PRELUDE_S = 0.05  # without a first copy the prelude ends at once: decoding need not wait for the first `poll`


class DecodingStuck(ConsumerFailed):
    """A decode thread that does not end: only the end of the process ends it."""

    hint = "the service manager restarts it; changes that were not delivered are delivered then"


class Capture:
    """One capture, from the state to its target."""

    def __init__(
        self,
        context: CaptureContext,
        settings: CaptureSettings,
        epoch: Epoch,
        make_wal_source: MakeWalSource,
        *,
        consumer: GroupConsumer | None = None,
        on_marker: OnMarker | None = None,
        query_deliverer: QueryDeliverer | None = None,
        in_daemon: bool = False,
    ) -> None:
        """Create all parts and start nothing. `consumer`: a custom consumer, in place of the configured one.

        Unless it runs `in_daemon`, which does so itself, the capture holds the lock of the role that took the epoch,
        and beats for it, from `start` to `stop`.

        `on_marker`, called by the decode thread, may halt the capture: it delivers what commits before, and no more.
        `query_deliverer`: the capture follows; it delivers nothing, and queries the position of the deliverer.
        """
        store = context.store
        view = store.view()
        beginning, start = view.beginning, view.start
        if beginning is None or start is None:
            raise NotInitialised(f"{store.folder.root} has no start position")
        check_types(settings.types, beginning)
        self._role = None if in_daemon else RoleHolding(store, epoch, settings.watchdog_s)
        self._store = store
        self._epoch = epoch
        self._context = context
        self._log = context.log
        self._metrics = context.metrics
        self._on_marker = on_marker
        self._settings = settings
        self._clock = SystemClock()
        self._freed_memory = FreedMemory(BURST_BYTES)
        self._stopping = threading.Event()
        captured = by_name(settings.select.selection().selects_database)
        damaged: list[DamagedBase] = []
        base = load_catalogs(
            store.folder.history,
            view.history,
            view.journal,
            start.restart_lsn,
            captured,
            seeded_lsn=beginning.lsn,
            passed_over=damaged.append,
        )
        self._report = CaptureReport(start, context.metrics, context.log)
        self._report.damaged_bases(damaged, base)
        self._log.info("starting", restart_lsn=start.restart_lsn, delivered=str(start.position), base_lsn=base.lsn)
        page_lsn = first_page_lsn(start.restart_lsn)
        self._wal_source = make_wal_source(
            page_lsn,
            base.timeline,
            start.position,
            copying=needs_wal_buffer(settings.select, settings.first_copy.copy, view),
        )
        self.progress = self._wal_source.progress
        self.progress.delivered = start
        self._waiting_copies = WaitingCopies(store, self.progress)
        self._fills_outbox = consumer is None and query_deliverer is None and settings.target.fills_outbox
        self._error: BaseException | None = None
        self._history = self._make_history(view, [each.entry.file for each in damaged])
        lease = self._wal_source.lease
        self._group_queue = GroupQueue(settings.decode.queue_bytes, lease.woken)
        self._group_reader = GroupReader(self._group_queue, lease, self._wal_source.input, settings.pacing())
        self._make_decoding = partial(self._new_decoding, base, beginning, start)
        self._decoding: DecodeThread | None = None
        tables = StartTables(store, base.mirrors, settings.select.selection())
        store.drop_versions(tables.is_dropped)
        names = base.mirrors.remember(beginning.databases)
        maker = TargetMaker(context, settings.target, epoch, self._history, self.progress, self._stopping)
        plans = is_due(settings.select, settings.first_copy.copy, view)
        target, self._liveness = (
            maker.deliver(
                consumer, names, beginning.types, tables.selected, tables.notices(planning=plans, log=context.log)
            )
            if query_deliverer is None
            else (maker.follow(query_deliverer, names, beginning.types, tables.selected), None)
        )
        self._target = target
        copy_kind = (
            BackupCopy
            if may_copy_from_backup(settings.first_copy, view, context.log)
            else partial(
                FirstCopy,
                fills_outbox=self._fills_outbox,
                databases=tables.databases(),
                at_start=tables.by_key,
            )
        )
        first_copy = copy_kind(
            settings.first_copy,
            store,
            epoch,
            beginning,
            target.deliver_copied,
            metrics=self._metrics,
            log=self._log,
            stopping=self._stopping,
        )
        self._application = ApplicationThread(
            self._group_reader,
            target,
            self._history,
            prelude=first_copy.run if query_deliverer is None and plans else _nothing_before,
            received_lsn=lambda: self.progress.received_lsn,
            metrics=self._metrics,
            stopping=self._stopping,
        )

    def start(self) -> None:
        """Start the threads; decoding starts when no first copy is due or the copy is complete."""
        if self._role is not None:
            self._role.start()
        self._application.start()
        if self._liveness is not None:
            self._liveness.start()
        if self._wal_source.input.link is Link.IDLE:
            self._wal_source.input.start()
        self._application.prelude_is_over.wait(PRELUDE_S)
        self._start_decoding()

    def poll(self) -> BaseException | None:
        """Check all threads; return the first error, and remove what no restart needs."""
        self._start_decoding()
        self._waiting_copies.check()
        marks = self._store.marks()
        if self._decoding is not None and marks.horizon is not None:
            needed = marks.horizon.pointer.restart_lsn
            self._decoding.reader.horizon_lsn = history_horizon_lsn(needed, self._settings.keep_bytes)
        if marks.start is not None:
            self._wal_source.input.maintain(marks.start.restart_lsn)
        self._report.progress(self.status(), is_host_busy=self._group_reader.is_host_busy)
        self._freed_memory.step(self.record_bytes, self._clock.monotonic_s())
        decoding_error = self._decoding_error() if self._error is None else None
        consumer_error = self._liveness.error() if self._liveness is not None else None
        self._report.restored(self.progress)
        error = self._application.error or consumer_error or decoding_error or self._wal_source.input.error
        if error is not None and self._error is None:
            self._error = error
            self._report.failure(error, self.progress)
        return self._error

    def _decoding_error(self) -> BaseException | None:
        """Return the error that ended decoding: damage with its file, if the WAL comes from an archive."""
        decoding, archive = self._decoding, self._wal_source.archive
        if decoding is None or archive is None or not isinstance(decoding.error, CorruptWal):
            return decoding.error if decoding is not None else None
        lsn = decoding.reader.last_record_lsn if decoding.error.lsn is None else Lsn(decoding.error.lsn)
        read_lsn = decoding.reader.read_lsn
        return in_archive(archive, self._store.identity.system_identifier, decoding.error, lsn, read_lsn)

    @property
    def record_bytes(self) -> int:
        """How much WAL was decoded, in bytes of records."""
        return self._decoding.reader.record_bytes if self._decoding is not None else 0

    @property
    def decoded_lsn(self) -> Lsn:
        """End of the last decoded record; from the decode thread itself, which may be ahead of `progress`."""
        return self._decoding.reader.decoder.decoded_lsn if self._decoding is not None else INVALID_LSN

    @property
    def timeline(self) -> TimelineId | None:
        """Timeline of the current record, or of the last; None before decoding begins."""
        return self._decoding.reader.decoder.timeline if self._decoding is not None else None

    @property
    def has_waiting_copies(self) -> bool:
        """Return whether tables wait for a restart: a rewind queued them, or the stream has yet to reach their plan."""
        return self._waiting_copies.exist

    @property
    def must_restart(self) -> bool:
        """Return whether everything that a waiting copy needs is delivered; later changes are in the copied rows."""
        return self._waiting_copies.need_restart

    def may_have_delivered_after(self, fork_lsn: Lsn) -> bool:
        """Return, after the stop, whether a consumer may have received changes that commit behind a fork."""
        delivered = self._store.marks().delivered
        if self._fills_outbox and delivered is not None:
            return delivered.pointer.position.commit_lsn >= fork_lsn
        return self.decoded_lsn > fork_lsn

    @property
    def halted_at(self) -> Pointer | None:
        """The marker at which the capture has halted, once all that commits before it is delivered."""
        halted_at = self._decoding.halted_at if self._decoding is not None else None
        delivered = self.progress.delivered
        if halted_at is None or delivered is None or delivered.position < halted_at.position:
            return None
        return halted_at

    def stop(self) -> None:
        """Stop in order: the pool and its positions, no new WAL, the current slice, the current batch, the files.

        The consumer has `deliver.stop_s`.
        """
        if self._role is None:
            self._stop()
            return
        self._role.stop()
        try:
            self._stop()
        finally:
            self._role.release()

    def _stop(self) -> None:
        until_s = self._clock.monotonic_s() + self._settings.deliver.stop_s
        self._target.drain(self._settings.deliver.stop_s)
        self._stopping.set()
        self._wal_source.input.stop()
        self._group_queue.close()
        if self._liveness is not None:
            self._liveness.stop()
        if self._decoding is not None and not self._decoding.stop():
            raise DecodingStuck("decoding did not stop in time")
        self._wal_source.ring.free()  # an error of the network thread refers to it by its traceback
        self._metrics.ring_used.set(0)
        self._metrics.queue_used.set(0)
        is_idle = self._application.join(max(CLOSE_S, until_s - self._clock.monotonic_s()))
        if not is_idle:
            self._target.abandon()
        self._history.close()
        if not is_idle:
            # Its groups are not confirmed and are delivered again; a consumer that hangs must not block the stop.
            raise ConsumerFailed(
                f"the consumer did not end its batch within {self._settings.deliver.stop_s} s",
                hint="its unconfirmed changes are delivered again after the restart",
            )
        self._report.stop(self._application.error, self.progress)

    def status(self) -> CaptureStatus:
        """Return the capture's status."""
        return CaptureStatus(
            link=self._wal_source.input.link,
            copying=not self._application.prelude_is_over.is_set(),
            ring_used_bytes=self._wal_source.ring.used_bytes,
            ring_high_water_bytes=self._wal_source.ring.high_water_bytes,
            ring_bytes=self._wal_source.ring.capacity,
            queue_bytes=self._group_queue.byte_count,
            open_transactions=self._decoding.reader.open_transactions if self._decoding is not None else 0,
            progress=self.progress,
        )

    def _make_history(self, view: StateView, unreadable: Sequence[str]) -> HistoryWriter:
        def keep(index: HistoryIndex) -> None:
            with self._store.transaction(self._epoch) as transaction:
                transaction.put_history(index)

        return HistoryWriter(
            self._store.folder.history,
            view.history,
            view.journal,
            major=self._store.identity.server_major,
            system_identifier=self._store.identity.system_identifier,
            file_bytes_max=self._settings.history.journal_file_bytes,
            file_mode=self._store.folder.file_mode,
            store=keep,
            unreadable=unreadable,
        )

    def _start_decoding(self) -> None:
        if self._decoding is None and self._application.prelude_is_over.is_set():
            self._waiting_copies.read()
            self._decoding = self._make_decoding()
            self._decoding.start()
            self._freed_memory.expect()  # of a first copy, and of the start
            self._group_reader.decode_with(self._decoding)
            self._wal_source.input.drain()

    def _new_decoding(self, base: Base, beginning: Beginning, start: Pointer) -> DecodeThread:
        return DecodeThread(
            self._wal_source.slices,
            self._wal_source.lease,
            new_reader(
                self._context,
                self._settings,
                self._history,
                base=base,
                beginning=beginning,
                start=start,
                on_marker=self._on_marker,
            ),
            self._group_queue,
            delivered=start.position,
            progress=self.progress,
            idle_pointer_s=self._settings.deliver.idle_pointer_s,
            heartbeat_s=self._settings.deliver.heartbeat_s,
        )


def _nothing_before() -> None:
    """Replace the first copy if none is due."""


def kernels_are_compiled() -> bool:
    """Return whether the hot loops run compiled."""
    return COMPILED
