"""The positions table: the applied position of every table of the lake, and the start of a new checkpoint.

It is written last in every batch, so it never claims more than the tables contain. Each table has one row, with its
present name, its folder and the matching versions of log and replica. Rows of dropped tables are settled: they are in
files that a batch does not write again (`position_files`), and the stream does not look at them either. The messages of
each database have one row, with relation 0. The row of database 0 covers the whole lake: everything up to it is in the
lake, also for tables without changes. The commit contains this position as application transactions.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_OID, Lsn, Oid, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_BEHIND
from tidemark.pipeline.delta_log.commits import has_commit, read_commit
from tidemark.pipeline.delta_log.lineage import NO_VERSION, TableDiverged
from tidemark.pipeline.lake.faults import (
    BREAK,
    FAULT,
    POSITION,
    UNTOUCHED,
    FaultKind,
    LakeEntry,
    LogBreak,
    break_columns,
    parse_breaks,
    parse_target,
    position_columns,
    position_in,
    target_columns,
)
from tidemark.pipeline.lake.lake_table import REOPENED_MAX, LakeTable
from tidemark.pipeline.lake.leaving import LEAVING, LeavingFolder, leaving_column, parse_leaving
from tidemark.pipeline.lake.position_files import SETTLED_AT_ONCE, PositionFiles, found_files, paths_and_sizes
from tidemark.pipeline.lake.table_errors import LakeFailed, TableFenced, TableMoved
from tidemark.pipeline.lake.writable_table import writable_table
from tidemark.pipeline.storage.stores import store_of
from tidemark.wire.relations import decode_relation, encode_relation
from tidemark.wire.state.values import Identity

FOLDER = "_positions"
SCHEMA = pa.schema(
    [
        pa.field("database", pa.int64()),
        pa.field("relation", pa.int64()),
        pa.field("namespace", pa.string()),
        pa.field("name", pa.string()),
        pa.field("folder", pa.string()),  # below the lake's root
        pa.field("state", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("timeline", pa.int32()),
        pa.field("commit_lsn", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("generation", pa.int64()),
        pa.field("log_version", pa.int64()),  # of the Delta tables; -1: the table does not exist
        pa.field("replica_version", pa.int64()),
        pa.field("outbox", pa.string()),
        pa.field("capture", pa.string()),
        pa.field("system_identifier", pa.string()),  # an unsigned 64-bit number
        pa.field("log_id", pa.string()),  # of the Delta table; "": not recorded
        pa.field("replica_id", pa.string()),
        pa.field("log_token", pa.int64()),  # of the last commit of Tidemark
        pa.field("replica_token", pa.int64()),
        pa.field("log_fault", FAULT),  # why the table is not written; NULL: it is written
        pa.field("replica_fault", FAULT),
        pa.field("log_breaks", pa.list_(BREAK)),  # gaps in the log
        pa.field("pinned", pa.string()),  # the relation version whose columns are kept (schema_policy); NULL: none
        pa.field("settings", pa.string()),  # of the table in [[lake.tables]], as it is written; NULL: not recorded
        pa.field("dropped_us", pa.int64()),  # the commit time of its DROP; NULL: it exists, or the time is not known
        # Of the whole lake, in the row of database 0: the latest commit in it, and after which position `_events` has
        # all events. NULL: an earlier version of Tidemark wrote the lake last.
        pa.field("commit_time_us", pa.int64()),
        pa.field("events_after", POSITION),
        # Also there: folders of removed tables that are being deleted, and the position when a table was removed last.
        pa.field("leaving", LEAVING),
        pa.field("removed_to", POSITION),
    ]
)


class LakeOfAnother(ConfigError):
    """The lake contains the tables of another capture."""

    hint = "give each capture a separate lake; a recreated cluster (initdb, pg_upgrade) needs another lake as well"


class TableState(Enum):
    """The state of a table's replica."""

    LIVE = "live"
    COPYING = "copying"  # the first copy has not ended
    BLOCKED = "blocked"  # a change did not identify its row: log only, no replica
    DROPPED = "dropped"  # at the source; log and replica are kept
    STALE = "stale"  # blocked, with an earlier replica that is kept unchanged
    STOPPED = "stopped"  # a property restricts writes to log or replica
    DIVERGED = "diverged"  # another writer changed log or replica, it is damaged, or it was paused for too long
    PAUSED = "paused"  # writes to log or replica failed


