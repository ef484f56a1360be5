"""Maintenance of data files: small neighbours are combined, and files with overlapping keys are sorted together.

Appended and inserted rows make small files, and files whose range of keys contains those of many others; each such file
is a candidate for nearly every key. Files that contain one key between their bounds are sorted together: they then
overlap each other no more, and no key is between the bounds of more files than before. Files of a log are sorted by
the position of the changes. One call rewrites a bounded number of rows and bytes and makes one commit, which changes no
row. Files beyond the bounds wait for the next call.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa

from tidemark.io.host.failpoints import passed
from tidemark.pipeline.delta_log.commit_files import FileChange
from tidemark.pipeline.delta_log.maintenance_commit import commit_maintenance
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.lake.file_format import FILE_BYTES
from tidemark.pipeline.lake.lake_table import LakeTable
from tidemark.pipeline.merge.data_files import DataFile, FileReader, FileWriter, file_rows
from tidemark.pipeline.merge.touched_files import KeyedFiles

WORK_ROWS = 1 << 20  # rewritten by one call: about a second of CPU
WORK_BYTES = 64 << 20  # of their files
DEPTH_MAX = 4  # files between whose bounds a key may be: each costs half a millisecond to check


def recluster(
    table: LakeTable, key: Sequence[str], lock: Lock, *, rows_max: int = 0, bytes_max: int = WORK_BYTES
) -> int | None:
    """Rewrite files of the snapshot `table` that are small or overlap; return the version of the commit.

    None: there was nothing to do. `rows_max` bounds the rows of a file; 0: by the size of the table, for a replica. One
    call rewrites files of at most `bytes_max` bytes. `lock`: of the table. Raises `MaintenanceLost`, and the errors of
    reading files.
    """
    if table.has_deletion_vectors() or table.delta.metadata().partition_columns:
        return None  # the stream writes rows with vectors again first; files are written without partition values here
    with table.reading():
        files = KeyedFiles(FileReader(table.uri, table.schema), table.files(key), [table.schema.field(n) for n in key])
        rows_max = rows_max or file_rows(files.rows)
        change = _rewritten(table.uri, files, rows_max, planned(files, rows_max, bytes_max))
    if not change.removed:
        return None
    passed(MaintenanceFailpoint.MAINTENANCE_WRITTEN)
    version = commit_maintenance(table.uri, change, table.version, lock)
    passed(MaintenanceFailpoint.MAINTENANCE_COMMITTED)
    return version


def _rewritten(uri: str, files: KeyedFiles, rows_max: int, groups: Sequence[Sequence[int]]) -> FileChange:
    """Write each of `groups` again as one or more files; groups that would remain as many files are left."""
    change, writer = FileChange(), FileWriter(uri, files.key, rows_max, data_change=False)
    crowded = {file for crowd in crowds(files) for file in crowd}
    for group in groups:
        rows = pa.concat_tables([piece for file in group for piece in files.reader.pieces(files.files[file])])
        if writer.count(rows) < len(group) or group[0] in crowded:
            change.added += writer.write(rows)
            change.removed += [files.files[file].removal(data_change=False) for file in group]
    return change


@dataclass(slots=True)
class _Budget:
    """What may still be added to a group or a call."""

    rows: int
    size: int

    def spend(self, files: Sequence[DataFile]) -> bool:
        """Subtract `files` if all of them fit; return whether they do."""
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        if rows > self.rows or size > self.size:
            return False
        self.rows -= rows
        self.size -= size
        return True


def planned(files: KeyedFiles, rows_max: int, bytes_max: int | None = None) -> list[list[int]]:
    """Return the groups of files that one call sorts together; no file is in two of them."""
    budget = _Budget(WORK_ROWS, WORK_BYTES if bytes_max is None else bytes_max)
    run_bytes_max = min(FILE_BYTES, budget.size)
    groups = [[file for file in crowd if budget.spend([files.files[file]])] for crowd in crowds(files)]
    grouped = {file for group in groups for file in group}
    runs = [run for run in neighbours(files, rows_max, grouped, run_bytes_max) if len(run) > 1]
    groups += [run for run in runs if budget.spend([files.files[file] for file in run])]
    return [group for group in groups if len(group) > 1]


def crowds(files: KeyedFiles) -> Iterator[list[int]]:
    """Yield disjoint groups of more than `DEPTH_MAX` files that have a key in common between their bounds."""
    ranges = files.ranges
    left = ranges.separable.copy()
    while left.any():
        chosen = np.flatnonzero(left)
        begins, ends = np.sort(ranges.begins[chosen]), np.sort(ranges.ends[chosen])
        # The key with most files is one with which a file begins.
        depths = np.searchsorted(begins, begins, "right") - np.searchsorted(ends, begins, "left")
        deepest = int(depths.argmax())
        if depths[deepest] <= DEPTH_MAX:
            return
        point = begins[deepest]
        crowd = chosen[(ranges.begins[chosen] <= point) & (ranges.ends[chosen] >= point)]
        left[crowd] = False
        yield crowd.tolist()


def neighbours(files: KeyedFiles, rows_max: int, grouped: Collection[int], bytes_max: int) -> Iterator[list[int]]:
    """Yield runs of files that are adjacent in key order and fit into one of these bounds; none is `grouped`."""
    run: list[int] = []
    budget = _Budget(rows_max, bytes_max)
    for file in files.ranges.order.tolist():
        if file in grouped or not budget.spend([files.files[file]]):
            yield run
            run, budget = [], _Budget(rows_max, bytes_max)
            if file in grouped or not budget.spend([files.files[file]]):
                continue
        run.append(file)
    yield run
