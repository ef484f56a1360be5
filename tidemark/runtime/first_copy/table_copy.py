"""The copy of one table: its snapshot, its rows to a spool on disk, and from there to the target.

Each table's snapshot decides: a transaction that it sees is in the copied rows, all others come by the stream. The
position of copied rows is (timeline, LX, n). LX is the flush LSN at which the wait for older transactions begins:
every snapshot taken afterwards sees whatever committed below LX, so the whole stream is above the copied rows.

A table's rows are read as fast as the server sends them (`copy_reading`), to disk except for what is delivered at once,
and the table's transaction ends with the last row. Delivery follows and never delays that: a slow reader of the outbox
keeps nothing open at the node. So a table has to fit into `copy.spool_bytes`. Waiting there for a reader, with the
snapshot open, and starting again after some time would be a refusal that is repeated without end if the reader is
slower than the table is large.

A table that does not fit is refused by name, as a failed request; the other tables and the stream continue. A table
that may not fit by its size at the node, and a requested table, is read to its end before its first row is delivered.
So no row of a refused table was delivered, unless COPY's text is more than `EXPANSION` times the table's size.
"""

import shlex
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from tidemark.decode.copy.copied import CopyBatchBuilder
from tidemark.decode.groups.partitions import ROUTED_KIND, under_own_name
from tidemark.engine.selection import Selection
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log
from tidemark.io.node.copy_source import CopySource, TableSnapshot
from tidemark.io.node.copy_spool import CopySpool, TableTooLarge
from tidemark.io.node.source_tables import SourceTable
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeBatch
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, TimelineId
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import KnownDatabase, Relation
from tidemark.model.table_name import TableName
from tidemark.runtime.first_copy.copy_feeding import GENERATION_SHIFT, CopyFeeding, Deliver
from tidemark.runtime.first_copy.copy_reading import CopyReading, until_stopped
from tidemark.runtime.first_copy.copy_settings import CopySettings
from tidemark.runtime.first_copy.recopying import not_begun, refuse
from tidemark.runtime.seed.copy_plan import CopyTask, is_untouched
from tidemark.runtime.seed.copy_sessions import CopySessions
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Recopy
from tidemark.wire.state.values import Beginning

EXPANSION = 4  # of rows as text over their size at the node: TOAST is compressed there


