"""The port to processes that write the data files of a run, of which this one makes the commit.

They read the values of the outbox themselves, so no row of the run comes through this process, only the keys of a
replica's rows. A file without a commit is not part of a table: files of a task that failed or was repeated are orphans,
which the vacuum removes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from tidemark.model.change import Op
from tidemark.pipeline.lake.deletion_marks import MARKS
from tidemark.pipeline.lake.files.file_format import arrow_encodings
from tidemark.pipeline.lake.files.file_writing import fitted, write_file
from tidemark.pipeline.lake.layout import LakeColumn
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.merge.compaction import ChangedKeys, changed_keys, compact, only_adds
from tidemark.pipeline.merge.data_files import FileReader
from tidemark.pipeline.merge.merge_tasks import MergeTask
from tidemark.pipeline.merge.merging import MergedFiles, ReplicaFormat, appended_files, merged_files, rows_of
from tidemark.pipeline.merge.touched_files import KeyedFiles
from tidemark.pipeline.sinks.executors.write_costs import RunWriter
from tidemark.pipeline.sinks.rows.logshape import log_rows, spelled
from tidemark.pipeline.sinks.rows.replica_rows import new_rows
from tidemark.pipeline.sinks.steps import PackedRun, Rows


@dataclass(frozen=True, slots=True, eq=False)
class WrittenFiles:
    """The files of a run or of a part of it, and for a replica the keys of its changes, by part."""

    added: Sequence[AddAction]
    keys: Sequence[ChangedKeys] = ()
    is_complete: bool = True  # else the run has to be merged, and has no files

    @property
    def only_adds(self) -> bool:
        """Return whether every change of a replica adds a row."""
        return all(keys.only_adds for keys in self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class LogFiles:
    """A log to which a run is appended."""

    uri: str
    schema: pa.Schema

    def write(self, rows: Rows) -> WrittenFiles | None:
        """Write a part of the run; None if the log has no place for a column of it."""
        laid_out = fitted(spelled(log_rows(rows), self.schema), self.schema)
        if laid_out is None:
            return None
        return WrittenFiles([write_file(self.uri, laid_out, arrow_encodings(laid_out))])


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaFiles:
    """A replica with a run: its new rows are appended, or its changes are merged."""

    uri: str
    schema: pa.Schema
    columns: tuple[LakeColumn, ...]  # of the version of the run
    key: tuple[str, ...]
    form: ReplicaFormat
    can_merge: bool  # else only rows are appended
    appends: bool  # else the run is merged in any case: it is expected to change rows
    keeps_deleted: bool = False

    def write(self, rows: Rows) -> WrittenFiles | None:
        """Write the files of a part of the run if it only adds rows, and return the keys of its changes.

        None: the replica has another layout, or this process cannot write the part.
        """
        if not self._has_layout_of(new_rows(rows, rows.changes.slice(0, 0)).schema):
            return None
        if pc.any(pc.equal(rows.changes.column("_op"), Op.REWRITE.value)).as_py():
            return None
        is_appended = self.appends and only_adds(rows.changes)
        if not (is_appended or self.can_merge):
            return None
        keys = changed_keys(rows.changes, self.columns, self.key)
        if not is_appended:
            return WrittenFiles([], [keys], is_complete=False)
        reader = FileReader(self.uri, self.schema)
        return WrittenFiles(appended_files(reader, self.key, new_rows(rows), self.form).added, [keys])

    def merge(self, task: MergeTask, changes: pa.Table) -> MergedFiles:
        """Write the files of a task of the merge; `changes` are those that it needs, in stream order."""
        key = list(self.key)
        fields = [self.schema.field(name) for name in key]
        reader = FileReader(self.uri, self.schema)
        files = KeyedFiles(reader, task.added, fields)
        every = files if task.every is None else KeyedFiles(reader, task.every, fields)
        columns, fetch = self.columns, partial(rows_of, every)
        compacted = task.own_rows(compact(changes, columns, key, fetch, keeps_deleted=self.keeps_deleted))
        if compacted.only_new:
            return appended_files(reader, key, compacted.puts, self.form)
        return merged_files(files, compacted, self.form)

    def _has_layout_of(self, given: pa.Schema) -> bool:
        marks = MARKS if self.keeps_deleted else ()
        wanted = [(field.name, field.type) for field in (*given, *marks)]
        return [(field.name, field.type) for field in self.schema] == wanted


TargetFiles = LogFiles | ReplicaFiles


def joined(parts: Sequence[WrittenFiles | None]) -> WrittenFiles | None:
    """Return the files of all parts of a run; None if one of them was not written."""
    written = [part for part in parts if part is not None]
    if len(written) < len(parts):
        return None
    return WrittenFiles(
        [action for part in written for action in part.added],
        [keys for part in written for keys in part.keys],
        is_complete=all(part.is_complete for part in written),
    )


class FileWriters(Protocol):
    """Processes that write the files of packed runs."""

    def appends(self, byte_count: int) -> bool:
        """Return whether they write a run of so many bytes into a log as fast as this process."""
        ...

    def merges(self, table: TableId, byte_count: int, file_bytes: int | None = None) -> bool:
        """Return whether they merge a run of so many bytes into a replica as fast as this process.

        `file_bytes`: of the files that the merge rewrites; None: as many as the last merges of the table.
        """
        ...

    def expects_merge(self, uri: str) -> bool:
        """Return whether the last run of a replica changed rows."""
        ...

    def write(self, target: TargetFiles, run: PackedRun) -> WrittenFiles | None:
        """Return the written files; None if this process has to write the run."""
        ...

    def merge(self, target: ReplicaFiles, run: PackedRun, tasks: Sequence[MergeTask]) -> Sequence[MergedFiles] | None:
        """Return the files of each task; None if this process has to merge the run, of which `write` read the keys."""
        ...

    def record(self, writer: RunWriter, byte_count: int, seconds: float) -> None:
        """Record how long it took to write a run into a log, with the commit, and with reading it if executors did."""
        ...

    def record_merge(self, writer: RunWriter, table: TableId, byte_count: int, file_bytes: int, seconds: float) -> None:
        """Record how long it took to merge a run into a replica, with the commit, and with reading it as above."""
        ...
