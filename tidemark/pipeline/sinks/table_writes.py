"""Writes the items of one table into its log and its replica, or the messages of a database into their log.

Each write chooses the folder, the settings and the properties of its target, and keeps the target open for the next
batch. `sinks` decides what is written and records the outcomes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import UTF8
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.io.readers.accepted_breaks import log_key
from tidemark.model.change import ChangeBatch, LogicalMessage
from tidemark.model.commit_time import USECS_PER_DAY
from tidemark.model.lsn import INVALID_LSN, INVALID_OID, Lsn, Oid
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN, Recorded
from tidemark.pipeline.lake.deletion_marks import expire_deleted
from tidemark.pipeline.lake.faults import UNTOUCHED, Fault, FaultKind, LakeEntry, LogBreak
from tidemark.pipeline.lake.folders import LOG, REPLICA, LakeFolders, messages_app, table_app
from tidemark.pipeline.lake.layout import Constants, Shapes
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, applied_of
from tidemark.pipeline.lake.tables.kept_tables import KeptTables
from tidemark.pipeline.lake.tables.lake_table import LakeTable, OpenTable
from tidemark.pipeline.lake.tables.table_errors import LakeFailed
from tidemark.pipeline.lake.tables.table_locks import TableLocks
from tidemark.pipeline.lake.tables.table_properties import source_properties
from tidemark.pipeline.lake.tables.table_upkeep import compact, set_properties
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.sinks.executors.executor_files import FileWriters
from tidemark.pipeline.sinks.executors.packed_runs import PackedRuns
from tidemark.pipeline.sinks.executors.write_costs import RunWriter
from tidemark.pipeline.sinks.lake_batch import delivered_items, latest_relation, stored_items
from tidemark.pipeline.sinks.log.changelog import ChangeLog, expire_rows, expired_lsn
from tidemark.pipeline.sinks.log.log_table import DeltaLogFormat
from tidemark.pipeline.sinks.log.messages import append_messages
from tidemark.pipeline.sinks.replica.replica import Replica
from tidemark.pipeline.sinks.steps import Delivered, byte_count, first_position
from tidemark.pipeline.sinks.targets.exclusion import excluded, included
from tidemark.pipeline.sinks.targets.late_lake import late_begin
from tidemark.pipeline.sinks.targets.merge_intervals import MergeIntervals
from tidemark.pipeline.sinks.targets.pinned_columns import Pins
from tidemark.pipeline.sinks.targets.schema_policy import refusing_changes
from tidemark.pipeline.sinks.targets.targets import Outcome, TargetTable, continued, copy_of_replica, new_copy
from tidemark.pipeline.sinks.waiting import StoredItem
from tidemark.wire.state.values import Identity

EXPIRE_EVERY = 100  # commits of one table between two deletions of expired rows
LOG_FILE_ROWS = 1 << 20  # of a log

LOG_KEY = ("_tli", "_commit_lsn", "_ordinal")

WriteTarget = Callable[[TargetTable, Sequence[StoredItem]], Outcome]
"""Writes items to a log or replica, or determines why that is not possible."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How the files of a log or replica are maintained: sorted by `key`, with at most `rows_max` rows (0: by its size).

    Without a key they are not combined. Replaced files are kept for `keep_hours`.
    """

    app: str
    recorded: Recorded
    key: tuple[str, ...]
    rows_max: int
    keep_hours: int


NO_UPKEEP = Upkeep("", NEVER_WRITTEN, (), 0, 1)
"""Of a table beside a log or replica, which the stream maintains."""


class TableWrites:
    """The writes into the tables of one lake; each table is written by one thread at a time."""

    def __init__(
        self,
        root: str,
        identity: Identity,
        positions: Positions,
        folders: LakeFolders,
        *,
        shapes: Shapes,
        constants: Constants,
        databases: Mapping[Oid, str],
        dialects: Mapping[Oid, Dialect],
        keep_hours: int,
        accepted: Callable[[], Mapping[str, str]],
        config: LakeConfig,
        locks: TableLocks,
        writers: FileWriters | None,
    ) -> None:
        """Write below `root`; the other arguments are those of `Lake`."""
        self._root = root
        self._capture = identity.capture
        self._system_identifier = identity.system_identifier
        self._positions = positions
        self._folders = folders
        self._shapes = shapes
        self._constants = constants
        self._databases = databases
        self._dialects = dialects
        self._keep_hours = keep_hours
        self._accepted = accepted
        self._config = config
        self._clock = SystemClock()
        self._kept = KeptTables()
        self._locks = locks
        self._writers = writers
        self._damaged: dict[str, str] = {}
        self.upkeep: dict[str, Upkeep] = {}  # of each written Delta table, by its folder below the root
        self._present: dict[TableId, Relation] = {}
        self._pins = Pins(shapes)
        self.intervals = MergeIntervals(self._clock.monotonic_s)

    def log(self, table: TableId, items: Sequence[Delivered], write: WriteTarget) -> Outcome:
        """Append a table's items to its log."""
        uri, app = f"{self._root}/{self._folders[table]}/{LOG}", table_app(self._capture, table, LOG)
        name = self._name(table, items)
        open_table, settings = self._opener(table, name), self._config.settings_of(name)
        keep_hours = max(self._keep_hours, settings.file_keep_hours)

        def apply(some: Sequence[StoredItem], recorded: Recorded | None) -> LakeTable:
            self._check_damage(uri)
            delta_log = DeltaLogFormat(uri, app, recorded, open_table, self._writers)
            log = self._timed(
                partial(ChangeLog(self._shapes, delta_log, settings.partition).apply, delivered_items(some)), some
            )
            if log.has_passed(EXPIRE_EVERY):
                set_properties(log, keep_hours)
                if settings.log_keep_days:
                    expire_rows(log, self._clock.wall_us() - settings.log_keep_days * USECS_PER_DAY)
            return log

        known = self._positions.tables.get(table)
        restart = partial(self._accepted_copy, table)
        entry, applied = known.log if known else UNTOUCHED, applied_of(known)
        late = late_begin(self._positions.begins_late, items) if known is None else None
        pinned = self._pins.columns(table, known, items, settings.schema_policy)
        refusing = refusing_changes(apply, name, settings, _own(applied, entry), pinned, is_replica=False)
        target = TargetTable(uri, app, entry, applied, refusing, restart)
        with self._locks.held(uri):
            outcome = excluded(target, LOG, settings) or write(included(target), stored_items(items))
        if late is not None and outcome.table is not None:
            outcome = replace(outcome, broke=LogBreak(late.reason, late.position, first_position(items[0].item)))
        self._maintain(target, outcome, LOG_KEY, LOG_FILE_ROWS, keep_hours)
        self._keep(outcome)
        return outcome

    def _timed(self, apply: Callable[[], LakeTable], some: Sequence[StoredItem]) -> LakeTable:
        """Append to a log; record how long it took if this process wrote all rows."""
        batches = [(sequence, item) for sequence, item in some if isinstance(item, ChangeBatch)]
        if self._writers is None or any(not isinstance(batch.given, pa.RecordBatch) for _, batch in batches):
            return apply()
        begun_s = self._clock.monotonic_s()
        log = apply()
        self._writers.record(RunWriter.DRIVER, byte_count(batches), self._clock.monotonic_s() - begun_s)
        return log

    def _maintain(
        self, target: TargetTable, outcome: Outcome, key: tuple[str, ...], rows_max: int, keep_hours: int
    ) -> None:
        """Record how a table is maintained; without a step its key is as before."""
        folder, entry = target.uri.removeprefix(f"{self._root}/"), outcome.target
        known = self.upkeep.get(folder, NO_UPKEEP)
        self.upkeep[folder] = Upkeep(target.app, entry.recorded, key or known.key, rows_max, keep_hours)

    def forget(self, table: TableId, folders: Collection[str]) -> None:
        """Keep nothing open of a dropped table, and nothing in memory; `folders` are those of log and replica."""
        for folder in folders:
            self._kept.close(f"{self._root}/{folder}")
        self._present.pop(table, None)
        self._pins.forget(table)
        self.intervals.forget(table)

    def report_damage(self, damaged: Mapping[str, str]) -> None:
        """Let the next writes to tables fail as if they had found the damage; by folder below the root, with it."""
        self._damaged.update(damaged)

    def _check_damage(self, uri: str) -> None:
        damage = self._damaged.pop(uri.removeprefix(f"{self._root}/"), "")
        if damage:
            raise LakeFailed(damage)

    def _keep(self, outcome: Outcome) -> None:
        if outcome.table is not None and outcome.beside is None and outcome.target.fault is None:
            self._kept.keep(outcome.table)

    def replica(
        self, table: TableId, items: Sequence[Delivered], write: WriteTarget, since: Applied | None = None
    ) -> Outcome:
        """Merge a table's items into its replica; it may be deferred in a batch that begins after `since`."""
        uri, app = f"{self._root}/{self._folders[table]}/{REPLICA}", table_app(self._capture, table, REPLICA)
        dialect = self._dialects.get(table[0], UTF8)
        # NB: removed first, so that it is unknown after a failure: a retry skips the events that were applied.
        present = self._present.pop(table, None)
        name = self._name(table, items)
        open_table, settings = self._opener(table, name), self._config.settings_of(name)
        known = self._positions.tables.get(table)
        pinned = self._pins.columns(table, known, items, settings.schema_policy)
        keep_hours = max(self._keep_hours, settings.file_keep_hours)
        applying = Replica(
            uri,
            app,
            self._shapes,
            self._constants,
            dialect,
            present=present,
            open_table=open_table,
            rows_max=settings.merge_rows,
            cluster=settings.cluster,
            partition=settings.partition,
            keeps_columns=pinned is not None,
            keeps_deleted=settings.soft_deletes,
            packed=self._packed(table, settings),
        )

        def apply(some: Sequence[StoredItem], recorded: Recorded | None) -> LakeTable:
            self._check_damage(uri)
            replica = applying.apply(delivered_items(some), recorded)
            if replica.has_passed(EXPIRE_EVERY) and settings.deleted_keep_days:
                expire_deleted(replica, self._clock.wall_us() - settings.deleted_keep_days * USECS_PER_DAY)
            if replica.has_passed(EXPIRE_EVERY) and replica.uri == uri:
                set_properties(replica, keep_hours)
            elif replica.has_passed(EXPIRE_EVERY):
                compact(replica, keep_hours)  # rows without a key, which no reader needs
            return replica

        late = late_begin(self._positions.begins_late, items) if known is None else None
        entry, applied = known.replica if known else LakeEntry(fault=late), applied_of(known)
        refusing = refusing_changes(apply, name, settings, _own(applied, entry), pinned, is_replica=True)
        target, stored = TargetTable(uri, app, entry, applied, refusing), stored_items(items)
        outcome = excluded(target, REPLICA, settings)
        target, copied = included(target), copy_of_replica(target, stored)
        if copied is not None and since is not None and not _is_paused_with_log(known):
            target = continued(target)
        if outcome is None and since is not None:
            outcome = self.intervals.deferred(table, target, known, items, since=since, settings=settings)
        if outcome is None:
            with self._locks.held(uri):
                outcome = write(target, stored if copied is None else copied)
        self._maintain(target, outcome, applying.sorted_by, 0, keep_hours)
        self._keep(outcome)
        is_skipped = outcome.table is None and outcome.target.is_faulty(FaultKind.DEFERRED)
        if applying.present is not None and (outcome.table is not None or is_skipped):
            self._present[table] = applying.present
        return outcome

    def _packed(self, table: TableId, settings: LakeTableConfig) -> PackedRuns | None:
        if self._writers is None:
            return None
        return PackedRuns(self._writers, table, keeps_deleted=settings.soft_deletes)

    def pinned(self, table: TableId, items: Sequence[Delivered], outcomes: Collection[Outcome]) -> Relation | None:
        """Return the version whose columns log and replica keep after the `outcomes` of `items`; None: they follow."""
        known = self._positions.tables.get(table)
        if not items or all(one.table is None and _is_skipped(one.target) for one in outcomes):
            return known.pinned if known is not None else None
        policy = self._config.settings_of(latest_relation(items).qualified_name).schema_policy
        return self._pins.recorded(table, known, items, policy)

    def is_reduced(self, table: TableId, items: Sequence[Delivered]) -> bool:
        """Return whether the columns of a table's version after `items` are not those that its log gets."""
        known, relation = self._positions.tables.get(table), latest_relation(items)
        policy = self._config.settings_of(relation.qualified_name).schema_policy
        columns = self._pins.columns(table, known, items, policy)
        for delivered in items if columns is not None else ():
            columns = columns.after(delivered.item, applied_of(known)) if columns is not None else None
        return columns is not None and columns.reduced(relation) != relation

    def expired_lsn(self, table: TableId) -> Lsn:
        """Return up to which commit LSN rows of a table's log may be deleted; 0: the log has all."""
        known = self._positions.tables.get(table)
        if known is None or not self._config.settings_of(known.qualified_name).log_keep_days:
            return INVALID_LSN
        log = LakeTable(f"{self._root}/{known.folder}/{LOG}", table_app(self._capture, table, LOG))
        return expired_lsn(log) if log.exists else INVALID_LSN

    def _name(self, table: TableId, items: Sequence[Delivered]) -> str:
        """Return the present name of a table; without items it is a known one."""
        return latest_relation(items).qualified_name if items else self._positions.tables[table].qualified_name

    def _opener(self, table: TableId, name: str) -> OpenTable:
        """Return what opens a table's log or replica: kept open if possible, with the properties that name its source.

        The position of the source is in each commit, at no further cost.
        """
        database = self._databases.get(table[0], str(table[0]))
        properties = source_properties(self._capture, self._system_identifier, database, name)
        return partial(self._kept.open, properties=properties)

    def messages(
        self, database: Oid, messages: Sequence[tuple[OutboxSequence, LogicalMessage]], write: WriteTarget
    ) -> Outcome:
        """Append the messages of a database to their log."""
        uri, app = f"{self._root}/{self._folders[database, INVALID_OID]}", messages_app(self._capture, database)

        def apply(some: Sequence[StoredItem], recorded: Recorded | None) -> LakeTable:
            known_messages = [(sequence, item) for sequence, item in some if isinstance(item, LogicalMessage)]
            self._check_damage(uri)
            log = append_messages(writable_table(uri, app, recorded), known_messages)
            if log.has_passed(EXPIRE_EVERY):
                set_properties(log, self._keep_hours)
            return log

        known = self._positions.tables.get((database, INVALID_OID))
        restart = partial(self._accepted_break, database)
        target = TargetTable(uri, app, known.log if known else UNTOUCHED, applied_of(known), apply, restart)
        with self._locks.held(uri):
            outcome = write(target, messages)
        self._maintain(target, outcome, LOG_KEY, LOG_FILE_ROWS, self._keep_hours)
        return outcome

    def _is_accepted(self, table: TableId, fault: Fault) -> bool:
        return self._accepted().get(log_key(*table)) == str(fault.position)

    def _accepted_copy(
        self, table: TableId, items: Sequence[StoredItem], applied: Applied, fault: Fault
    ) -> tuple[int, Position] | None:
        """Return where the log of a table continues: at a new copy, after an operator accepted the break."""
        return new_copy(items, applied, fault) if self._is_accepted(table, fault) else None

    def _accepted_break(
        self, database: Oid, messages: Sequence[StoredItem], _applied: Applied, fault: Fault
    ) -> tuple[int, Position] | None:
        """Return where messages continue after a break that an operator accepted: there is no new copy of messages."""
        if not self._is_accepted((database, INVALID_OID), fault):
            return None
        late = ((at, item) for at, (_, item) in enumerate(messages) if isinstance(item, LogicalMessage))
        return next(((at, item.position) for at, item in late if item.position > fault.position), None)


def _own(applied: Applied, entry: LakeEntry) -> Applied:
    """Return what a log or replica contains, which may be behind the other one."""
    return applied if entry.fault is None else replace(applied, position=entry.fault.position)


def _is_paused_with_log(known: TablePosition | None) -> bool:
    """Return whether log and replica of a table are paused: then they continue together, in the order of the items.

    A copy determines the pinned columns of both.
    """
    return known is not None and all(one.is_faulty(FaultKind.PAUSED) for one in (known.log, known.replica))


def _is_skipped(entry: LakeEntry) -> bool:
    skipped = (FaultKind.PAUSED, FaultKind.DEFERRED, FaultKind.EXCLUDED, FaultKind.DIVERGED)
    return entry.fault is not None and entry.fault.kind in skipped
