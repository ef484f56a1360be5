"""The positions table: the applied position of every table of the lake, and the start of a new checkpoint.

It is written last in every batch, so it never claims more than the tables contain. Each table has one row, with its
present name, its folder and the matching versions of log and replica. Rows of dropped tables are settled: they are in
files that a batch does not write again (`position_files`), and a batch does not read them either. The messages of
each database have one row, with relation 0. The row of database 0 covers the whole lake: everything up to it is in the
lake, also for tables without changes. The commit contains this position as application transactions.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_OID, Lsn
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_BEHIND
from tidemark.pipeline.delta_log.commits import has_commit, read_commit
from tidemark.pipeline.delta_log.lineage import TableDiverged
from tidemark.pipeline.lake.faults import position_columns, position_in
from tidemark.pipeline.lake.positions.leaving import LeavingFolder, leaving_column, parse_leaving
from tidemark.pipeline.lake.positions.position_files import SETTLED_AT_ONCE, PositionFiles, found_files, paths_and_sizes
from tidemark.pipeline.lake.positions.position_rows import SCHEMA, TableRows, as_rows, parse_table, table_row, time_of
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.lake.tables.lake_table import REOPENED_MAX, LakeTable
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, TableFenced, TableMoved
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.storage.stores import store_of
from tidemark.wire.state.values import Identity

if TYPE_CHECKING:
    from tidemark.model.position import Position

FOLDER = "_positions"


class LakeOfAnother(ConfigError):
    """The lake contains the tables of another capture."""

    hint = "give each capture a separate lake; a recreated cluster (initdb, pg_upgrade) needs another lake as well"


class Positions:
    """The positions table at its last write; raises `LakeOfAnother` if the lake belongs to another than `identity`."""

    def __init__(self, root: str, identity: Identity) -> None:
        self._root = root
        self._uri, self._app = f"{root}/{FOLDER}", f"tidemark:{identity.capture}:positions"
        self._table = writable_table(self._uri, self._app, checkpoint_every=CHECKPOINT_BEHIND)
        self._owner = {"capture": identity.capture, "system_identifier": str(identity.system_identifier)}
        self._table_rows = TableRows(self._owner)
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
        self.begins_late = ""  # why the lake lacks the first values of its outbox; "": it has them
        for row in self._rows():
            if row["database"] != INVALID_OID:
                table = parse_table(row)
                self.tables[table.database, table.relation] = table
                continue
            self.outbox = str(row["outbox"])
            self.newest_commit_us = time_of(row, "commit_time_us")
            self.events_after = position_in(row, "events_after")
            self.leaving = {one.folder: one for one in parse_leaving(row.get("leaving"))}
            self.removed_to = position_in(row, "removed_to")
            self.begins_late = str(row.get("begins_late") or "")
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
        """Let batches write the rows of the settled ones of `tables` again: they have changes, or were maintained."""
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
                return as_rows([{**table_row(known[of]), **self._owner, "outbox": outbox} for of in some])

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
        row = {**table_row(lake), **self._owner, "outbox": outbox, "commit_time_us": self.newest_commit_us or None}
        row["leaving"] = leaving_column(self.leaving.values()) or None
        row["events_after"] = self.events_after and position_columns(self.events_after)
        row["removed_to"] = self.removed_to and position_columns(self.removed_to)
        row["begins_late"] = self.begins_late or None
        return as_rows([row])

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
