"""Writes a batch of outbox values into the lake: the log and the replica of each table, then the positions.

    <lake>/<database>/<schema>/<table>/{log,replica}    <lake>/<database>/messages    <lake>/_positions

`tidemark.pipeline.lake.folders` chooses the folders of new tables; the positions table contains the present names.

Every target checks its own position, so a kill at any point is harmless: a repeated change is skipped where it is
already applied. `batch_writes` writes logs and replicas, `idle_tables` finds the tables that are opened without items,
`tables_behind` has those that lack values of the outbox.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from tidemark.decode.types.codec import Dialect
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import passed
from tidemark.io.process.lake_config import DEFAULT_LAKE, LakeConfig
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.folders import LakeFolders, delta_tables
from tidemark.pipeline.lake.layout import Constants, Shapes
from tidemark.pipeline.lake.positions.leaving import LeavingFolder
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition
from tidemark.pipeline.lake.tables.table_locks import TableLocks
from tidemark.pipeline.lake.tables.table_properties import KEEP_HOURS
from tidemark.pipeline.sinks.batch_writes import write_batch
from tidemark.pipeline.sinks.executors.executor_files import FileWriters
from tidemark.pipeline.sinks.idle_tables import IdleTables
from tidemark.pipeline.sinks.lake_batch import (
    LakeBatch,
    LakeItem,
    SplitBatch,
    batch_applied,
    first_relation,
    split_items,
    without_notices,
    without_removed,
)
from tidemark.pipeline.sinks.log.event_record import FOLDER as EVENTS
from tidemark.pipeline.sinks.log.event_record import EventRecord
from tidemark.pipeline.sinks.reached_positions import ReachedPositions
from tidemark.pipeline.sinks.table_writes import TableWrites, Upkeep
from tidemark.pipeline.sinks.tables_behind import TablesBehind
from tidemark.pipeline.sinks.targets.slow_writes import SlowWrites
from tidemark.pipeline.sinks.targets.table_faults import TableFaults
from tidemark.pipeline.sinks.targets.targets import Outcome, TargetTable, apply_batch, catch_up
from tidemark.pipeline.sinks.waiting import StoredItem
from tidemark.wire.state.values import Identity


class Lake:
    """All targets of one capture."""

    def __init__(
        self,
        root: str,
        identity: Identity,
        shapes: Shapes,
        constants: Constants,
        databases: Mapping[Oid, str] | None = None,
        *,
        dialects: Mapping[Oid, Dialect] | None = None,
        keep_hours: int = KEEP_HOURS,
        accepted: Callable[[], Mapping[str, str]] = dict,
        is_over: Callable[[], bool] = lambda: False,
        config: LakeConfig = DEFAULT_LAKE,
        slow_writes: SlowWrites | None = None,
        locks: TableLocks | None = None,
        writers: FileWriters | None = None,
    ) -> None:
        """`databases`: names; a database without a name is called by its OID, one without a dialect has that of UTF-8.

        Files that a commit replaced are kept for `keep_hours`, for readers of older versions. `accepted` reads the
        breaks in logs that the operator accepted: for a log's key the position before the break. Long optional work
        ends once `is_over` returns true. `config` has the settings of tables. `slow_writes` finds those that lag.
        `locks` are shared with maintenance beside the lake; without them there is none. `writers` write files of large
        runs.
        """
        self.root = root.rstrip("/")
        named = {} if databases is None else databases
        self.positions = Positions(self.root, identity)
        recorded, leaving = self.positions.recorded, self.positions.leaving
        self._folders = LakeFolders(self.root, identity.capture, named, recorded, leaving=leaving)
        self._writes = TableWrites(
            self.root,
            identity,
            self.positions,
            self._folders,
            shapes=shapes,
            constants=constants,
            databases=named,
            dialects={} if dialects is None else dialects,
            keep_hours=keep_hours,
            accepted=accepted,
            config=config,
            locks=locks or TableLocks(),
            writers=writers,
        )
        self._writes.upkeep[POSITIONS] = Upkeep("", NEVER_WRITTEN, (), 0, keep_hours)
        if self.positions.events_after is None:
            self.positions.events_after = self.positions.applied.position
        self._events = EventRecord(
            self.root,
            identity.capture,
            shapes,
            constants,
            dialects or {},
            is_reduced=self._writes.is_reduced,
            expired_lsn=self._writes.expired_lsn,
            is_removed=self.positions.is_removed,
        )
        self._keep_hours = keep_hours
        self._is_over = is_over
        self._config = config
        self._clock = SystemClock()
        self._slow_writes = slow_writes or SlowWrites(config.slow_write_s)
        self.recording_s = 0.0  # how long `_positions` took to write last
        self._touched: Sequence[TablePosition] = ()
        self._beside: list[tuple[str, int]] = []
        self._has_settings = False  # `_positions` has those of this configuration
        self._finished: list[str] = []
        self._gone: list[str] = []  # folders of removed tables; free once `_positions` does not name them
        faults = TableFaults()
        self._behind = TablesBehind(self.positions, faults)
        self._idle = IdleTables(self.root, self.positions, faults)
        self._reached = ReachedPositions(self.positions, self._folders, self._writes, config)

    @property
    def written(self) -> list[tuple[str, int]]:
        """Return the Delta tables that the last batch wrote: folder below the root, recorded version."""
        found = [(folder, version) for table in self._touched for folder, version in delta_tables(table)]
        return [(POSITIONS, self.positions.version), *found, *self._beside]

    @property
    def paused(self) -> dict[TableId, OutboxSequence]:
        """Return the paused tables (`TablesBehind.paused`)."""
        return self._behind.paused

    @property
    def deferred(self) -> dict[TableId, OutboxSequence]:
        """Return the tables whose replica is deferred (`TablesBehind.deferred`)."""
        return self._behind.deferred

    @property
    def contained(self) -> OutboxSequence:
        """Return the sequence up to which every table contains the values of the outbox (`TablesBehind.contained`)."""
        return self._behind.contained

    def is_due(self, of: TableId) -> bool:
        """Return whether a deferred replica has to be merged."""
        settings = self._config.settings_of(self.positions.tables[of].qualified_name)
        return self._writes.intervals.is_due(of, settings)

    def give_up(self, tables: Collection[TableId], reason: str, kind: FaultKind = FaultKind.PAUSED) -> None:
        """Make paused or deferred tables diverge: they need a new copy. The next batch records it."""
        self._behind.give_up(tables, reason, kind)

    def catch_up(
        self,
        of: TableId,
        items: Sequence[LakeItem],
        upto: OutboxSequence,
        kind: Literal[FaultKind.PAUSED, FaultKind.DEFERRED, FaultKind.DIVERGED] = FaultKind.PAUSED,
    ) -> None:
        """Apply to a table that is behind its items up to the value `upto`; at the end of the lake it is live.

        It is paused or deferred; with DIVERGED its changes were given up, and it needs all of them again.
        NB: the items begin where this kind of fault did; a log or replica with another one may need earlier ones.
        """
        self.positions.check_present()
        known, applied = self.positions.tables[of], self.positions.applied
        whole, is_last = split_items(items), upto >= applied.sequence
        split = without_notices(whole, self.positions.tables)

        def write(target: TargetTable, some: Sequence[StoredItem]) -> Outcome:
            fault = target.known.fault
            if fault is None and kind is not FaultKind.DEFERRED:
                return apply_batch(target, some, applied, self._is_over)
            if fault is not None and fault.kind is kind and (kind is not FaultKind.DIVERGED or fault.is_given_up):
                return catch_up(target, some, upto, is_last=is_last, is_over=self._is_over)
            return Outcome(target.known, target.applied)

        if known.relation == INVALID_OID:
            outcomes = [self._writes.messages(known.database, split.messages.get(known.database, []), write)]
            reached = self._reached.of_messages(known.database, outcomes[0])
        else:
            own = split.tables.get(of, [])
            outcomes = [self._writes.log(of, own, write), self._writes.replica(of, own, write)]
            # NB: the items may be older than the name.
            log, replica = outcomes
            reached = self._reached.of_table(of, own, log, replica, whole.tables.get(of, ()))
            reached = replace(reached, namespace=known.namespace, name=known.name)
        if is_last:
            self._writes.intervals.record_merge(of)
        passed(Failpoint.TABLE_CAUGHT_UP)
        self.positions.check_present()
        self._record(self.positions.outbox, [reached], applied, outcomes)

    def apply(self, batch: LakeBatch) -> None:
        """Apply `batch` to every table, then record it in the positions table."""
        passed(Failpoint.BATCH_RECEIVED)
        self.positions.check_present()
        since = self.positions.applied
        if batch.outbox != self.positions.outbox:
            before = OutboxSequence(batch.items[0][0] - 1) if batch.items else batch.end
            since = replace(since, sequence=before)
            self._behind.change_outbox(batch, before)
        if not self._has_settings:
            present = self._reached.with_settings(self.positions.tables.values())
            self.positions.tables = dict(zip(self.positions.tables, present, strict=True))
            self._has_settings = True
        whole = split_items(batch.items)
        self.positions.recall(whole.tables)
        split = without_notices(
            without_removed(whole, self.positions.tables, self.positions.removed_to), self.positions.tables
        )
        self._idle.add_to(split)
        self._forget_removed(split)
        recorded = self._events.record(split.tables, batch_applied(batch), self._keep_hours)
        self._choose_folders(split)
        write = partial(self._slow_writes.timed, partial(apply_batch, since=since, is_over=self._is_over))
        done = write_batch(self._writes, split, write, since)
        applied = batch_applied(batch)
        outcomes = done.with_paused(self._slow_writes.end_batch(), applied)
        passed(Failpoint.TABLES_DONE)
        self.positions.check_present()  # a lake that disappeared meanwhile is no fault of its tables
        if applied.position < self.positions.applied.position:
            applied = replace(applied, position=self.positions.applied.position)
        touched = self._reached.of_batch(split, outcomes, whole, applied)
        self.positions.newest_commit_us = max(self.positions.newest_commit_us, batch.commit_time_us)
        self._record(batch.outbox, touched, applied, done)
        if recorded is not None:
            self._beside.append((EVENTS, recorded))
        passed(Failpoint.POSITIONS_WRITTEN)

    def _forget_removed(self, split: SplitBatch) -> None:
        """Forget the events of tables that exist again after they were removed.

        NB: after a kill also those that this batch had recorded; it records them again.
        """
        new = split.tables.keys() - self.positions.tables.keys()
        if new and self.positions.removed_to is not None:
            self._events.forget_removed(new)

    def _choose_folders(self, split: SplitBatch) -> None:
        for of, items in split.tables.items():
            self._folders.choose(of, first_relation(items) if items else None)
        for database in split.messages:
            self._folders.choose((database, INVALID_OID), None)

    def _record(
        self, outbox: str, touched: Sequence[TablePosition], applied: Applied, outcomes: Iterable[Outcome]
    ) -> None:
        begun_s = self._clock.monotonic_s()
        touched = self._reached.with_settings(touched)
        settled = self.positions.write(outbox, touched, applied)
        self.recording_s = self._clock.monotonic_s() - begun_s
        self._touched = touched
        for table in settled:
            self._forget(table)
        for folder in self._gone:
            self._folders.free(folder)
        self._gone = []
        beside = (outcome.beside for outcome in outcomes)
        self._beside = [(uri.removeprefix(f"{self.root}/"), version) for uri, version in filter(None, beside)]

    def _forget(self, table: TablePosition) -> None:
        """Keep nothing of a dropped table in memory that only its next change needs."""
        folders = [folder for folder, _ in delta_tables(table)]
        self._writes.forget((table.database, table.relation), folders)
        self._events.forget((table.database, table.relation))
        self._finished += folders

    def begin_removal(self, table: TablePosition, leaving: LeavingFolder) -> None:
        """Remove a dropped table with the next write of `_positions`, unless it has changed; its files are kept."""
        if self.positions.begin_removal(table, leaving):
            self._folders.release((table.database, table.relation))
            self._forget(table)

    def end_removal(self, folder: str) -> None:
        """Let other tables have the folder of a removed table after the next write of `_positions`."""
        self.positions.end_removal(folder)
        self._gone.append(folder)

    def take_finished(self) -> Collection[str]:
        """Return the folders of the Delta tables that have become those of settled tables since the last call."""
        finished, self._finished = self._finished, []
        for folder in finished:
            self._writes.upkeep.pop(folder, None)
        return finished

    @property
    def upkeep(self) -> Mapping[str, Upkeep]:
        """Return how each Delta table is maintained that was written, by its folder below the root."""
        return self._writes.upkeep

    def record_maintenance(self, committed: Collection[str], damaged: Mapping[str, str]) -> None:
        """Let the next batch record the tables to which maintenance committed, and those that it found damaged."""
        self._idle.record_maintenance({*committed, *damaged})
        self._writes.report_damage(damaged)

    def refresh(self) -> None:
        """Record the present versions of tables without a batch, so that `_positions` keeps no old version."""
        applied = self.positions.applied
        self.apply(LakeBatch(self.positions.outbox, applied.sequence, applied.position, []))
