"""Maintenance of data files: small neighbours are combined, and files with overlapping keys are sorted together.

Appended and inserted rows make small files, and files whose range of keys contains those of many others; each such file
is a candidate for nearly every key. Files that contain one key between their bounds are sorted together: they then
overlap each other no more, and no key is between the bounds of more files than before. Files of a log are sorted by
the position of the changes. One call rewrites a bounded number of rows and bytes and makes one commit, which changes no
row. Files beyond the bounds wait for the next call.

A file is combined with smaller neighbours only if they have at least as many rows together. Each row is then at most
twenty times (the binary logarithm of a log's rows in a file) written again for that, however small the commits are; a
large file and each row that is appended to its table would be rewritten together otherwise. Runs that cost little are
combined at once.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction

from tidemark.io.host.failpoints import passed
from tidemark.pipeline.delta_log.commit_files import FileChange
from tidemark.pipeline.delta_log.maintenance_commit import MaintenanceLost, commit_maintenance, discard_files
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.lake.files.file_format import FILE_BYTES
from tidemark.pipeline.lake.files.file_list import changed
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge.data_files import FILE_ROWS_MIN, DataFile, FileReader, FileWriter, file_rows
from tidemark.pipeline.merge.key_ranges import KeyRanges
from tidemark.pipeline.merge.keys import Indexes
from tidemark.pipeline.merge.touched_files import KeyedFiles

WORK_ROWS = 1 << 20  # rewritten by one call: about a second of CPU
WORK_BYTES = 64 << 20  # of their files
SMALL_ROWS, SMALL_BYTES = FILE_ROWS_MIN, 1 << 20  # of a run that is combined at once: about 20 ms of CPU
DEPTH_MAX = 4  # files between whose bounds a key may be: each costs half a millisecond to check


@dataclass(frozen=True, slots=True)
class Reclustered:
    """A commit of maintenance; `is_complete`: another call would find nothing to do if there were no later commits."""

    version: int
    is_complete: bool


def recluster(
    table: LakeTable, key: Sequence[str], lock: Lock, *, rows_max: int = 0, bytes_max: int = WORK_BYTES
) -> Reclustered | None:
    """Rewrite files of the snapshot `table` that are small or overlap; return the commit.

    None: there was nothing to do. `rows_max` bounds the rows of a file; 0: by the size of the table, for a replica. One
    call rewrites files of at most `bytes_max` bytes. `lock`: of the table. Raises `MaintenanceLost`, also for a column
    of `key` that is gone, and the errors of reading files.
    """
    if table.has_deletion_vectors():
        return None  # the stream writes rows with vectors again first
    with table.reading():
        key = [*table.partition, *(name for name in key if name not in table.partition)]  # no group has two partitions
        gone = [name for name in key if name not in table.schema.names]
        if gone:
            raise MaintenanceLost(f"the column {gone[0]} no longer exists")
        fields = [table.schema.field(name) for name in key]
        present = table.files(key)
        files = KeyedFiles(FileReader(table.uri, table.schema), present, fields)
        rows_max = rows_max or file_rows(files.rows)
        writer = FileWriter(table.uri, key, rows_max, partition=table.partition, data_change=False)
        change = FileChange()
        for group in planned(files, rows_max, bytes_max):
            added = _rewritten(table, files, writer, group)
            change.added += added
            change.removed += [files.files[file].removal(data_change=False) for file in group if added]
    if not change.removed:
        return None
    passed(MaintenanceFailpoint.MAINTENANCE_WRITTEN)
    version = commit_maintenance(table.uri, change, table.version, lock)
    passed(MaintenanceFailpoint.MAINTENANCE_COMMITTED)
    left = KeyedFiles(files.reader, changed(present, change, fields), fields)
    return Reclustered(version, is_complete=not planned(left, rows_max, bytes_max))


def _rewritten(table: LakeTable, files: KeyedFiles, writer: FileWriter, group: Sequence[int]) -> list[AddAction]:
    """Write `group` again as other files; return none if they would be as many and overlap as much as before."""
    rows = pa.concat_tables([piece for file in group for piece in files.reader.pieces(files.files[file])])
    if writer.count(rows) < len(group):
        return writer.write(rows)
    before = _depth(files.ranges, np.array(group))
    if before < 2:
        return []
    added = writer.write(rows)
    fields = [table.schema.field(name) for name in files.key]
    listed = changed(table.files(files.key).slice(0, 0), FileChange(added), fields)
    if _depth(KeyRanges(listed, fields, table.partition), np.arange(len(added))) < before:
        return added
    discard_files(table.uri, FileChange(added))
    return []


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
    for run in neighbours(files, rows_max, grouped, run_bytes_max):
        groups += [part for part in balanced(files.files, run) if budget.spend([files.files[file] for file in part])]
    return [group for group in groups if len(group) > 1]


def balanced(files: Sequence[DataFile], run: Sequence[int]) -> Iterator[list[int]]:
    """Yield the parts of `run` without each file that has more rows than the rest of its part; small runs are whole."""
    if len(run) < 2:
        return
    largest = max(range(len(run)), key=lambda at: files[run[at]].rows)
    rows, size = sum(files[file].rows for file in run), sum(files[file].size for file in run)
    if 2 * files[run[largest]].rows <= rows or (rows <= SMALL_ROWS and size <= SMALL_BYTES):
        yield list(run)
        return
    yield from balanced(files, run[:largest])
    yield from balanced(files, run[largest + 1 :])


def crowds(files: KeyedFiles) -> Iterator[list[int]]:
    """Yield disjoint groups of more than `DEPTH_MAX` files that have a key in common between their bounds."""
    ranges = files.ranges
    left = ranges.separable.copy()
    while left.any():
        chosen = np.flatnonzero(left)
        depth, point = _deepest(ranges, chosen)
        if depth <= DEPTH_MAX:
            return
        crowd = chosen[(ranges.begins[chosen] <= point) & (ranges.ends[chosen] >= point)]
        left[crowd] = False
        yield crowd.tolist()


def _deepest(ranges: KeyRanges, chosen: Indexes) -> tuple[int, int]:
    """Return the greatest number of `chosen` files between whose bounds one key is, and such a key."""
    begins, ends = np.sort(ranges.begins[chosen]), np.sort(ranges.ends[chosen])
    # The key with most files is one with which a file begins.
    depths = np.searchsorted(begins, begins, "right") - np.searchsorted(ends, begins, "left")
    deepest = int(depths.argmax())
    return int(depths[deepest]), int(begins[deepest])


def _depth(ranges: KeyRanges, files: Indexes) -> int:
    """Return how many of `files` overlap at one key at most, of those that can be separated."""
    chosen = files[ranges.separable[files]]
    return _deepest(ranges, chosen)[0] if len(chosen) else 0


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
