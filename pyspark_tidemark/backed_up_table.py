"""Writes the rows that a table had at a moment, by the pages of a base backup and WAL, to a new Delta table."""

from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import BackupFolder
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import Lsn
from tidemark.model.mapping import TypeMapping
from tidemark.model.table_name import TableName
from tidemark.pipeline.replay.copied_result import write_copy
from tidemark.pipeline.replay.result_target import ResultTarget
from tidemark.runtime.backup_rows.table_rows import BackedUpRows, rows_of_tables

SCRATCH = "scratch"  # beside the unfinished result


def write_backed_up_table(
    backup: BackupFolder,
    archive: ArchiveFolder,
    name: TableName,
    moment: Lsn | CommitTime,
    *,
    to: ResultTarget,
    types: TypeMapping,
) -> tuple[BackedUpRows, int]:
    """Write the rows to `to`; return the table at the moment, and their number."""
    with to.unfinished() as folder:
        scratch = folder / SCRATCH
        scratch.mkdir(mode=0o700)
        (table,) = rows_of_tables(backup, archive, [name], moment, scratch=scratch, types=types)
        rows = write_copy(
            to, folder, table.database, table.relation, table.batches(), after=table.position, types=types
        )
    return table, rows
