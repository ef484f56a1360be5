"""Runs of a replica that executors write, of which this process makes the commit.

A run that only adds rows is appended. Another one is merged: executors first return the keys of its changes, this
process divides the files of its snapshot into tasks (`merge_tasks`), and executors rewrite those with these keys. The
commit is made as that of a merge here: of the same snapshot, with the same position, and it fails if another writer has
committed meanwhile. Every run that is not written here leaves no trace in the table, so this process can apply it.

Executors merge into a replica with a key. The changes of one without a key are merged here: which of several equal rows
a delete removes can only be decided with all files that may contain one.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.layout import lake_columns
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.lake.row_identity import RowIdentity
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge.compaction import ChangedKeys, are_distinct
from tidemark.pipeline.merge.data_files import DataFile
from tidemark.pipeline.merge.merge_tasks import divided_merge
from tidemark.pipeline.merge.merging import ReplicaFormat
from tidemark.pipeline.merge.touched_files import KeyedFiles, keyed_files
from tidemark.pipeline.sinks.executors.executor_files import FileWriters, ReplicaFiles, WrittenFiles
from tidemark.pipeline.sinks.executors.write_costs import RunWriter
from tidemark.pipeline.sinks.steps import PackedRun, byte_count


class PackedRuns:
    """Lets executors write runs of the replica of `of`."""

    def __init__(self, writers: FileWriters, of: TableId, *, keeps_deleted: bool) -> None:
        """`keeps_deleted`: deleted rows stay, with marks."""
        self._writers, self._of, self._keeps_deleted = writers, of, keeps_deleted

    def record(self, changed_bytes: int, file_bytes: int, seconds: float) -> None:
        """Record a merge that this process made."""
        self._writers.record_merge(RunWriter.DRIVER, self._of, changed_bytes, file_bytes, seconds)

    def write(self, table: LakeTable, run: PackedRun, identity: RowIdentity) -> bool:
        """Commit the files of a run that executors wrote; return False if it has to be applied here."""
        begun_s, changed_bytes = time.monotonic(), byte_count(run.batches)
        # NB: a copy adds rows to an empty replica, whose marks are those of rows that the source has.
        is_copied = table.applied.copy_sequence != NO_SEQUENCE
        can_merge = not (identity.is_whole_row or (self._keeps_deleted and is_copied))
        is_merged = self._keeps_deleted or self._writers.expects_merge(table.uri)
        if is_merged and not (can_merge and self._writers.merges(self._of, changed_bytes)):
            return False
        with table.reading():
            files = keyed_files(table, identity.columns)
        target = ReplicaFiles(
            table.uri,
            table.schema,
            lake_columns(run.relation),
            identity.columns,
            ReplicaFormat(identity.sorted_by, table.partition, files.rows),
            can_merge,
            appends=not is_merged,
            keeps_deleted=self._keeps_deleted,
        )
        written = self._writers.write(target, run)
        if written is None:
            return False
        if written.is_complete and (identity.is_whole_row or _is_new(written)):
            with table.writing(_applied(table, run)) as change:
                change.added += written.added
            return True
        replaced = self._merge(table, run, files, target, written.keys) if can_merge else None
        if replaced is None:
            return False
        file_bytes, seconds = sum(file.size for file in replaced), time.monotonic() - begun_s
        self._writers.record_merge(RunWriter.EXECUTORS, self._of, changed_bytes, file_bytes, seconds)
        return True

    def _merge(
        self, table: LakeTable, run: PackedRun, files: KeyedFiles, target: ReplicaFiles, keys: Sequence[ChangedKeys]
    ) -> list[DataFile] | None:
        """Commit the merge of a run by executors; return the files that it replaced, None if there was no commit."""
        with table.reading():
            divided = divided_merge(files, keys)
        if not self._writers.merges(self._of, byte_count(run.batches), divided.file_bytes):
            return None
        merged = self._writers.merge(target, run, divided.tasks)
        if merged is None:
            return None
        pairs = list(zip(divided.tasks, merged, strict=True))
        replaced = [files.files[task.files[file]] for task, found in pairs for file in found.removed]
        with table.writing(_applied(table, run)) as change:
            change.added += [action for found in merged for action in found.added]
            change.removed += [file.removal(data_change=True) for file in replaced]
        return replaced


def _applied(table: LakeTable, run: PackedRun) -> Applied:
    return replace(table.applied, sequence=run.sequence, position=run.last)


def _is_new(written: WrittenFiles) -> bool:
    return are_distinct(pa.concat_tables([part.keys for part in written.keys]))