@dataclass(frozen=True, slots=True)
class TablePosition:
    """The position of one table."""

    database: Oid
    relation: Oid
    namespace: str
    name: str
    folder: str
    state: TableState
    sequence: Sequence
    position: Position
    generation: int = 0
    log: LakeEntry = UNTOUCHED
    replica: LakeEntry = UNTOUCHED
    breaks: tuple[LogBreak, ...] = ()
    pinned: Relation | None = None  # the version whose columns log and replica keep, with schema_policy = "ignore"
    dropped_us: int = NO_COMMIT_TIME  # the commit time of its DROP; NO_COMMIT_TIME: it exists, or that is not known
    settings: str = ""  # with which the pipeline writes the table (`LakeTableConfig.contents`); "": not recorded

    @property
    def qualified_name(self) -> str:
        """Return the table's name in messages and commands."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def is_at_rest(self) -> bool:
        """Return whether the table was dropped, and log and replica contain everything: its row does not change."""
        faults = (self.log.fault, self.replica.fault)
        is_complete = all(fault is None or fault.kind is FaultKind.EXCLUDED for fault in faults)
        return self.state is TableState.DROPPED and is_complete

    @property
    def log_version(self) -> int:
        """Return the version of the log; -1 if it does not exist."""
        return self.log.recorded.version

    @property
    def replica_version(self) -> int:
        """Return the version of the replica; -1 if it does not exist."""
        return self.replica.recorded.version

    def row(self) -> dict[str, object]:
        """Return the columns of the table's row that belong to the table alone."""
        at = self.position
        return {
            "database": self.database,
            "relation": self.relation,
            "namespace": self.namespace,
            "name": self.name,
            "folder": self.folder,
            "state": self.state.value,
            "sequence": self.sequence,
            "timeline": at.timeline,
            "commit_lsn": at.commit_lsn,
            "ordinal": at.ordinal,
            "generation": self.generation,
            **target_columns("log", self.log),
            **target_columns("replica", self.replica),
            "log_breaks": [break_columns(gap) for gap in self.breaks],
            "pinned": encode_relation(self.pinned).decode() if self.pinned is not None else None,
            "settings": self.settings or None,
            "dropped_us": self.dropped_us or None,
        }


TableId = tuple[Oid, Oid]
"""Database and relation."""


def applied_of(known: TablePosition | None) -> Applied:
    """Return what the positions table records of a table as applied."""
    return Applied(known.sequence, known.position, known.generation) if known else NOTHING


class _TableRows:
    """The rows of all tables, as they were built last: a batch builds those of the tables that it changed."""

    def __init__(self, owner: Mapping[str, str]) -> None:
        self._owner = owner
        self._outbox = ""
        self._tables: list[TablePosition] = []  # of the rows, in their order
        self._rows = SCHEMA.empty_table()

    def of(self, outbox: str, tables: Mapping[TableId, TablePosition]) -> pa.Table:
        """Return the rows of `tables`; those of the same objects are not built again."""
        known = self._tables if outbox == self._outbox else []
        stays = [at for at, one in enumerate(known) if tables.get((one.database, one.relation)) is one]
        kept = [known[at] for at in stays]
        names = {(one.database, one.relation) for one in kept}
        changed = [one for of, one in tables.items() if of not in names]
        built = _as_rows([{**one.row(), **self._owner, "outbox": outbox} for one in changed])
        self._rows = pa.concat_tables([self._rows.take(pa.array(stays, pa.int64())), built]).combine_chunks()
        self._tables, self._outbox = [*kept, *changed], outbox
        return self._rows


