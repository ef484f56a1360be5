"""Writes a batch of outbox values into the lake: the log and the replica of each table, then the positions.

    <lake>/<database>/<schema>/<table>/{log,replica}    <lake>/<database>/messages    <lake>/_positions

`tidemark.pipeline.lake.folders` chooses the folders of new tables; the positions table contains the present names.

Every target checks its own position, so a kill at any point is harmless: a repeated change is skipped where it is
already applied. Logs and replicas are written by a small pool of threads, which take turns (`storage.turns`).
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Literal

from tidemark.decode.types.codec import Dialect
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import passed
from tidemark.io.process.lake_config import DEFAULT_LAKE, LakeConfig
from tidemark.model.change import ChangeBatch
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.commits import has_commit
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.folders import LOG, MESSAGES, REPLICA, LakeFolders
from tidemark.pipeline.lake.layout import Constants, Shapes
from tidemark.pipeline.lake.leaving import LeavingFolder
from tidemark.pipeline.lake.positions import FOLDER as POSITIONS
from tidemark.pipeline.lake.positions import Positions, TableId, TablePosition, TableState
from tidemark.pipeline.lake.table_locks import TableLocks
from tidemark.pipeline.lake.table_properties import KEEP_HOURS
from tidemark.pipeline.sinks.event_record import FOLDER as EVENTS
from tidemark.pipeline.sinks.event_record import EventRecord
from tidemark.pipeline.sinks.executor_files import FileWriters
from tidemark.pipeline.sinks.lake_batch import (
    LakeBatch,
    LakeItem,
    SplitBatch,
    batch_applied,
    first_relation,
    latest_relation,
    split_items,
    without_notices,
    without_removed,
)
from tidemark.pipeline.sinks.slow_writes import SlowWrites
from tidemark.pipeline.sinks.steps import Delivered, last_position
from tidemark.pipeline.sinks.table_faults import TableFaults
from tidemark.pipeline.sinks.table_states import (
    breaks_after,
    diverged_table,
    dropped_us,
    fault_state,
    state_after,
)
from tidemark.pipeline.sinks.table_writes import TableWrites, Upkeep
from tidemark.pipeline.sinks.targets import Outcome, TargetTable, apply_batch, catch_up, paused_outcome
from tidemark.pipeline.sinks.waiting import StoredItem
from tidemark.pipeline.storage.stores import store_of
from tidemark.pipeline.storage.turns import Turns
from tidemark.wire.state.values import Identity

TARGETS_AT_ONCE = 4
SMALL_TARGETS_AT_ONCE = 8  # of which one computes: a small write waits for the disk as long as it computes, or longer
SMALL_ROWS = 10_000  # of a table in a batch: more take long in PyArrow, which needs no interpreter


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
        self._store = store_of(self.root)
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
        self._maintained: set[str] = set()  # folders with commits of maintenance that `_positions` does not record
        self._faults = TableFaults()
        self._unchecked: deque[TableId] = deque()  # the tables that this round has not checked yet

    @property
    def written(self) -> list[tuple[str, int]]:
        """Return the Delta tables that the last batch wrote: folder below the root, recorded version."""
        found = [(folder, version) for table in self._touched for folder, version in delta_tables(table)]
        return [(POSITIONS, self.positions.version), *found, *self._beside]

    @property
    def paused(self) -> dict[TableId, OutboxSequence]:
        """Return the paused tables, each with the value of the outbox after which its changes are needed."""
        return self._behind(FaultKind.PAUSED)

    @property
    def deferred(self) -> dict[TableId, OutboxSequence]:
        """Return the tables whose replica is deferred, each with the value after which its changes are needed."""
        return self._behind(FaultKind.DEFERRED)

    def _behind(self, kind: FaultKind) -> dict[TableId, OutboxSequence]:
        found = {}
        for of, faults in self._faults.of(self.positions.tables).items():
            needed = [fault.sequence for fault in faults if fault.kind is kind]
            if needed:
                found[of] = min(needed)
        return found

    @property
    def contained(self) -> OutboxSequence:
        """Return the sequence up to which every table contains the values of the outbox, also those that are behind."""
        return min([self.positions.applied.sequence, *self.paused.values(), *self.deferred.values()])

    def is_due(self, of: TableId) -> bool:
        """Return whether a deferred replica has to be merged."""
        settings = self._config.settings_of(self.positions.tables[of].qualified_name)
        return self._writes.intervals.is_due(of, settings)

    def give_up(self, tables: Collection[TableId], reason: str, kind: FaultKind = FaultKind.PAUSED) -> None:
        """Make paused or deferred tables diverge: they need a new copy. The next batch records it."""
        given_up = {of: diverged_table(self.positions.tables[of], reason, kind) for of in tables}
        self.positions.tables = {**self.positions.tables, **given_up}

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
            reached = self._messages_reached(known.database, outcomes[0])
        else:
            own = split.tables.get(of, [])
            outcomes = [self._writes.log(of, own, write), self._writes.replica(of, own, write)]
            # NB: the items may be older than the name.
            log, replica = outcomes
            reached = self._reached(of, own, log, replica, whole.tables.get(of, ()))
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
            self.give_up(self.paused.keys(), "another outbox continues the lake, without the changes of its pause")
            self._rebase_deferred(batch, before)
        if not self._has_settings:
            self.positions.tables = {of: self._with_settings(known) for of, known in self.positions.tables.items()}
            self._has_settings = True
        whole = split_items(batch.items)
        self.positions.recall(whole.tables)
        split = without_notices(
            without_removed(whole, self.positions.tables, self.positions.removed_to), self.positions.tables
        )
        self._add_maintained(split)
        self._add_stopped(split)
        self._add_changed(split)
        recorded = self._events.record(split.tables, batch_applied(batch), self._keep_hours)
        self._choose_folders(split)
        write = partial(self._slow_writes.timed, partial(apply_batch, since=since, is_over=self._is_over))
        threads, turns = _turns_for(split)

        def in_turn(write_target: Callable[[], Outcome]) -> Outcome:
            with turns.held():
                return write_target()

        with ThreadPoolExecutor(threads, "tidemark-target") as pool:
            written = [
                (
                    table,
                    items,
                    pool.submit(in_turn, partial(self._writes.log, table, items, write)),
                    pool.submit(in_turn, partial(self._writes.replica, table, items, write, since)),
                )
                for table, items in split.tables.items()
            ]
            messages = [
                (of, pool.submit(in_turn, partial(self._writes.messages, of, items, write)))
                for of, items in split.messages.items()
            ]
            done = [target.result() for _, _, *targets in written for target in targets]
            done += [target.result() for _, target in messages]
        lagging = self._slow_writes.end_batch()

        def result(target: Future[Outcome]) -> Outcome:
            outcome = target.result()
            reason = lagging.get(outcome.table.uri) if outcome.table is not None else None
            return outcome if reason is None else paused_outcome(outcome, reason, batch_applied(batch))

        touched = [
            self._reached(of, items, result(log), result(kept), whole.tables.get(of, ()))
            for of, items, log, kept in written
        ]
        touched += [self._messages_reached(of, result(target)) for of, target in messages]
        passed(Failpoint.TABLES_DONE)
        self.positions.check_present()  # a lake that disappeared meanwhile is no fault of its tables
        applied = batch_applied(batch)
        if applied.position < self.positions.applied.position:
            applied = replace(applied, position=self.positions.applied.position)
        # NB: after a crash, a table without items may be ahead; it is recorded with its next changes. All recorded
        # positions belong to one moment of the source.
        idle = {of for of, items in split.tables.items() if not items}
        idle |= {(of, INVALID_OID) for of, items in split.messages.items() if not items}
        ahead = {of for of in idle if of in whole.tables}
        touched = [
            table if of not in ahead else replace(self.positions.tables[of], breaks=table.breaks)
            for table in touched
            if (of := (table.database, table.relation)) not in idle or of in ahead or table.position <= applied.position
        ]
        self.positions.newest_commit_us = max(self.positions.newest_commit_us, batch.commit_time_us)
        self._record(batch.outbox, touched, applied, done)
        if recorded is not None:
            self._beside.append((EVENTS, recorded))
        passed(Failpoint.POSITIONS_WRITTEN)

    def _rebase_deferred(self, batch: LakeBatch, since: OutboxSequence) -> None:
        """Let deferred replicas continue with a new outbox, which ends after `since`, if it has all their changes.

        It has them if it repeats a change that the replica contains: an outbox has no holes.
        """
        first = last_position(batch.items[0][1]) if batch.items else None
        for of in self.deferred:
            table = self.positions.tables[of]
            fault = table.replica.fault
            assert fault is not None, table
            if first is not None and first <= fault.position:
                rebased = replace(table, replica=replace(table.replica, fault=replace(fault, sequence=since)))
                self.positions.tables = {**self.positions.tables, of: rebased}
            else:
                reason = "another outbox continues the lake, without the changes since its last merge"
                self.give_up([of], reason, FaultKind.DEFERRED)

    def _choose_folders(self, split: SplitBatch) -> None:
        for of, items in split.tables.items():
            self._folders.choose(of, first_relation(items) if items else None)
        for database in split.messages:
            self._folders.choose((database, INVALID_OID), None)

    def _record(
        self, outbox: str, touched: Sequence[TablePosition], applied: Applied, outcomes: Sequence[Outcome]
    ) -> None:
        begun_s = self._clock.monotonic_s()
        touched = list(map(self._with_settings, touched))
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

    def _with_settings(self, table: TablePosition) -> TablePosition:
        """Return a table with its present settings, which a command compares with its own."""
        if table.relation == INVALID_OID:
            return table
        settings = self._config.settings_of(table.qualified_name).contents
        return table if table.settings == settings else replace(table, settings=settings)

    @property
    def upkeep(self) -> Mapping[str, Upkeep]:
        """Return how each Delta table is maintained that was written, by its folder below the root."""
        return self._writes.upkeep

    def record_maintenance(self, committed: Collection[str], damaged: Mapping[str, str]) -> None:
        """Let the next batch record the tables to which maintenance committed, and those that it found damaged."""
        self._maintained |= {*committed, *damaged}
        self._writes.report_damage(damaged)

    def refresh(self) -> None:
        """Record the present versions of tables without a batch, so that `_positions` keeps no old version."""
        applied = self.positions.applied
        self.apply(LakeBatch(self.positions.outbox, applied.sequence, applied.position, []))

    def _add_maintained(self, split: SplitBatch) -> None:
        maintained, self._maintained = self._maintained, set()
        settled = (self.positions.settled_in(folder.rpartition("/")[0]) for folder in maintained)
        self.positions.recall([of for of in settled if of is not None])
        for of, known in self.positions.tables.items() if maintained else ():
            if any(folder in maintained for folder, _ in delta_tables(known)):
                split.add(of)

    def _add_stopped(self, split: SplitBatch) -> None:
        """Add stopped tables without items: their restriction may have been removed."""
        for of, faults in self._faults.of(self.positions.tables).items():
            if any(fault.kind is FaultKind.STOPPED for fault in faults):
                split.add(of)

    def _add_changed(self, split: SplitBatch) -> None:
        """Add some tables without items, in rotation, if another writer may have committed to them.

        For each log or replica the check tests two files: whether the recorded commit exists, and whether a later one
        does. Only a table that fails the check is opened. One with items is opened anyway, unless it has a fault.
        """
        tables = self.positions.tables
        if not self._unchecked:
            self._unchecked.extend(tables)
        some = [self._unchecked.popleft() for _ in range(min(self._store.checks_max, len(self._unchecked)))]
        opened = split.tables.keys() - self._faults.of(tables).keys()
        # The replica of a dropped table belongs to its owner.
        known = [of for of in some if of in tables and of not in opened and tables[of].state is not TableState.DROPPED]
        if self._store.requests_at_once == 1:
            changed = list(map(self._is_table_changed, known))
        else:
            with ThreadPoolExecutor(self._store.requests_at_once, "tidemark-store") as pool:
                changed = list(pool.map(self._is_table_changed, known))
        for of, is_changed in zip(known, changed, strict=True):
            if is_changed:
                split.add(of)

    def _is_table_changed(self, of: TableId) -> bool:
        return any(self._is_changed(*found) for found in delta_tables(self.positions.tables[of]))

    def _is_changed(self, folder: str, version: int) -> bool:
        uri = f"{self.root}/{folder}"
        try:
            return has_commit(uri, version + 1) or not has_commit(uri, version)
        except OSError:
            return False  # an idle table with an unreadable folder must not delay others; its next change reports it

    def _reached(
        self,
        table: TableId,
        items: Sequence[Delivered],
        log: Outcome,
        replica: Outcome,
        reported: Sequence[Delivered],
    ) -> TablePosition:
        """Return the position of a table after its `items`; `reported`: with those that only report its capture."""
        known = self.positions.tables.get(table)
        applied = max(log.applied, replica.applied, key=lambda applied: applied.position)
        state = state_after(items, log, replica, known)
        reached = TablePosition(
            database=table[0],
            relation=table[1],
            namespace=known.namespace if known else "",
            name=known.name if known else "",
            folder=self._folders[table],
            state=state,
            sequence=applied.sequence,
            position=applied.position,
            generation=applied.generation,
            log=log.target,
            replica=replica.target,
            breaks=breaks_after(known, log, reported),
            dropped_us=dropped_us(items, state, known),
            pinned=self._writes.pinned(table, items, (log, replica)),
        )
        if not items:
            return reached
        relation = latest_relation(items)
        return replace(reached, namespace=relation.namespace, name=relation.name)

    def _messages_reached(self, database: Oid, log: Outcome) -> TablePosition:
        return TablePosition(
            database=database,
            relation=INVALID_OID,
            namespace="",
            name=MESSAGES,
            folder=self._folders[database, INVALID_OID],
            state=fault_state(log) or TableState.LIVE,
            sequence=log.applied.sequence,
            position=log.applied.position,
            log=log.target,
            breaks=breaks_after(self.positions.tables.get((database, INVALID_OID)), log),
        )


def _turns_for(split: SplitBatch) -> tuple[int, Turns]:
    """Return by how many threads a batch is written, and their turns."""
    rows = (
        sum(one.item.row_count for one in items if isinstance(one.item, ChangeBatch)) for items in split.tables.values()
    )
    is_small = max(rows, default=0) <= SMALL_ROWS
    return (SMALL_TARGETS_AT_ONCE, Turns(1)) if is_small else (TARGETS_AT_ONCE, Turns(TARGETS_AT_ONCE))


def delta_tables(table: TablePosition) -> list[tuple[str, int]]:
    """Return folder and version of a table's Delta tables, except those that are not written."""
    both = ((LOG, table.log), (REPLICA, table.replica))
    return [
        (table.folder if table.relation == INVALID_OID else f"{table.folder}/{name}", target.recorded.version)
        for name, target in both
        if target.recorded.version >= 0 and (target.fault is None or target.is_faulty(FaultKind.DEFERRED))
    ]
