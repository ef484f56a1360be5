"""One Delta table, written by delta-rs so that each commit says what it holds.

Delta checks nothing for us: a lower version is accepted, a repeated append doubles rows. So what the table holds is
read from the very snapshot that the next commit is made on, and a commit that meets another writer's fails for good
(`TableFenced`): whoever lost has to read again what the table holds before it writes anything. NB: a merge or delete
that changes no row makes no commit; an empty append then carries the version, so that every step ends in a commit.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from tidemark.model.errors import ConsumerFailed, Disposition, Fenced, InternalError
from tidemark.pipeline.encodings import SAMPLE_ROWS, properties_for
from tidemark.pipeline.failures import first_reason, named_failure
from tidemark.pipeline.held import NOTHING, Held, commit_properties, read_held

KEEP_HOURS = 1  # files that a commit replaced, for readers of older versions: versions are kept for ten minutes
FILE_BYTES = 48 << 20  # between 32 and 64 MB: small enough for a merge to touch few rows, large enough to scan


class TableFenced(Fenced):
    """Another writer committed to a table of ours."""

    hint = "two pipelines write to one lake: stop one of them; nothing is doubled or lost"

    def __init__(self, uri: str, cause: str) -> None:
        super().__init__(f"another writer committed to {uri}: {cause}")


def quoted(name: str, alias: str = "") -> str:
    """Return `name` as an identifier in delta-rs's SQL."""
    identifier = '"' + name.replace('"', '""') + '"'
    return f"{alias}.{identifier}" if alias else identifier


class LakeFailed(ConsumerFailed):
    """A table that delta-rs cannot read or write."""

    disposition = Disposition.RETRY
    hint = "see if the lake's folder is there, has room, and may be written; what it holds it holds"


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise TableFenced(uri, str(error)) from error
    except (DeltaError, OSError) as error:
        raise named_failure(str(error)) or LakeFailed(f"{uri}: {first_reason(str(error))}") from error


def _opened(uri: str) -> DeltaTable | None:
    # NB: is_deltatable() would list the log as often as opening it does.
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None


def table_properties(keep_hours: int) -> dict[str, str]:
    """Return the properties of our tables; replaced files are kept for so many hours."""
    return {
        "delta.logRetentionDuration": "interval 1 days",  # for other engines: ours is `tidemark.pipeline.log_cleanup`
        "delta.enableExpiredLogCleanup": "false",  # delta-rs would remove commits that `_positions` still needs
        # A checkpoint lists the files that were removed for so long: at two commits a second a week's are a million.
        "delta.deletedFileRetentionDuration": f"interval {keep_hours} hours",
    }


@dataclass(frozen=True, slots=True)
class MergeActions:
    """What a merge does: delete where `delete_if`, else assign; insert where nothing matches and `insert_if`."""

    delete_if: str
    assignments: Mapping[str, str]
    inserted: Mapping[str, str]
    insert_if: str


