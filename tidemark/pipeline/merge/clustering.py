"""Maintenance of a replica's files: small neighbours are combined, and files with overlapping keys are sorted together.

Appended and inserted rows make small files, and files whose range of keys contains those of many others; each such file
is a candidate for nearly every key. Files that contain one key between their bounds are sorted together: they then
overlap each other no more, and no key is between the bounds of more files than before. One call rewrites a bounded
number of rows and makes one commit, which changes no row. Files beyond the bound wait for the next call.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemark.pipeline.lake.file_format import FILE_BYTES
from tidemark.pipeline.lake.lake_table import LakeTable
from tidemark.pipeline.merge.data_files import DataFile, FileWriter, file_rows
from tidemark.pipeline.merge.touched_files import KeyedFiles, keyed_files

WORK_ROWS = 1 << 20  # rewritten by one call: about a second of CPU
WORK_BYTES = 64 << 20  # of their files
DEPTH_MAX = 4  # files between whose bounds a key may be: each costs half a millisecond to check


def recluster(table: LakeTable, key: Sequence[str]) -> None:
    """Rewrite files that are small or overlap; without such files make no commit."""
    with table.reading():
        files = keyed_files(table, key)
        rows_max = file_rows(files.rows)
        groups = planned(files, rows_max)
    if not groups:
        return
    with table.writing(table.applied) as change:
        writer = FileWriter(table.uri, key, rows_max, partition=table.partition, data_change=False)
        for group in groups:
            rows = [piece for file in group for piece in files.reader.pieces(files.files[file])]
            change.added += writer.write(pa.concat_tables(rows))
            change.removed += [files.files[file].removal(data_change=False) for file in group]


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


def planned(files: KeyedFiles, rows_max: int) -> list[list[int]]:
    """Return the groups of files that one call sorts together; no file is in two of them."""
    budget = _Budget(WORK_ROWS, WORK_BYTES)
    groups = [[file for file in crowd if budget.spend([files.files[file]])] for crowd in crowds(files)]
    grouped = {file for group in groups for file in group}
    runs = [run for run in neighbours(files, rows_max, grouped) if len(run) > 1]
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


def neighbours(files: KeyedFiles, rows_max: int, grouped: Collection[int]) -> Iterator[list[int]]:
    """Yield runs of files that are adjacent in key order and fit into one file; none of them is `grouped`."""
    run: list[int] = []
    budget = _Budget(rows_max, FILE_BYTES)
    for file in files.ranges.order.tolist():
        if file in grouped or not budget.spend([files.files[file]]):
            yield run
            run, budget = [], _Budget(rows_max, FILE_BYTES)
            if file in grouped or not budget.spend([files.files[file]]):
                continue
        run.append(file)
    yield run
