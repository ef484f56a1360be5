"""One Delta table, written with the position that it contains in each commit.

Delta checks nothing for Tidemark: it accepts a lower version, and a repeated append doubles rows. The applied position
is therefore read from the snapshot on which the next commit is made, and a commit that conflicts with another one
fails. The other commit decides the result. If another pipeline made it, this pipeline ends (`TableFenced`). If it is
maintenance, the table is opened and applied to again (`TableMoved`). If it changes data, the table has diverged
(`lineage`). NB: a merge or delete that changes no row makes no commit; an empty append then records the version.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Field, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError, DeltaProtocolError

from tidemark.io.host.failpoints import passed
from tidemark.model.errors import InternalError
from tidemark.pipeline.delta_log.applied import (
    NOTHING,
    Applied,
    commit_properties,
    metadata_of,
    read_applied,
    transactions_of,
)
from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_EVERY, FileChange, commit_path, write_commit
from tidemark.pipeline.delta_log.commits import TOKEN, last_transactions, log_stamp, new_token
from tidemark.pipeline.delta_log.durability import sync_checkpoint, sync_commit, sync_data_files, sync_log
from tidemark.pipeline.delta_log.lineage import (
    NEVER_WRITTEN,
    Recorded,
    check_lineage,
)
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.files.file_format import FILE_BYTES, arrow_encodings, properties_for
from tidemark.pipeline.lake.files.file_list import changed, listed
from tidemark.pipeline.lake.files.file_writing import fitted, removal, write_file
from tidemark.pipeline.lake.files.partitions import check_rows, checked_rows, divided
from tidemark.pipeline.lake.tables.delta_sql import quoted
from tidemark.pipeline.lake.tables.table_errors import (
    table_failure,
)
from tidemark.pipeline.lake.tables.table_opening import opened_table
from tidemark.pipeline.lake.tables.table_properties import KEEP_HOURS, NO_PROPERTIES, table_properties
from tidemark.pipeline.storage.lake_store import Stamp
from tidemark.pipeline.storage.stores import open_delta, storage_options, store_of
from tidemark.pipeline.storage.turns import waiting

REOPENED_MAX = 5  # reopenings in a row for foreign maintenance, without a commit of Tidemark in between
_DELETION_VECTORS = "deletionVectors"


OpenTable = Callable[[str, str, Recorded | None], "LakeTable"]
"""Opens the table at a URI for an application; with a record checks that the table matches it."""


class LakeTable:
    """A table at one snapshot, or a table that does not exist yet; each write advances to the snapshot that it made."""

    def __init__(
        self,
        uri: str,
        app: str,
        recorded: Recorded | None = None,
        *,
        version: int | None = None,
        properties: Mapping[str, str] = NO_PROPERTIES,
        checkpoint_every: int | None = None,
    ) -> None:
        """Open the table, or an older `version`; with `recorded` check that the table matches that record.

        `properties` describe the table's source; they are set when it is created, and by `table_upkeep`. Commits
        written here are followed by a checkpoint at every `checkpoint_every` versions, by default `CHECKPOINT_EVERY`.
        """
        self.uri = uri
        self.app = app
        self.properties, self._checkpoint_every = properties, checkpoint_every
        self._delta: DeltaTable | None = None
        self._ahead = 0  # own commits that `_delta` lacks
        self._stamped: tuple[int, Stamp] = (-1, ())  # the version of the last commit written here, and its stamp
        self._schema: pa.Schema | None = None
        self._id: str | None = None
        self.fits: object = None  # what its present columns were found to fit
        self._partition: tuple[str, ...] | None = None
        self._files: pa.Table | None = None  # as `files` returned them last, and their columns
        self._file_fields: Sequence[pa.Field] = ()
        self._is_marked = recorded is None or bool(recorded.id)
        self.access = store_of(uri).access()  # the credentials with which it is opened
        self._delta = opened_table(uri, version, is_recorded=recorded is not None)
        self._opened = self._begun = max(self.version, 0)
        self.applied, self._token = NOTHING, None
        if self._delta is not None:
            with self._translated():
                version_of = last_transactions(uri, app, self.version) or self._delta.transaction_version
                self.applied, self._token = read_applied(version_of, app), version_of(f"{app}:{TOKEN}")
        if recorded is not None:
            check_lineage(uri, app, self._delta, self._token, recorded)
        # Versions up to this one are durable: recorded ones are, and every write syncs those before its own.
        self._durable = recorded.version if recorded is not None else self.version - (version is None)
        with self._translated():
            self.make_durable()

    @property
    def exists(self) -> bool:
        """Return whether the table exists."""
        return self._delta is not None

    @property
    def version(self) -> int:
        """Return the version of the snapshot; -1 if the table does not exist."""
        return self._delta.version() + self._ahead if self._delta is not None else -1

    @property
    def stamp(self) -> Stamp:
        """Return a value that differs after the last commit was replaced (`log_stamp`); () if it is missing."""
        version, stamp = self._stamped
        return stamp if stamp and version == self.version else log_stamp(self.uri, self.version)

    @property
    def recorded(self) -> Recorded:
        """Return the record that identifies the snapshot."""
        if self._delta is None:
            return NEVER_WRITTEN
        if self._id is None:
            self._id = str(self._delta.metadata().id)
        return Recorded(self.version, self._id, self._token)

    def begin_batch(self, properties: Mapping[str, str]) -> None:
        """Begin another batch on a table that stayed open; its last commit is Tidemark's."""
        self._begun, self._is_marked, self.properties = self.version, True, properties

    def has_passed(self, every: int) -> bool:
        """Return whether a version written in this batch is a multiple of `every`."""
        return self.version // every > self._begun // every

    @property
    def has_new_checkpoint(self) -> bool:
        """Return whether a checkpoint was due since the table was opened."""
        return self.version // CHECKPOINT_EVERY > self._opened // CHECKPOINT_EVERY

    @property
    def delta(self) -> DeltaTable:
        """Return the snapshot in delta-rs."""
        if self._delta is None:
            raise InternalError(f"{self.uri} was written to before it was created")
        if self._ahead:
            version = self.version
            with self._translated():
                self._delta.update_incremental()
                if self._delta.version() != version:
                    # NB: another writer has committed since; the next commit must not overlook that.
                    self._delta.load_as_version(version)
            self._ahead = 0
        return self._delta

    @property
    def partition(self) -> tuple[str, ...]:
        """Return the partition columns."""
        if self._partition is None:
            self._partition = tuple(self._delta.metadata().partition_columns) if self._delta is not None else ()
        return self._partition

    @property
    def schema(self) -> pa.Schema:
        """Return the columns, each with the metadata with which it was created."""
        if self._schema is None:
            self._schema = pa.schema(self.delta.schema().to_arrow())
        return self._schema

    def files(self, names: Sequence[str]) -> pa.Table:
        """Return the files of the snapshot with the statistics of some columns (`file_list`)."""
        fields = [self.schema.field(name) for name in names]
        if self._files is None or self._file_fields != fields:
            self._files, self._file_fields = listed(pa.table(self.delta.get_add_actions()), fields), fields
        return self._files

    def scan(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.RecordBatchReader:
        """Read the rows of the snapshot batch by batch; with `where`, those that match it."""
        wanted = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        try:
            return self.delta.to_pyarrow_dataset().scanner(columns=wanted.names, filter=where).to_reader()
        except DeltaProtocolError:
            # NB: PyArrow rejects a feature that remains after its property is removed; DataFusion reads it, as string
            # views.
            names = ", ".join(map(quoted, wanted.names))
            found = QueryBuilder().register("t", self.delta).execute(f"SELECT {names} FROM t")  # noqa: S608 - quoted
            batches = (batch.cast(wanted) for batch in pa.RecordBatchReader.from_stream(found))
            rows = pa.RecordBatchReader.from_batches(wanted, batches)
            return rows if where is None else ds.Scanner.from_batches(rows, filter=where).to_reader()

    def paths(self, where: pc.Expression) -> frozenset[str] | None:
        """Return the decoded paths of the files that can have rows which match `where`; None: it is unknown."""
        try:
            found = self.delta.to_pyarrow_dataset().get_fragments(filter=where)
        except DeltaProtocolError:
            return None
        return frozenset(file.path for file in found)

    def create_with(self, rows: pa.Table, applied: Applied) -> None:
        """Create the table with `rows`, in one commit."""
        with self.committing(applied) as properties:
            write_deltalake(
                self.uri,
                rows,
                mode="error",
                storage_options=storage_options(self.uri),
                configuration=dict(table_properties(KEEP_HOURS)),
                commit_properties=properties,
            )
            self._delta = open_delta(self.uri)

    def create(
        self, schema: pa.Schema, applied: Applied, description: str = "", *, partition: Sequence[str] = ()
    ) -> None:
        """Create the table without rows, with the partition columns `partition`."""
        with self.committing(applied) as properties:
            self._delta = DeltaTable.create(
                self.uri,
                schema,
                description=description or None,
                partition_by=list(partition) or None,
                configuration={**table_properties(KEEP_HOURS), **self.properties},
                storage_options=storage_options(self.uri),
                raise_if_key_not_exists=False,
                commit_properties=properties,
            )

    def describe(self, fields: Iterable[pa.Field], description: str | None = None) -> None:
        """Set the description, and the metadata of those columns of `fields` that the table has, if they differ.

        The position remains. NB: delta-rs changes one column in each commit, and removes no key: its value becomes "".
        """
        if description is not None and description != (self.delta.metadata().description or ""):
            with self.committing(self.applied) as properties:
                self.delta.alter.set_table_description(description, commit_properties=properties)
        stored = {field.name: field.metadata or {} for field in self.schema}
        for described in fields:
            name = described.name
            wanted = {**dict.fromkeys(stored.get(name, {}), b""), **(described.metadata or {})}
            if name in stored and stored[name] != wanted:
                texts = {key.decode(): value.decode() for key, value in wanted.items()}
                with self.committing(self.applied) as properties:
                    self.delta.alter.set_column_metadata(name, texts, commit_properties=properties)

    def append(self, rows: pa.Table, applied: Applied, *, merge_schema: bool = False) -> None:
        """Add `rows`; with `merge_schema` also new columns and new fields of structs."""
        plain = fitted(rows, self.schema)
        if plain is not None and rows.nbytes <= FILE_BYTES:
            token = new_token()
            with self._translated(token):
                encodings = arrow_encodings(plain.drop_columns(list(self.partition)))
                parts = divided(plain, self.partition) if plain.num_rows else ()
                added = [write_file(self.uri, part, encodings, partition=values) for values, part in parts]
                self._commit_files(FileChange(added), applied, token)
            return
        rows = rows if plain is None else plain
        for name in self.partition:
            if name not in rows.schema.names:  # delta-rs refuses to fill them
                field = self.schema.field(name)
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        check_rows(rows, self.partition)
        stored = {field.name: field.metadata for field in self.schema}
        # NB: delta-rs refuses rows with other metadata of a column than the table's.
        fields = [field.with_metadata(stored.get(field.name, field.metadata)) for field in rows.schema]
        with self.committing(applied) as properties:
            write_deltalake(
                self.delta,
                rows.cast(pa.schema(fields)),
                mode="append",
                schema_mode="merge" if merge_schema else None,
                target_file_size=FILE_BYTES,
                writer_properties=properties_for(rows),
                commit_properties=properties,
            )

    def overwrite(
        self, rows: pa.RecordBatchReader | pa.Table, applied: Applied, *, partition: Sequence[str] | None = None
    ) -> None:
        """Replace all rows and columns, and the partition columns by `partition`; None: they stay."""
        columns = self.partition if partition is None else tuple(partition)
        if isinstance(rows, pa.Table) and not columns and self.has_columns_of(rows):
            token = new_token()
            with self._translated(token):
                files = self.files(self.schema.names[:1])
                paths, sizes = (files.column(name).to_pylist() for name in ("path", "size_bytes"))
                removed = [removal(*file, data_change=True) for file in zip(paths, sizes, strict=True)]
                added = [write_file(self.uri, rows, arrow_encodings(rows))] if rows.num_rows else []
                self._commit_files(FileChange(added, removed), applied, token)
            return
        with self.committing(applied) as properties:
            write_deltalake(
                self.delta,
                checked_rows(rows, columns),
                partition_by=list(columns),
                mode="overwrite",
                schema_mode="overwrite",
                target_file_size=FILE_BYTES,
                commit_properties=properties,
            )

    def has_columns_of(self, rows: pa.Table) -> bool:
        """Return whether the table has the columns of `rows`, and files that a commit of Tidemark can replace."""
        if self._delta is None or self.partition or rows.nbytes > FILE_BYTES:
            return False
        # NB: not with `check_metadata`, which compares the names of the elements of lists too.
        is_same = rows.schema.equals(self.schema) and all(
            wanted.metadata == stored.metadata for wanted, stored in zip(rows.schema, self.schema, strict=True)
        )
        return bool(is_same) and not self.has_deletion_vectors()

    def add_columns(self, fields: Sequence[pa.Field], applied: Applied) -> None:
        """Add columns that are NULL in every existing row."""
        with self.committing(applied) as properties:
            self.delta.alter.add_columns([Field.from_arrow(field) for field in fields], commit_properties=properties)

    def delete(self, where: str | None, applied: Applied) -> None:
        """Delete the rows that match the SQL condition `where`, or all."""
        version = self.version
        with self.committing(applied) as properties:
            self.delta.delete(where, commit_properties=properties)
        self._ensure_commit(version, applied)

    def update(self, values: Mapping[str, str], where: str, applied: Applied) -> None:
        """Set columns to SQL expressions, in the rows that match the SQL condition `where`."""
        version = self.version
        with self.committing(applied) as properties:
            self.delta.update(updates=dict(values), predicate=where, commit_properties=properties)
        self._ensure_commit(version, applied)

    def remove_deletion_vectors(self) -> None:
        """Write all rows again if a file has a deletion vector: the feature remains after its property is removed."""
        if self.has_deletion_vectors():
            self.overwrite(self.scan(), self.applied)

    def has_deletion_vectors(self) -> bool:
        """Return whether a file has a deletion vector, with which rows of it do not count."""
        if self._files is not None:
            return False  # no commit since they were listed has changed the protocol
        features = self.delta.protocol().reader_features or []
        return _DELETION_VECTORS in features and any(batch.num_rows for batch in self.delta.deletion_vectors())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Translate the errors of reading files: another writer's maintenance may have removed them."""
        with self._translated():
            yield

    @contextmanager
    def writing(self, applied: Applied) -> Iterator[FileChange]:
        """Commit the files that the caller adds and removes; without any, only `applied`."""
        with self.replacing(applied) as change:
            yield change
            passed(Failpoint.FILES_WRITTEN)

    @contextmanager
    def replacing(self, applied: Applied) -> Iterator[FileChange]:
        """Do the same as `writing`, for a table that is neither a log nor a replica."""
        change, token = FileChange(), new_token()
        with self._translated(token):
            yield change
            self._commit_files(change, applied, token)

    def _ensure_commit(self, version: int, applied: Applied) -> None:
        if self.version == version:
            self.append(self.schema.empty_table(), applied)

    @contextmanager
    def committing(self, applied: Applied) -> Iterator[CommitProperties]:
        """Let delta-rs make one commit that contains `applied`."""
        token = new_token()
        with self._translated(token):
            with waiting():  # delta-rs needs no interpreter
                yield commit_properties(self.app, applied, token)
            self.applied, self._token = applied, token
            self._schema = self._files = self._partition = self._id = self.fits = None
            self.make_durable()

    def _commit_files(self, change: FileChange, applied: Applied, token: int) -> None:
        transactions, metadata = transactions_of(self.app, applied, token), metadata_of(self.app, applied, token)
        self.make_durable()
        version = self.version + 1
        with waiting():  # once: to get the turn back costs as much as what is computed here
            sync_data_files(self.uri, [action.path for action in change.added])
            stamp = write_commit(commit_path(self.uri, version), change, transactions, metadata, token)
            self._ahead += 1
            self._stamped = (version, stamp)
            self.applied, self._token = applied, token
            sync_log(self.uri)
        if self._files is not None:
            self._files = changed(self._files, change, self._file_fields)
        self._durable = version
        if version % (self._checkpoint_every or CHECKPOINT_EVERY) == 0:
            with waiting():
                self.delta.create_checkpoint()
            sync_checkpoint(self.uri, version)

    def make_durable(self) -> None:
        """Make the commits durable that another program or delta-rs wrote."""
        present = self.version
        for version in range(self._durable + 1, present + 1):
            sync_commit(self.uri, version)
        self._durable = max(self._durable, present)

    @contextmanager
    def _translated(self, token: int | None = None) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise table_failure(
                error,
                self.uri,
                self.app,
                self.version,
                applied=self.applied,
                token=token,
                unmarked=not self._is_marked,
            ) from error
