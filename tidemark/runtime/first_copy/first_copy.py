"""The first copy: rows that existed before the capture began, delivered to the outbox before the stream (P22).

Each table's snapshot decides: a transaction that it sees is in the copied rows, all others come by the stream. The
position of copied rows is (timeline, LX, n). LX is the flush LSN at which the wait for older transactions begins:
every snapshot taken afterwards sees whatever committed below LX, so the whole stream is above the copied rows.

A table's rows are read as fast as the server sends them (`copy_reading`), to disk except for what is delivered at once,
and the table's transaction ends with the last row. Delivery follows and never delays that: a slow reader of the outbox
keeps nothing open at the node. So a table has to fit into `copy.spool_bytes`. Waiting there for a reader, with the
snapshot open, and starting again after some time would be a refusal that repeats for ever if the reader is slower than
the table is large.

A table that does not fit is refused by name, as a failed request; the other tables and the stream continue. A table
that may not fit by its size at the node, and a requested table, is read to its end before its first row is delivered.
So no row of a refused table was delivered, unless COPY's text is more than `EXPANSION` times the table's size.

The first plan lists the tables under one snapshot for each database. Changes that it shows of tables that it does not
list are not delivered (`Copies`): another table may have the name by now, and its copy would come before them. The same
applies to a listed table that is dropped before something of it was delivered.

After a kill or an abort the table is copied again under a new snapshot and a greater generation, so that sinks empty it
first. Only a generation's end confirms that its rows are the whole table. `tidemark.runtime.seed.copy_plan` plans which
tables are due.
"""

import shlex
import threading
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

from tidemark.decode.copy.copied import CopyBatchBuilder
from tidemark.decode.groups.partitions import ROUTED_KIND, under_own_name
from tidemark.engine.retry import Backoff
from tidemark.engine.selection import Selection
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.node.copy_source import CopySource, SnapshotUnclear, TableChanging, TableSnapshot
from tidemark.io.node.copy_spool import CopySpool, TableTooLarge
from tidemark.io.node.copy_stream import BlockBounds
from tidemark.io.node.database_names import database_names
from tidemark.io.node.node import Blocker, Node
from tidemark.io.node.node_errors import ConnectionRejected, DataUnreadable, RecoveryConflict
from tidemark.io.node.source_tables import SourceTable
from tidemark.io.process.config import Config, CopyConfig, RetryConfig, SelectConfig
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeBatch
from tidemark.model.errors import Disposition, NodeUnfit, NodeUnreachable, TidemarkError
from tidemark.model.lsn import INVALID_LSN, FullXid, Lsn, Oid, TimelineId
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import KnownDatabase, Relation
from tidemark.model.table_name import TableName
from tidemark.runtime.context import Stopped
from tidemark.runtime.first_copy.copy_feeding import GENERATION_SHIFT, CopyFeeding, Deliver
from tidemark.runtime.first_copy.copy_reading import CopyReading, until_stopped
from tidemark.runtime.first_copy.recopying import fail, not_begun, older_wait_s, postpone, refuse
from tidemark.runtime.seed.copy_plan import CopyTask, is_requested_alone, is_untouched, plan_copies, selection_reported
from tidemark.runtime.seed.copy_sessions import CopySessions
from tidemark.runtime.seed.seeding import OlderTransactions, Waiting
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Fingerprint, Recopy
from tidemark.wire.state.state_keys import FINGERPRINT
from tidemark.wire.state.values import Beginning

CONFLICTS_MAX = 10  # with a standby's replay, in a row without a table in between
FAILURES_MAX = 10  # of the node at a table's rows, in the same way
WAIT_POLL_S = 0.1
EXPANSION = 4  # of rows as text over their size at the node: TOAST is compressed there
Result = TypeVar("Result")


class RequestsPostponed(NodeUnreachable):
    """All due copies are requested and have not begun; they were postponed, and the stream continues."""


class CopyConflicts(NodeUnfit):
    """A standby cancels the reading of a table again and again, to continue its replay."""

    hint = "set hot_standby_feedback = on at the standby, or raise its max_standby_streaming_delay, for the copy"


