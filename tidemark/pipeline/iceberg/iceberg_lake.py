"""Writes a batch of outbox values into the change logs of a lake of Iceberg tables, then the positions.

There are no replicas. Each log checks its own position, so a kill at any point is harmless: a repeated change is
skipped where it is already applied. A table that cannot be written stops the pipeline; the outbox keeps its changes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree

from pyiceberg.exceptions import NoSuchTableError

from tidemark.io.host.failpoints import passed
from tidemark.model.change import LogicalMessage, SchemaEvent
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.lineage import NO_VERSION
from tidemark.pipeline.failpoints import Failpoint, MaintenanceFailpoint
from tidemark.pipeline.iceberg.catalog import open_catalog, table_name
from tidemark.pipeline.iceberg.expiry import SnapshotExpiry
from tidemark.pipeline.iceberg.iceberg_table import IcebergLogFormat, IcebergTable
from tidemark.pipeline.iceberg.positions import CatalogPositions, snapshot_of
from tidemark.pipeline.iceberg.recorded_columns import check_columns
from tidemark.pipeline.iceberg.snapshot_summary import APP, IcebergTableChanged, read_applied
from tidemark.pipeline.iceberg.translated import translated
from tidemark.pipeline.lake.folders import LOG, MESSAGES, LakeFolders, messages_app, table_app
from tidemark.pipeline.lake.lake_kind import has_catalog
from tidemark.pipeline.lake.layout import Shapes
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, TableMoved
from tidemark.pipeline.lake.tables.table_properties import CAPTURE, SOURCE
from tidemark.pipeline.sinks.lake_batch import (
    LakeBatch,
    first_relation,
    latest_relation,
    split_items,
    without_notices,
    without_removed,
)
from tidemark.pipeline.sinks.log.changelog import ChangeLog
from tidemark.pipeline.sinks.log.messages import append_messages
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.sinks.targets.table_states import captured_breaks, dropped_us
from tidemark.wire.state.values import Identity

OWN_FOLDERS = frozenset({"data", "metadata"})  # of a table
REOPENED_MAX = 5  # in a row, for maintenance of another program that committed meanwhile


class IcebergLake:
    """The change logs of one capture."""

    def __init__(
        self,
        root: str,
        identity: Identity,
        shapes: Shapes,
        databases: Mapping[Oid, str],
        expiry: SnapshotExpiry,
        *,
        lake_id: str | None = None,
    ) -> None:
        """`databases`: names; a database without a name is called by its OID. Only the lake `lake_id` is opened."""
        self._root = root
        self._identity = identity
        self._shapes = shapes
        self._databases = databases
        self._expiry = expiry
        if lake_id is not None:
            self._check_present()
        self._catalog = open_catalog(root)
        self.positions = CatalogPositions(root, self._catalog, identity)
        if lake_id not in (None, self.positions.lake_id()):
            raise LakeFailed(f"{root} is not the lake with which this pipeline started: another one is mounted there")
        tables, leaving = self.positions.tables, self.positions.leaving
        self._folders = LakeFolders(
            root, identity.capture, databases, tables, leaving=leaving, is_of_another=self._is_of_another
        )

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def apply(self, batch: LakeBatch) -> None:
        """Append `batch` to every log, then record it in the catalog."""
        passed(Failpoint.BATCH_RECEIVED)
        self._check_present()
        whole = split_items(batch.items)
        tables = self.positions.tables
        split = without_notices(without_removed(whole, tables, self.positions.removed_to), tables)
        written: list[tuple[TablePosition, IcebergTable]] = []
        reported: list[TablePosition] = []  # of which only the capture ends or begins
        for of, items in split.tables.items():
            breaks = captured_breaks(self.positions.tables.get(of), whole.tables[of])
            if items:
                self._folders.choose(of, first_relation(items))
                table_position, table = self._write_table(of, items)
                written.append((replace(table_position, breaks=breaks), table))
            else:
                reported.append(replace(self.positions.tables[of], breaks=breaks))
        for database, messages in split.messages.items():
            of = (database, INVALID_OID)
            self._folders.choose(of, None)
            log = self._log(of, messages_app(self._identity.capture, database), MESSAGES)
            table = _reopening(partial(_append_messages, log, messages))
            written.append((self._reached(of, "", MESSAGES, TableState.LIVE, table.applied), table))
        passed(Failpoint.TABLES_DONE)
        self._check_present()
        applied = replace(self.positions.applied, sequence=batch.end, position=batch.position)
        if applied.position < self.positions.applied.position:
            applied = replace(applied, position=self.positions.applied.position)
        touched = [(reached, table.snapshot) for reached, table in written]
        touched += [(known, snapshot_of(known)) for known in reported]
        self.positions.write(batch.outbox, touched, applied)
        passed(Failpoint.POSITIONS_WRITTEN)
        for _, table in written:  # NB: only now, because the positions name a snapshot that must not expire
            if table.exists:
                self._expiry.expire(self._catalog, table.table)

    def remove(self, table: TablePosition) -> None:
        """Remove a dropped table; raise `IcebergTableChanged` if another program made or changed something in it."""
        app, path = table_app(self._identity.capture, (table.database, table.relation), LOG), self._path(table.folder)
        with translated(str(path)):
            try:
                log = self._catalog.load_table(table_name(table.folder))
            except NoSuchTableError:
                if path.exists():  # NB: a table keeps its files when it is renamed
                    raise IcebergTableChanged(
                        f"{path} has files, but the catalog has no such table: another program renamed or dropped it"
                    ) from None
            else:
                read_applied(log, app, table.position)
                check_columns(log)
        others = [one.name for one in path.iterdir() if one.name not in OWN_FOLDERS] if path.is_dir() else []
        if others:
            raise IcebergTableChanged(f"{path} contains {others[0]}, which is not of its table")
        self._check_present()
        self.positions.begin_removal(table, app)
        self._folders.release((table.database, table.relation))
        passed(MaintenanceFailpoint.DROPPED_CHECKED)
        self.complete_removals()

    def complete_removals(self) -> None:
        """Delete the folders of removed tables from catalog and disk, also those of an interrupted removal."""
        for folder, app in list(self.positions.leaving.items()):
            if not self._has_table_of_another(folder, app):
                with translated(folder), suppress(NoSuchTableError):
                    self._catalog.drop_table(table_name(folder))
                passed(MaintenanceFailpoint.DROPPED_FILES_DELETED)
                with suppress(FileNotFoundError):
                    rmtree(self._path(folder))
                passed(MaintenanceFailpoint.DROPPED_DELETED)
            self.positions.end_removal(folder)
            self._folders.free(folder)

    def _path(self, folder: str) -> Path:
        return Path(self._root) / folder

    def _write_table(self, of: TableId, items: Sequence[Delivered]) -> tuple[TablePosition, IcebergTable]:
        relation = latest_relation(items)
        log = self._log(of, table_app(self._identity.capture, of, LOG), relation.qualified_name)
        try:
            table = _reopening(lambda: ChangeLog(self._shapes, log).apply(items))
        except IcebergTableChanged as error:
            error.of = of
            raise
        last = items[-1].item
        state = TableState.LIVE
        if table.applied.copy_sequence:
            state = TableState.COPYING
        elif isinstance(last, SchemaEvent) and last.after is None:
            state = TableState.DROPPED
        reached = self._reached(of, relation.namespace, relation.name, state, table.applied)
        return replace(reached, dropped_us=dropped_us(items, state, self.positions.tables.get(of))), table

    def _log(self, of: TableId, app: str, name: str) -> IcebergLogFormat:
        database = self._databases.get(of[0], str(of[0]))
        source = f"{self._identity.system_identifier}/{database}/{name}"
        folder, known = self._folders[of], self.positions.tables.get(of)
        return IcebergLogFormat(
            self._catalog,
            table_name(folder),
            f"{self._root}/{folder}",
            app,
            known.position if known is not None and known.log_version != NO_VERSION else None,
            {CAPTURE: self._identity.capture, SOURCE: source},
        )

    def _reached(self, of: TableId, namespace: str, name: str, state: TableState, applied: Applied) -> TablePosition:
        return TablePosition(
            of[0],
            of[1],
            namespace,
            name,
            self._folders[of],
            state,
            applied.sequence,
            applied.position,
            applied.generation,
        )

    def _is_of_another(self, of: TableId, folder: str) -> bool:
        """Return whether the table in `folder` is of another relation; positions may lack it after a crash."""
        return self._has_table_of_another(folder, table_app(self._identity.capture, of, LOG))

    def _has_table_of_another(self, folder: str, app: str) -> bool:
        with translated(folder):
            try:
                table = self._catalog.load_table(table_name(folder))
            except NoSuchTableError:
                return False
        return table.properties.get(APP) != app

    def _check_present(self) -> None:
        """Raise `LakeFailed` if the whole lake was removed."""
        if not has_catalog(self._root):
            raise LakeFailed(f"the catalog of {Path(self._root)} is missing: the lake is not mounted, or was removed")


def _reopening(write: Callable[[], IcebergTable]) -> IcebergTable:
    """Write to a table; open it again if maintenance of another program committed meanwhile."""
    for _ in range(REOPENED_MAX):
        with suppress(TableMoved):
            return write()
    return write()


def _append_messages(log: IcebergLogFormat, messages: Sequence[tuple[OutboxSequence, LogicalMessage]]) -> IcebergTable:
    return append_messages(log.open(), messages)
