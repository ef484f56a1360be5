"""Divides a large merge into tasks: each rewrites its own files, with the changes of its own keys.

A task has files that follow each other in key order. Each key of the run belongs to one task: to that of the file that
contains it, else of a file into whose range it fits. Where a key is in the ranges of several files, their key columns
are read here; other files are not opened. Both sides of a change that moves a row to another key may belong to
different tasks: each of them gets the change, and leaves out the key of the other.

If a value is unchanged and unknown (TOAST), it is the one that the row had under its earlier keys. A task then gets all
changes of all keys that a row of its keys had in the run, and the files of all tasks, to read such values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemark.pipeline.merge.compaction import ChangedKeys, Compacted
from tidemark.pipeline.merge.key_ranges import SoughtKeys
from tidemark.pipeline.merge.keys import Indexes, comparable_keys, indexes_of
from tidemark.pipeline.merge.touched_files import KeyedFiles

# Of one task, unless one file or one key exceeds them. A task needs memory for the changes of its keys, at most those
# of the run (MERGE_ROWS), and for rows that are written together (data_files.PIECE_BYTES), not for all of its files.
TASK_BYTES = 32 << 20  # of the files with its keys: about 2.5 s of CPU (docs/performance.md)
TASK_KEYS = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class MergeTask:
    """A part of a merge."""

    files: Indexes  # numbers among those of the table
    added: pa.Table  # the same files, as `LakeTable.files` returns them
    rows: Mapping[int, Indexes]  # by part of the run: the changes that the task needs, in order
    own: pa.Table | None  # the keys of the task, if its changes have others as well
    every: pa.Table | None  # the files of the table, if values of rows whose key changed are read from them

    def own_rows(self, compacted: Compacted) -> Compacted:
        """Return `compacted` without the keys of other tasks."""
        if self.own is None:
            return compacted
        puts, removed = (
            pa.array(indexes_of(comparable_keys(rows, self.own.schema.names), self.own) >= 0)
            for rows in (compacted.puts, compacted.removed)
        )
        kept = {name: flags.filter(puts) for name, flags in compacted.kept.items()}
        return Compacted(compacted.puts.filter(puts), compacted.removed.filter(removed), kept, compacted.only_new)


@dataclass(frozen=True, slots=True, eq=False)
class DividedMerge:
    """The tasks of a merge, and how many bytes the files have that they may rewrite."""

    tasks: Sequence[MergeTask]
    file_bytes: int


def divided_merge(files: KeyedFiles, parts: Sequence[ChangedKeys]) -> DividedMerge:
    """Divide the merge of a run, given the keys of its parts in stream order. Reads key columns of some files."""
    keys = pa.concat_tables([part.keys for part in parts])
    if not keys.num_rows:
        return DividedMerge([], 0)
    distinct = keys.group_by(files.key, use_threads=False).aggregate([]).select(files.key).combine_chunks()
    codes = indexes_of(keys, distinct)
    ranks = _ranks(files, SoughtKeys(distinct))
    counts = np.bincount(ranks, minlength=files.ranges.count)
    sizes = np.array([files.files[file].size for file in files.ranges.order], np.int64)
    begins = _begins(sizes, counts)
    of_key = np.searchsorted(begins, ranks, "right") - 1
    given = _given(parts, codes, of_key)
    moves, is_linked = any(part.moves for part in parts), _is_linked(parts)
    tasks = []
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], files.ranges.count], strict=True)):
        some = files.ranges.order[begin:end]
        own = distinct.take(pa.array(np.flatnonzero(of_key == number))) if moves else None
        every = files.added if is_linked else None
        tasks.append(MergeTask(some, files.added.take(pa.array(some)), given[number], own, every))
    return DividedMerge(tasks, int(sizes[counts[: len(sizes)] > 0].sum()))


def _ranks(files: KeyedFiles, sought: SoughtKeys) -> Indexes:
    """Return for each key the rank of a file: the one that contains it, else one that it fits into or follows."""
    ranges = files.ranges
    ranks, candidates = ranges.ranks_of(sought), np.zeros(sought.keys.num_rows, np.int64)
    inside = ranges.inside(sought)
    for file, indexes in inside.items():
        ranks[indexes] = ranges.ranks[file]
        candidates[indexes] += 1
    unsure = {file: indexes[candidates[indexes] > 1] for file, indexes in inside.items()}
    for file, hit in files.touched(sought, {file: some for file, some in unsure.items() if len(some)}).items():
        ranks[hit.sought] = ranges.ranks[file]
    return ranks


def _begins(sizes: Indexes, counts: Indexes) -> list[int]:
    """Return the ranks with which tasks begin; those with keys are within the bounds, if their files are."""
    begins, size, keys = [0], 0, 0
    for rank in np.flatnonzero(counts[: len(sizes)]).tolist():
        if keys and (size + sizes[rank] > TASK_BYTES or keys + counts[rank] > TASK_KEYS):
            begins.append(rank)
            size = keys = 0
        size, keys = size + int(sizes[rank]), keys + int(counts[rank])
    return begins


def _is_linked(parts: Sequence[ChangedKeys]) -> bool:
    """Return whether rows whose key changed may have values that only earlier changes or the replica have."""
    return any(part.has_unchanged for part in parts) and any(part.moves for part in parts)


def _given(parts: Sequence[ChangedKeys], codes: Indexes, of_key: Indexes) -> list[dict[int, Indexes]]:
    """Return for each task the changes of each part that it needs; `codes` are the numbers of the parts' keys."""
    begins = np.cumsum([0, *(part.row_count for part in parts)])
    changes = np.concatenate([begin + part.rows for begin, part in zip(begins, parts, strict=False)])
    tasks = of_key[codes]
    if _is_linked(parts):
        origin, tasks = _joined(_chains(changes, codes, len(of_key))[codes], tasks)
        changes = changes[origin]
    needed = np.unique(tasks * begins[-1] + changes)
    ends = np.searchsorted(needed, np.add.outer(np.arange(of_key.max() + 1) * begins[-1], begins))
    return [
        {
            part: needed[low:high] - task * begins[-1] - begins[part]
            for part, (low, high) in enumerate(pairwise(of_task))
            if low < high
        }
        for task, of_task in enumerate(ends.tolist())
    ]


def _chains(changes: Indexes, codes: Indexes, count: int) -> Indexes:
    """Return for each key a number that is the same for all keys that one row had, and for all rows of these keys."""
    order = np.argsort(changes, kind="stable")
    twice = np.flatnonzero(changes[order][1:] == changes[order][:-1])
    one, other = codes[order[twice]], codes[order[twice + 1]]
    numbers = np.arange(count)
    while True:  # numbers only fall, and a number is that of a key, whose own number is followed too
        least = np.minimum(numbers[one], numbers[other])
        lower = numbers.copy()
        for ends in (one, other):
            np.minimum.at(lower, numbers[ends], least)
            np.minimum.at(lower, ends, least)
        lower = lower[lower]
        if np.array_equal(lower, numbers):
            return numbers
        numbers = lower


def _joined(chains: Indexes, tasks: Indexes) -> tuple[Indexes, Indexes]:
    """Return pairs of an entry and a task, for each task that has an entry of the same chain."""
    count = int(tasks.max()) + 1
    pairs = np.unique(chains * count + tasks)
    low, high = (np.searchsorted(pairs // count, chains, side) for side in ("left", "right"))
    counts = high - low
    origin = np.repeat(np.arange(len(chains)), counts)
    within = np.arange(len(origin)) - np.repeat(np.cumsum(counts) - counts, counts)
    return origin, pairs[low[origin] + within] % count