class TableCopy:
    """Copies one table after the other, each under a separate snapshot."""

    def __init__(
        self,
        settings: CopySettings,
        store: StateStore,
        epoch: Epoch,
        beginning: Beginning,
        deliver: Deliver,
        *,
        sessions: CopySessions,
        metrics: Metrics,
        log: Log,
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._store = store
        self._epoch = epoch
        self._beginning = beginning
        self._feeding = CopyFeeding(deliver, metrics, log)
        self._sessions = sessions
        self._metrics = metrics
        self._log = log
        self._stopping = stopping
        self._clock = SystemClock()

    def copy(self, source: CopySource, task: CopyTask, timeline: TimelineId, lx: Lsn) -> None:
        """Copy a table, unless it was dropped, has left the selection, or does not fit."""
        key = (task.database, task.relation)
        before = self.recorded(key)
        table = source.table(task.relation)
        if table is None:  # dropped meanwhile: the stream reports it, if there is something to drop
            shows = source.listed_tables()[1] if is_untouched(self._store.view(), key) else before.snapshot
            self.finish(key, source.flush(), replace(before, phase=CopyPhase.DONE, snapshot=shows))
            return
        is_read_first = self._may_be_too_large(source, table) or key in not_begun(self._store)
        with CopySpool(self._store.folder.copy, self._settings.copy.spool_bytes) as spool, ExitStack() as locked:
            snapshot = self._lock_snapshot(source, table, locked)
            if snapshot is None:
                locked.close()
                self.finish(key, source.flush(), replace(before, phase=CopyPhase.LEFT))
                return
            dialect = source.dialect_of(snapshot).dialect.mapped(self._beginning.types)
            builder = CopyBatchBuilder(task.database, snapshot.relation, dialect)
            position = Position(timeline, lx, (before.generation + 1) << GENERATION_SHIFT)
            reading = CopyReading(source, self._settings.bounds, log=self._log, stopping=self._stopping)
            try:
                with reading.into(spool, snapshot, locked.pop_all()) as whole:
                    if is_read_first:
                        whole.result()
                    self._feeding.feed(
                        key,
                        position,
                        before.generation + 1,
                        snapshot,
                        built=self._built(spool, builder, position, snapshot.time_us),
                        whole=whole.result,
                        database=self._known(task.database, source.database),
                    )
            except TableTooLarge as error:
                relation = snapshot.relation
                self._refuse(key, str(TableName(relation.namespace, relation.name, source.database)), error)

    def _refuse(self, key: TableKey, name: str, error: TableTooLarge) -> None:
        """Record that a table does not fit, as a failed request; the other tables and the stream continue."""
        self._sessions.close()
        refused = Recopy(name, self._clock.wall_us(), INVALID_LSN, 0, failed=str(error))
        refuse(self._store, self._epoch, key, refused)
        self._metrics.recopies_failed.inc()
        hint = f"{error.hint}; restart the sidecar, then run cdcctl table recopy {shlex.quote(name)}"
        self._log.error("the copy of a table failed", relation_oid=key[1], table=name, reason=str(error), hint=hint)

    def _known(self, database: Oid, name: str) -> KnownDatabase | None:
        encoding = self._beginning.encodings.get(database)
        return None if encoding is None else KnownDatabase(name, encoding)

    def _may_be_too_large(self, source: CopySource, table: SourceTable) -> bool:
        return source.size_bytes(table) * EXPANSION > self._settings.copy.spool_bytes

    def _lock_snapshot(self, source: CopySource, table: SourceTable, locked: ExitStack) -> TableSnapshot | None:
        """Take the table's snapshot, kept until `locked` ends; None: it has left the selection since it was planned."""
        snapshot = locked.enter_context(source.locked_snapshot(table))
        relation = shown_by(self._settings.select.selection(), snapshot.relation)
        if relation is None:
            return None
        timeline, seen_lsn = source.flush()
        seen_time_us = source.clock_us()
        return replace(snapshot, relation=relation, seen_lsn=seen_lsn, timeline=timeline, seen_time_us=seen_time_us)

    def _built(
        self, spool: CopySpool, builder: CopyBatchBuilder, position: Position, time_us: int
    ) -> Iterator[tuple[Position, ChangeBatch, int]]:
        """Yield batches with their first positions and bytes; the next one is built while one is delivered."""
        ahead: Future[ChangeBatch] | None = None
        first, size, row_count = position, 0, 0
        with ThreadPoolExecutor(1, "tidemark-copy") as pool:
            for lines, count in until_stopped(spool.blocks(), self._stopping):
                at = replace(position, ordinal=position.ordinal + 1 + row_count)
                following = pool.submit(builder.build, lines, count, at, time_us)
                row_count += count
                if ahead is not None:
                    yield first, ahead.result(), size
                ahead, first, size = following, at, len(lines)
            if ahead is not None:
                yield first, ahead.result(), size

    def recorded(self, key: TableKey) -> CopyProgress:
        """Return the progress of a planned copy."""
        progress = self._store.copy(*key)
        assert progress is not None, "recorded when it was planned"
        return progress

    def finish(self, key: TableKey, flushed: tuple[TimelineId, Lsn], progress: CopyProgress) -> None:
        """Record that nothing is copied; `flushed`: the timeline and the flush LSN of the node."""
        timeline, seen_lsn = flushed
        with self._store.transaction(self._epoch) as transaction:
            transaction.put_copy(*key, replace(progress, seen_lsn=seen_lsn, timeline=timeline))


def shown_by(selection: Selection, relation: Relation) -> Relation | None:
    """Return the version under which a table's rows are delivered; None: not under its own name, or not at all."""
    shown = under_own_name(relation, selection.root_of)
    if shown is None or not selection.selects(shown):
        return None
    return shown if shown.has_partition_rows or shown.kind != ROUTED_KIND else None