def _as_rows(rows: SequenceOf[Mapping[str, object]]) -> pa.Table:
    """Return rows of the positions table."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


class Positions:
    """The positions table at its last write; raises `LakeOfAnother` if the lake belongs to another than `identity`."""

    def __init__(self, root: str, identity: Identity) -> None:
        self._root = root
        self._uri, self._app = f"{root}/{FOLDER}", f"tidemark:{identity.capture}:positions"
        self._table = writable_table(self._uri, self._app, checkpoint_every=CHECKPOINT_BEHIND)
        self._owner = {"capture": identity.capture, "system_identifier": str(identity.system_identifier)}
        self._table_rows = _TableRows(self._owner)
        self._files: PositionFiles | None = None  # None: not known, so that the next write replaces all
        self.tables: dict[TableId, TablePosition] = {}  # that are not settled
        self.settled: dict[TableId, TablePosition] = {}
        self._folders: dict[str, TableId] = {}  # of the settled tables
        self._at_rest: set[TableId] = set()  # tables that become settled once there are some
        self._recalled: set[TableId] = set()  # since the last write
        self.outbox = ""
        self.foreign_change = ""  # to the positions table, since the last commit of Tidemark
        self.newest_commit_us = NO_COMMIT_TIME  # of all transactions in the lake
        self.events_after: Position | None = None  # `_events` has all later events; None: it is not written
        self.leaving: dict[str, LeavingFolder] = {}  # by folder: `_positions` has no row of its table any longer
        self._named: frozenset[str] = frozenset()  # the leaving folders that `_positions` names
        self.removed_to: Position | None = None  # that of the lake when a table was removed last; None: none was
        for row in self._rows():
            if row["database"] != INVALID_OID:
                table = _parse(row)
                self.tables[table.database, table.relation] = table
                continue
            self.outbox = str(row["outbox"])
            self.newest_commit_us = _time_of(row, "commit_time_us")
            self.events_after = position_in(row, "events_after")
            self.leaving = {one.folder: one for one in parse_leaving(row.get("leaving"))}
            self.removed_to = position_in(row, "removed_to")
        self._named = frozenset(self.leaving)
        self.written_version = self._table.version  # at the last write; other threads read it
        self._at_rest.update(of for of, table in self.tables.items() if table.is_at_rest)
        self._files = self._found_files()
        for file in self._files.settled if self._files is not None else ():
            self._settle(file.tables)

    @property
    def recorded(self) -> dict[TableId, TablePosition]:
        """Return all tables, also the settled ones."""
        return {**self.settled, **self.tables}

    def recall(self, tables: Iterable[TableId]) -> None:
        """Let batches look at those of `tables` again that are settled: they have changes, or were maintained."""
        found = {of: self.settled.pop(of) for of in tables if of in self.settled}
        for known in found.values():
            del self._folders[known.folder]
        if found:
            self.tables = {**self.tables, **found}
            self._recalled.update(found)
            self._at_rest.update(found)

    def at_rest(self) -> list[TablePosition]:
        """Return the dropped tables whose rows do not change any longer."""
        return [*self.settled.values(), *(self.tables[of] for of in self._at_rest if self.tables[of].is_at_rest)]

    def begin_removal(self, table: TablePosition, leaving: LeavingFolder) -> bool:
        """Replace the row of a table that is at rest by its folder, with the next write; return False if it changed."""
        of = table.database, table.relation
        self.recall([of])
        if self.tables.get(of) is not table or not table.is_at_rest:
            return False
        self.tables = {key: known for key, known in self.tables.items() if key != of}
        self._at_rest.discard(of)
        self.leaving[leaving.folder] = leaving
        self.removed_to = self.applied.position
        return True

    def is_removed(self, of: TableId, lsn: Lsn) -> bool:
        """Return whether a table that had changes up to a commit LSN was removed."""
        is_known = of in self.tables or of in self.settled
        return not is_known and self.removed_to is not None and lsn <= self.removed_to.commit_lsn

    @property
    def deletable(self) -> list[LeavingFolder]:
        """Return the leaving folders that `_positions` names already."""
        return [one for folder, one in self.leaving.items() if folder in self._named]

    def end_removal(self, folder: str) -> None:
        """Name a folder no longer: nothing is left of it."""
        self.leaving.pop(folder, None)

    def settled_in(self, folder: str) -> TableId | None:
        """Return the settled table of a folder."""
        return self._folders.get(folder)

    def _settle(self, tables: Iterable[TableId]) -> None:
        for of in tables:
            known = self.settled[of] = self.tables.pop(of)
            self._folders[known.folder] = of
            self._at_rest.discard(of)

    @property
    def applied(self) -> Applied:
        """Return the applied position of the whole lake."""
        return self._table.applied

    @property
    def version(self) -> int:
        """Return the version of the positions table."""
        return self._table.version

    def check_present(self) -> None:
        """Raise `LakeFailed` if the whole lake was removed or restored, so that its tables do not count as diverged."""
        if self._table.exists and not has_commit(self._uri, self._table.version):
            store_of(self._uri).check()  # a missing bucket has no commits either
            reason = "the lake is not mounted, or was removed, renamed or restored from a copy as a whole"
            raise LakeFailed(f"version {self._table.version} of {self._uri} is missing: {reason}")

    def _renew(self) -> None:
        """Open the table again if the credentials of its store were renewed."""
        if self._table.access != store_of(self._uri).access():
            self._reopen()

    def write(self, outbox: str, touched: Iterable[TablePosition], applied: Applied) -> Collection[TablePosition]:
        """Record the positions of the `touched` tables, and `applied` as the position of the whole lake.

        Return the tables that become settled.
        """
        self._renew()
        changed = {(table.database, table.relation): table for table in touched}
        for reopened in range(REOPENED_MAX + 1):
            try:
                self._make()
                return self._overwrite(outbox, changed, applied)
            except (TableMoved, TableDiverged):
                if reopened == REOPENED_MAX:
                    raise
                self._reopen()
        raise AssertionError  # the last attempt raises

    def _overwrite(
        self, outbox: str, changed: Mapping[TableId, TablePosition], applied: Applied
    ) -> Collection[TablePosition]:
        files = self._files if self._files is not None and self._files.version == self._table.version else None
        if files is None:  # NB: another writer changed the table, or may have: writing all rows again undoes it
            self.recall(list(self.settled))
        tables = {**self.tables, **changed}
        at_rest = self._at_rest.difference(changed).union(of for of, table in changed.items() if table.is_at_rest)
        settling = at_rest if files is not None and len(at_rest) >= SETTLED_AT_ONCE else set()
        stays = {of: table for of, table in tables.items() if of not in settling} if settling else tables
        rows = pa.concat_tables([self._row_of_lake(outbox, applied), self._table_rows.of(outbox, stays)])
        if files is None:
            self._table.overwrite(rows.combine_chunks(), applied)
            self._files = PositionFiles(self._table.version, paths_and_sizes(self._table))
        else:
            known = {**self.settled, **tables} if settling or self._recalled else {}

            def rows_of(some: Iterable[TableId]) -> pa.Table:
                return _as_rows([{**known[of].row(), **self._owner, "outbox": outbox} for of in some])

            self._files = files.write(
                self._table, rows.combine_chunks(), rows_of, applied, added=settling, left=self._recalled
            )
        self.tables, self.outbox, self._at_rest, self._recalled = tables, outbox, at_rest, set()
        self._named, self.written_version = frozenset(self.leaving), self._table.version
        settled = list(settling)
        self._settle(settled)
        return [self.settled[of] for of in settled]

    def _row_of_lake(self, outbox: str, applied: Applied) -> pa.Table:
        lake = TablePosition(INVALID_OID, INVALID_OID, "", "", "", TableState.LIVE, applied.sequence, applied.position)
        row = {**lake.row(), **self._owner, "outbox": outbox, "commit_time_us": self.newest_commit_us or None}
        row["leaving"] = leaving_column(self.leaving.values()) or None
        row["events_after"] = self.events_after and position_columns(self.events_after)
        row["removed_to"] = self.removed_to and position_columns(self.removed_to)
        return _as_rows([row])

    def _rows(self) -> list[dict[str, object]]:
        """Return the rows of this pipeline's last write, without later changes by other writers."""
        if not self._table.exists:
            return []
        with self._table.reading():
            latest: list[dict[str, object]] = self._table.scan().read_all().to_pylist()
        self._check_owner(latest)
        version = self._table.version
        while version > 0:
            commit = read_commit(self._uri, self._app, version, unmarked=True)
            if commit is None or not commit.foreign:
                break
            self.foreign_change = commit.changes or self.foreign_change
            version -= 1
        if not self.foreign_change:
            return latest
        table = LakeTable(self._uri, self._app, version=version)
        with table.reading():
            applied: list[dict[str, object]] = table.scan().read_all().to_pylist()
        return applied

    def _found_files(self) -> PositionFiles | None:
        """Return the files of the table; None if the next write has to replace all of them."""
        if not self._table.exists or self.foreign_change or not self._table.has_columns_of(SCHEMA.empty_table()):
            return None
        with self._table.reading():
            return found_files(self._table, self._at_rest)

    def _check_owner(self, rows: Iterable[Mapping[str, object]]) -> None:
        owner = self._owner
        for row in rows:
            if any(row[name] != value for name, value in owner.items()):
                other = f"capture {row['capture']!r} of the cluster {row['system_identifier']}"
                raise LakeOfAnother(
                    f"{self._root} contains the tables of {other}, not of {owner['capture']!r} of "
                    f"{owner['system_identifier']}"
                )

    def lake_id(self) -> str:
        """Return the id of this lake; a lake that replaces it in the same folder has another id."""
        self._make()
        return str(self._table.delta.metadata().id)

    def _make(self) -> None:
        """Create the table with the row that names the lake's owner, so that another capture is rejected."""
        if self._table.exists:
            return
        try:
            self._table.create_with(self._row_of_lake(self.outbox, NOTHING), NOTHING)
        except TableMoved:  # our own commit, whose answer was lost
            self._reopen()
            if not self._table.exists:
                raise
        except (TableFenced, TableDiverged):
            self._reopen()
            raise

    def _reopen(self) -> None:
        self._table = writable_table(self._uri, self._app, checkpoint_every=CHECKPOINT_BEHIND)
        if self._table.exists:
            with self._table.reading():
                rows = self._table.scan().read_all().to_pylist()
            self._check_owner(rows)