class TableUnreadable(NodeUnfit):
    """A table whose rows the node itself cannot return, at any attempt."""

    hint = "see the log of the node; correct the row, or exclude the table"


@dataclass(frozen=True, slots=True)
class CopySettings:
    """The settings that a first copy reads."""

    dsn: str
    select: SelectConfig
    copy: CopyConfig
    retry: RetryConfig
    older_wait_s: float  # for transactions older than the seed, or than a table's snapshot
    bounds: BlockBounds  # of a delivered batch
    archive: Path | None  # with the WAL of a base backup

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the settings of a configuration."""
        bounds = BlockBounds(config.deliver.group_rows_max, config.deliver.group_bytes_max)
        archive = Path(config.archive.folder) if config.has_archive else None
        return cls(config.capture.dsn, config.select, config.copy, config.retry, config.seed.wait_s, bounds, archive)


class FirstCopy:
    """Plans which tables are to be copied, and copies them one after the other."""

    def __init__(
        self,
        settings: CopySettings,
        store: StateStore,
        epoch: Epoch,
        beginning: Beginning,
        deliver: Deliver,
        *,
        captured: Container[Oid],
        delivered: Callable[[], Collection[TableKey]],
        names: Callable[[], Mapping[TableKey, TableName]],
        metrics: Metrics,
        log: Log,
        stopping: threading.Event,
    ) -> None:
        """Copy for a capture, as of its start.

        `captured`: its databases. `delivered`: return the existing tables of which something was delivered. `names`:
        return the names of all tables.
        """
        self._settings = settings
        self._store = store
        self._epoch = epoch
        self._beginning = beginning
        self._captured = captured
        self._delivered = delivered
        self._names = names
        self._feeding = CopyFeeding(deliver, metrics, log)
        self._metrics = metrics
        self._log = log
        self._stopping = stopping
        self._sessions = CopySessions(settings.dsn, store.identity)
        self._clock = SystemClock()
        self._conflicts = self._failures = 0  # since the last table that was copied

    def run(self) -> None:
        """Plan and copy all; wait for a node that is down, and copy the current table again.

        Requested copies that have not begun do not wait for the node: they are postponed.
        """
        with closing(self._sessions):
            try:
                self._run_all()
            except RequestsPostponed as error:
                self._metrics.copy_tables_left.set(0)
                self._log.warning("requested copies wait", **describe_error(error))
                return
        self._log.info("first copy done")

    def _run_all(self) -> None:
        tasks = self._trying(self._plan)
        self._metrics.copy_tables_left.set(len(tasks))
        while tasks:
            try:
                self._trying(lambda: self._run(tasks))
            except (CopyConflicts, TableUnreadable) as error:
                self._give_up(tasks, error)

    def _trying(self, attempt: Callable[[], Result]) -> Result:
        backoff = Backoff(self._settings.retry.first_s, self._settings.retry.max_s)
        while True:
            try:
                return attempt()
            except TidemarkError as error:
                self._sessions.close()
                if _is_without_connection(error):
                    self._postpone(error)
                if error.disposition is not Disposition.RETRY or isinstance(error, RequestsPostponed):
                    raise
                self._count(error)
                self._metrics.errors.inc()
                delay_s = backoff.failed(self._clock.monotonic_s())
                self._log.warning("first copy interrupted", retry_s=delay_s, **describe_error(error))
                if self._stopping.wait(delay_s):
                    raise Stopped from error

    def _postpone(self, error: TidemarkError) -> None:
        """Postpone all and raise `RequestsPostponed`, if all due copies are requested and have not begun."""
        requested, settings = not_begun(self._store), self._settings
        if requested and is_requested_alone(settings.select, settings.copy, self._store.view(), requested):
            postpone(self._store, self._epoch, requested)
            raise RequestsPostponed(str(error), hint=f"{error.hint}; meanwhile the stream continues") from error

    def _count(self, error: TidemarkError) -> None:
        """Raise an error that has repeated so often that another attempt is useless."""
        self._conflicts += isinstance(error, RecoveryConflict)
        self._failures += isinstance(error, DataUnreadable)
        if self._conflicts > CONFLICTS_MAX:
            raise CopyConflicts(
                f"{CONFLICTS_MAX} attempts to read a table were cancelled by the standby: {error}"
            ) from error
        if self._failures > FAILURES_MAX:
            raise TableUnreadable(f"{FAILURES_MAX} attempts to read a table failed: {error}") from error

    def _plan(self) -> list[CopyTask]:
        """Return the tables to be copied, and record them: a kill does not change the plan."""
        node, settings = self._sessions.node(), self._settings
        # Changes of a transaction older than the seed are not streamed: they must exist when the tables are read.
        self._wait_for(node, self._beginning.complete_from, settings.older_wait_s)
        delivered = self._delivered()
        plan = plan_copies(
            settings.select,
            settings.copy,
            self._store.view(),
            self._sessions,
            not_begun(self._store),
            delivered=delivered,
            away={key for key in delivered if key[0] not in self._captured},
            names=self._names,
        )
        after_lsn = node.insert_lsn()
        timeline, seen_lsn = node.flushed()
        moves = {
            # NB: an open one has yet to get its snapshot.
            key: progress if progress.is_open else replace(progress, seen_lsn=seen_lsn, timeline=timeline)
            for key, progress in plan.moves.items()
        }
        moves |= {key: replace(moves[key], after_lsn=after_lsn) for key in plan.later}
        found = Fingerprint(selection_reported(settings.select, settings.copy), seen_lsn, timeline, plan.shown)
        with self._store.transaction(self._epoch) as transaction:
            for key, progress in moves.items():
                transaction.put_copy(*key, progress)
            if plan.is_of_all:
                transaction.put(FINGERPRINT, found)
        self._log.info("first copy planned", tables=len(plan.tasks), later=len(plan.later))
        self._fail(plan.denied)
        return plan.tasks

    def _run(self, tasks: list[CopyTask]) -> None:
        """Copy the tables of `tasks` and remove them from it."""
        node = self._sessions.node()
        node.check_fitness()
        timeline = node.timeline()
        lx = self._wait_for_older(node, tasks)
        names = self._leave_databases(node, tasks)
        self._sessions.leave_node()
        while tasks:
            task = tasks[0]
            try:
                self._copy(self._sessions.source(task.database, names[task.database]), task, timeline, lx)
            except ConnectionRejected:
                raise
            except NodeUnfit as error:
                self._give_up(tasks, error)
            else:
                self._remove_first(tasks)

    def _give_up(self, tasks: list[CopyTask], error: NodeUnfit) -> None:
        """Fail the request for the current table; raise `error` if there is none, or if its copy has begun."""
        key = (tasks[0].database, tasks[0].relation)
        if key not in not_begun(self._store):
            raise error
        self._sessions.close()
        self._fail({key: str(error)})
        self._remove_first(tasks)

    def _remove_first(self, tasks: list[CopyTask]) -> None:
        tasks.pop(0)
        self._conflicts = self._failures = 0
        self._metrics.copy_tables_left.set(len(tasks))

    def _leave_databases(self, node: Node, tasks: list[CopyTask]) -> dict[Oid, str]:
        """Return the databases' present names; remove tables of dropped or unselected databases from `tasks`."""
        names = database_names(node, {task.database for task in tasks})
        for task in list(tasks):
            name = names.get(task.database)
            if name is None or not self._settings.select.selection().selects_database(name):
                phase = CopyPhase.DONE if name is None else CopyPhase.LEFT
                key = (task.database, task.relation)
                self._finish(key, node.flushed(), replace(self._recorded(key), phase=phase))
                tasks.remove(task)
        return names

    def _fail(self, reasons: Mapping[TableKey, str]) -> None:
        """End requests for tables that cannot be copied; their copies are unchanged, and the stream continues."""
        if not reasons:
            return
        fail(self._store, self._epoch, reasons)
        for (_, relation), reason in reasons.items():
            self._metrics.recopies_failed.inc()
            hint = "cdcctl status names the table: fix the cause, then request the copy again with cdcctl table recopy"
            self._log.error("requested copy failed", relation_oid=relation, reason=reason, hint=hint)

    def _refuse(self, key: TableKey, name: str, error: TableTooLarge) -> None:
        """Record that a table does not fit, as a failed request; the other tables and the stream continue."""
        self._sessions.close()
        refused = Recopy(name, self._clock.wall_us(), INVALID_LSN, 0, failed=str(error))
        refuse(self._store, self._epoch, key, refused)
        self._metrics.recopies_failed.inc()
        hint = f"{error.hint}; restart the sidecar, then run cdcctl table recopy {shlex.quote(name)}"
        self._log.error("the copy of a table failed", relation_oid=key[1], table=name, reason=str(error), hint=hint)

    def _wait_for_older(self, node: Node, tasks: list[CopyTask]) -> Lsn:
        """Return the LSN from which older transactions were waited for; may raise `RequestsPostponed`."""
        lx, wait_s = node.flush_lsn(), self._settings.older_wait_s
        requested = not_begun(self._store)
        may_wait = all((task.database, task.relation) in requested for task in tasks)
        try:
            self._wait_for(node, node.snapshot().xmax, min(wait_s, older_wait_s(self._store)) if may_wait else wait_s)
        except OlderTransactions as error:
            if not may_wait:
                raise
            postpone(self._store, self._epoch, requested)
            raise RequestsPostponed(str(error), hint="end them; meanwhile the stream continues") from error
        return lx

    def _wait_for(self, node: Node, below: FullXid, wait_s: float) -> None:
        waiting = Waiting(below, wait_s, self)
        while waiting.poll(node) is None:
            self._sessions.leave_source()  # no session stays in a database during this wait
            if self._stopping.wait(WAIT_POLL_S):
                raise Stopped

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Report the transactions for which the copy waits."""
        names = [str(blocker) for blocker in blockers]
        self._log.info("first copy waits for older transactions", transactions=names, waited_s=round(waited_s, 1))

    def _copy(self, source: CopySource, task: CopyTask, timeline: TimelineId, lx: Lsn) -> None:
        key = (task.database, task.relation)
        before = self._recorded(key)
        table = source.table(task.relation)
        if table is None:  # dropped meanwhile: the stream reports it, if there is something to drop
            shows = source.listed_tables()[1] if is_untouched(self._store.view(), key) else before.snapshot
            self._finish(key, source.flush(), replace(before, phase=CopyPhase.DONE, snapshot=shows))
            return
        is_read_first = self._may_be_too_large(source, table) or key in not_begun(self._store)
        with CopySpool(self._store.folder.copy, self._settings.copy.spool_bytes) as spool, ExitStack() as locked:
            snapshot = self._lock_snapshot(source, table, locked)
            if snapshot is None:
                locked.close()
                self._finish(key, source.flush(), replace(before, phase=CopyPhase.LEFT))
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

    def _recorded(self, key: TableKey) -> CopyProgress:
        progress = self._store.copy(*key)
        assert progress is not None, "recorded when it was planned"
        return progress

    def _finish(self, key: TableKey, flushed: tuple[TimelineId, Lsn], progress: CopyProgress) -> None:
        timeline, seen_lsn = flushed
        with self._store.transaction(self._epoch) as transaction:
            transaction.put_copy(*key, replace(progress, seen_lsn=seen_lsn, timeline=timeline))


def shown_by(selection: Selection, relation: Relation) -> Relation | None:
    """Return the version under which a table's rows are delivered; None: not under its own name, or not at all."""
    shown = under_own_name(relation, selection.root_of)
    if shown is None or not selection.selects(shown):
        return None
    return shown if shown.has_partition_rows or shown.kind != ROUTED_KIND else None


def _is_without_connection(error: TidemarkError) -> bool:
    """Return whether an error is of the connection to the node, and not of a table and its rows."""
    of_table = (RecoveryConflict, DataUnreadable, TableChanging, SnapshotUnclear, RequestsPostponed)
    return isinstance(error, ConnectionRejected | NodeUnreachable) and not isinstance(error, of_table)