class LakeTable:
    """A table at one snapshot, or its absence; every write moves on to the snapshot that it made."""

    def __init__(self, uri: str, app: str) -> None:
        self.uri = uri
        self.app = app
        with _translated(uri):
            self._delta = _opened(uri)
        self._opened = max(self.version, 0)
        self.held = read_held(self._delta.transaction_version, app) if self._delta is not None else NOTHING

    @property
    def exists(self) -> bool:
        """Tell if the table has been created."""
        return self._delta is not None

    @property
    def version(self) -> int:
        """Return the version of the snapshot; -1 for no table."""
        return self._delta.version() if self._delta is not None else -1

    def has_passed(self, every: int) -> bool:
        """Tell if one of the versions written since the table was opened is a multiple of `every`."""
        return self.version // every > self._opened // every

    @property
    def delta(self) -> DeltaTable:
        """Return the snapshot."""
        if self._delta is None:
            raise InternalError(f"{self.uri} was written to before it was created")
        return self._delta

    @property
    def schema(self) -> pa.Schema:
        """Return the columns, each with the metadata that it was created with."""
        return pa.schema(self.delta.schema().to_arrow())

    def scan(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the rows of the snapshot batch by batch."""
        dataset = self.delta.to_pyarrow_dataset()
        return dataset.scanner(columns=None if columns is None else list(columns)).to_reader()

    def create(self, schema: pa.Schema, held: Held) -> None:
        """Create the table without rows."""
        with _translated(self.uri):
            self._delta = DeltaTable.create(
                self.uri,
                schema,
                configuration=table_properties(KEEP_HOURS),
                commit_properties=commit_properties(self.app, held),
            )
        self.held = held

    def append(self, rows: pa.Table, held: Held, *, merge_schema: bool = False) -> None:
        """Add `rows`; with `merge_schema` new columns and fields of structs come with them."""
        with _translated(self.uri):
            write_deltalake(
                self.delta,
                rows,
                mode="append",
                schema_mode="merge" if merge_schema else None,
                target_file_size=FILE_BYTES,
                writer_properties=properties_for(rows),
                commit_properties=commit_properties(self.app, held),
            )
        self.held = held

    def overwrite(self, rows: pa.RecordBatchReader | pa.Table, held: Held) -> None:
        """Replace all rows and the columns as well."""
        with _translated(self.uri):
            write_deltalake(
                self.delta,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                target_file_size=FILE_BYTES,
                commit_properties=commit_properties(self.app, held),
            )
        self.held = held

    def add_columns(self, fields: Sequence[pa.Field], held: Held) -> None:
        """Add columns that are NULL in every row there is."""
        with _translated(self.uri):
            self.delta.alter.add_columns(
                [Field.from_arrow(field) for field in fields], commit_properties=commit_properties(self.app, held)
            )
        self.held = held

    def delete(self, where: str | None, held: Held) -> None:
        """Delete the rows that the SQL condition `where` names, or all."""
        version = self.version
        with _translated(self.uri):
            self.delta.delete(where, commit_properties=commit_properties(self.app, held))
        self._settle(version, held)

    def merge(self, rows: pa.Table, on: str, actions: MergeActions, held: Held) -> None:
        """Merge `rows` (alias `s`) into the table (alias `t`)."""
        version = self.version
        with _translated(self.uri):
            merger = self.delta.merge(
                rows,
                on,
                source_alias="s",
                target_alias="t",
                streamed_exec=False,  # lets the key range of the source prune files
                writer_properties=properties_for(rows),
                commit_properties=commit_properties(self.app, held),
            ).when_matched_delete(actions.delete_if)
            if actions.assignments:
                merger = merger.when_matched_update(dict(actions.assignments), f"NOT ({actions.delete_if})")
                merger = merger.when_not_matched_insert(dict(actions.inserted), actions.insert_if)
            merger.execute()
        self._settle(version, held)

    def forget_files(self, hours: int = 0) -> None:
        """Delete the files that no row has needed for `hours`; with 0 not for tables that anybody else reads."""
        if hours:
            self._set_properties(table_properties(hours))
        self.delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)

    def compact(self, keep_hours: int) -> None:
        """Put small files together, and delete those that no row has needed for `keep_hours`."""
        with _translated(self.uri):
            sample = self.delta.to_pyarrow_dataset().head(SAMPLE_ROWS)
            self.delta.optimize.compact(target_size=FILE_BYTES, writer_properties=properties_for(sample))
        self.forget_files(keep_hours)

    def _set_properties(self, wanted: Mapping[str, str]) -> None:
        """Set properties of the table where they differ: it may have been created by another version of ours."""
        configuration = self.delta.metadata().configuration
        changed = {name: value for name, value in wanted.items() if configuration.get(name) != value}
        if changed:
            with _translated(self.uri):
                self.delta.alter.set_table_properties(changed, commit_properties=commit_properties(self.app, self.held))

    def _settle(self, version: int, held: Held) -> None:
        if self.version == version:
            self.append(self.schema.empty_table(), held)
        self.held = held