def _time_of(row: Mapping[str, object], name: str) -> int:
    """Return a time of a row; `NO_COMMIT_TIME` if it has none, or an earlier version of Tidemark wrote it."""
    time_us = row.get(name)
    return time_us if isinstance(time_us, int) else NO_COMMIT_TIME


def _state_of(row: Mapping[str, object]) -> TableState:
    """Return a table's state; an earlier version of Tidemark created replicas of tables without a key."""
    state = TableState(row["state"])
    return TableState.STALE if state is TableState.BLOCKED and row["replica_version"] != NO_VERSION else state


def _parse(row: Mapping[str, object]) -> TablePosition:
    def number(name: str) -> int:
        value = row[name]
        assert isinstance(value, int), name
        return value

    return TablePosition(
        Oid(number("database")),
        Oid(number("relation")),
        str(row["namespace"]),
        str(row["name"]),
        str(row["folder"]),
        _state_of(row),
        Sequence(number("sequence")),
        Position(TimelineId(number("timeline")), Lsn(number("commit_lsn")), number("ordinal")),
        number("generation"),
        parse_target("log", row),
        parse_target("replica", row),
        parse_breaks(row.get("log_breaks")),
        decode_relation(pinned.encode()) if isinstance(pinned := row.get("pinned"), str) else None,
        _time_of(row, "dropped_us"),
        str(row.get("settings") or ""),
    )
