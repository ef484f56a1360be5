"""One Iceberg table, written with the position that it contains in each snapshot.

pyiceberg repeats a commit that lost against another one, with the same rows: a change would be there twice. Its retries
are therefore off (`_NO_RETRY`), and a lost commit is examined here: another pipeline's ends this one (`TableFenced`),
maintenance lets the batch be applied again, and changed rows raise `IcebergTableChanged`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table, Transaction

from tidemark.io.host.failpoints import passed
from tidemark.model.errors import InternalError
from tidemark.model.position import Position
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.failures import first_reason
from tidemark.pipeline.iceberg.recorded_columns import COLUMNS, check_columns, columns_record
from tidemark.pipeline.iceberg.snapshot_summary import (
    APP,
    IcebergTableChanged,
    is_own,
    lineage,
    read_applied,
    summary_of,
)
from tidemark.pipeline.iceberg.stored_types import conformed, is_promotion, stored_schema, stored_type
from tidemark.pipeline.iceberg.translated import translated
from tidemark.pipeline.lake.layout import COMMENT
from tidemark.pipeline.lake.tables.table_errors import TableFenced, TableMoved
from tidemark.pipeline.sinks.log.log_table import CopiedRows
from tidemark.pipeline.sinks.rows.logshape import OLD, aside_name
from tidemark.pipeline.sinks.steps import PackedRun

_NO_RETRY = {"commit.retry.num-retries": "0"}
PROPERTIES = {
    **_NO_RETRY,
    "commit.manifest-merge.enabled": "true",  # otherwise a scan reads one manifest for each append
    "write.metadata.previous-versions-max": "20",  # `expiry` deletes them
    # Statistics of each column are copied often, too: 1,600 columns took seconds for each commit.
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in ("_seq", "_tli", "_commit_lsn", "_commit_time")},
}
_COMMENT = "comment"  # Spark's property of a table's comment


@dataclass(frozen=True, slots=True)
class IcebergLogFormat:
    """A log that is an Iceberg table; it is checked against the position `recorded` when it is opened."""

    catalog: SqlCatalog
    name: tuple[str, ...]
    location: str
    app: str
    recorded: Position | None
    properties: Mapping[str, str]

    def open(self) -> "IcebergTable":
        """Open the log."""
        return IcebergTable(self)

    def append_packed(self, table: "IcebergTable", run: PackedRun, applied: Applied) -> bool:  # noqa: ARG002 - a port
        """Return False: this process writes the files of an Iceberg table."""
        return False

    def convert_types(self, table: "IcebergTable", wanted: pa.Schema) -> None:
        """Give the columns of a log the types that they have in `wanted`."""
        table.convert_types(wanted)

    def delete_copied(self, table: "IcebergTable", rows: CopiedRows, applied: Applied) -> None:
        """Delete the rows of a copy that did not end, and record `applied`."""
        table.delete_copied(rows, applied)


class IcebergTable:
    """A table at one snapshot, or a table that does not exist yet; each write advances to the snapshot that it made."""

    def __init__(self, log: IcebergLogFormat) -> None:
        """Open the table; check that it contains what was recorded, and that no other writer changed it."""
        self._log = log
        self._table: Table | None = None
        with self._translated():
            try:
                self._table = log.catalog.load_table(log.name)
            except NoSuchTableError:
                if log.recorded is not None:
                    reason = f"the table {'.'.join(log.name)} is not in the catalog"
                    raise IcebergTableChanged(
                        f"{log.location}: {reason}: another writer dropped or renamed it",
                        hint="register the table again, or write to a new lake and copy the tables again",
                    ) from None
            self.applied = NOTHING if self._table is None else read_applied(self._table, log.app, log.recorded)
            if self._table is not None:
                check_columns(self._table)
            if self._table is not None and not _NO_RETRY.items() <= self._table.properties.items():
                with self._table.transaction() as transaction:
                    transaction.set_properties(_NO_RETRY)

    @property
    def exists(self) -> bool:
        """Return whether the table exists."""
        return self._table is not None

    @property
    def table(self) -> Table:
        """Return the table in pyiceberg."""
        if self._table is None:
            raise InternalError(f"{self._log.location} was written to before it was created")
        return self._table

    @property
    def snapshot(self) -> int | None:
        """Return the id of the present snapshot."""
        present = self._table.current_snapshot() if self._table is not None else None
        return None if present is None else present.snapshot_id

    @property
    def schema(self) -> pa.Schema:
        """Return the columns, as Iceberg stores them."""
        return _columns_of(self.table)

    def create(
        self, schema: pa.Schema, applied: Applied, description: str = "", *, partition: Sequence[str] = ()
    ) -> None:
        """Create the table without rows."""
        assert not partition, partition  # refused with the settings
        properties = {
            **PROPERTIES,
            **self._log.properties,
            APP: self._log.app,
            **({_COMMENT: description} if description else {}),
        }
        with self._translated():
            self._log.catalog.create_namespace_if_not_exists(self._log.name[:-1])
            columns = stored_schema(schema, _comments(schema))
            self._table = self._log.catalog.create_table(
                self._log.name, columns, self._log.location, properties=properties
            )
        if applied != NOTHING:
            self.append(schema.empty_table(), applied)

    def append(self, rows: pa.Table, applied: Applied, *, merge_schema: bool = False) -> None:
        """Add `rows`; with `merge_schema` also new columns and new fields of structs."""
        with self._transaction() as transaction:
            if merge_schema and _new_columns(rows.schema, self.schema):
                with transaction.update_schema() as update:
                    update.union_by_name(stored_schema(rows.schema, _comments(rows.schema)))
            self._append(transaction, rows, applied)
        self.applied = applied

    def describe(self, fields: Iterable[pa.Field], description: str | None = None) -> None:
        """Set the description of the table and the comments of its columns; the position remains."""
        stored = {field.name: field.doc or "" for field in self.table.schema().fields}
        wanted = {field.name: _comment(field) for field in fields}
        changed = {name: comment for name, comment in wanted.items() if stored.get(name, comment) != comment}
        is_new = description is not None and description != self.table.properties.get(_COMMENT, "")
        if not changed and not is_new:
            return
        with self._transaction() as transaction:
            if changed:
                with transaction.update_schema() as update:
                    for name, comment in changed.items():
                        update.update_column((name,), doc=comment)
            if is_new:
                transaction.set_properties({_COMMENT: description or ""})

    def convert_types(self, wanted: pa.Schema) -> None:
        """Give columns the types of `wanted`: by a promotion of Iceberg, else older values stay in another column."""
        stored = self.schema
        changed = [
            name
            for name in wanted.names
            if name != OLD and name in stored.names and stored.field(name).type != stored_type(wanted.field(name).type)
        ]
        if not changed:
            return
        with self._transaction() as transaction:
            with transaction.update_schema() as renaming:
                for name in changed:
                    old, new = stored.field(name).type, stored_type(wanted.field(name).type)
                    if not is_promotion(old, new):
                        aside = _free_name(aside_name(name, old, stored, wanted), stored)
                        renaming.rename_column((name,), aside)
                        renaming.rename_column((OLD, name), aside)
            with transaction.update_schema() as adding:
                adding.union_by_name(stored_schema(wanted, _comments(wanted)))
        passed(Failpoint.LOG_RESHAPED)

    def delete_copied(self, rows: CopiedRows, applied: Applied) -> None:
        """Delete the rows of a copy that did not end, and record `applied`."""
        found = f"_op = '{rows.op}' and _seq >= {rows.sequence} and _commit_lsn = {rows.commit_lsn}"
        with self._transaction() as transaction:
            if self.table.scan(found, limit=1).to_arrow().num_rows:
                transaction.delete(found, snapshot_properties=summary_of(self._log.app, applied))
            self._append(transaction, self.schema.empty_table(), applied)
        self.applied = applied

    def _append(self, transaction: Transaction, rows: pa.Table, applied: Applied) -> None:
        columns = _columns_of(transaction)
        summary = summary_of(self._log.app, applied)
        transaction.append(conformed(rows, columns), snapshot_properties=summary)
        transaction.set_properties(summary)

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Make one commit of a block, and record the columns that it leaves."""
        with self._translated(), self.table.transaction() as transaction:
            yield transaction
            record = columns_record(transaction.table_metadata.schema())
            if record != self.table.properties.get(COLUMNS):
                transaction.set_properties({COLUMNS: record})

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the error of Tidemark for an error of pyiceberg, of SQLite or of the disk."""
        try:
            with translated(self._log.location):
                yield
        except CommitFailedException as error:
            with translated(self._log.location):
                self._examine(error)

    def _examine(self, error: CommitFailedException) -> NoReturn:
        """Raise the error for a commit that lost against another one."""
        before, table = self.snapshot, self._log.catalog.load_table(self._log.name)
        reason = first_reason(str(error))
        for snapshot in lineage(table):
            if snapshot.snapshot_id == before:
                break
            if is_own(snapshot, self._log.app):
                raise TableFenced(self._log.location, reason) from error
        read_applied(table, self._log.app, self.applied.position)
        raise TableMoved(self._log.location, reason, self.applied) from error


def _columns_of(table: Table | Transaction) -> pa.Schema:
    schema = table.schema() if isinstance(table, Table) else table.table_metadata.schema()
    columns: pa.Schema = schema.as_arrow()
    # NB: without the numbers of fields, which pyiceberg adds.
    return pa.schema([pa.field(field.name, stored_type(field.type)) for field in columns])


def _comment(field: pa.Field) -> str:
    return str((field.metadata or {}).get(COMMENT, b"").decode())


def _comments(fields: Iterable[pa.Field]) -> dict[str, str]:
    return {field.name: _comment(field) for field in fields}


def _free_name(name: str, stored: pa.Schema) -> str:
    """Return a name that no column has; unlike in Delta's format, older values cannot join those of another column."""
    used = {field.name.lower() for field in stored}
    names = (name, *(f"{name}_{number}" for number in range(2, len(used) + 3)))
    return next(one for one in names if one.lower() not in used)


def _new_columns(rows: pa.Schema, stored: pa.Schema) -> bool:
    """Return whether `rows` have a column, or a column of the old row, that the table lacks."""
    if any(name not in stored.names for name in rows.names):
        return True
    if OLD not in rows.names:
        return False
    known = {field.name for field in stored.field(OLD).type}
    return any(field.name not in known for field in rows.field(OLD).type)
