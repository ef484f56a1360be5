"""Ranges of the positions in a log, in their order: to find the first row that is sought, few files are opened.

The files of a log are not in one order. By the statistics in the Delta log, each file has a position that none of its
rows precedes. Ranges end at such positions: a file is opened for those ranges only that it can have rows of.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.pipeline.lake.files.file_list import statistic
from tidemark.pipeline.lake.tables.lake_table import LakeTable

PLACE = ("_tli", "_commit_lsn", "_ordinal")
"""The columns of a row's position."""


def ranges_of(log: LakeTable, where: pc.Expression | None = None) -> Iterator[pc.Expression]:
    """Yield conditions for disjoint ranges of positions, in their order, which contain all rows of a log.

    Each contains the beginnings of about as many files as all ranges before it; with `where`, of files that can have
    rows which match it.
    """
    begins = _begins(log, where)
    ends = [begins[1 << power] for power in range(len(begins).bit_length()) if 1 << power < len(begins)]
    for begin, end in pairwise([None, *ends, None]):
        part = pc.scalar(value=True) if begin is None else is_after(replace(begin, ordinal=begin.ordinal - 1))
        yield part if end is None else part & is_before(end)


def least_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows at the least position in a batch that has rows, which `PLACE` is a part of."""
    for name in PLACE:
        column = batch.column(name)
        batch = batch.filter(pc.equal(column, pc.min(column)))
    return batch


def position_in(batch: pa.RecordBatch) -> Position:
    """Return the position of the first row of a batch."""
    timeline, lsn, ordinal = (batch.column(name)[0].as_py() for name in PLACE)
    return Position(TimelineId(timeline), Lsn(lsn), ordinal)


def _begins(log: LakeTable, where: pc.Expression | None) -> list[Position]:
    """Return the positions that no row of a file precedes, each once, in order; of files without statistics none."""
    fields = [log.schema.field(name) for name in PLACE]
    files = log.files(PLACE)
    matching = None if where is None else log.paths(where)
    if matching is not None:
        is_matching = [unquote(path) in matching for path in files.column("path").to_pylist()]
        files = files.filter(pa.array(is_matching, pa.bool_()))
    columns = (statistic(files, "min", field).to_pylist() for field in fields)
    known = {place for place in zip(*columns, strict=True) if None not in place}
    return sorted(Position(TimelineId(timeline), Lsn(lsn), ordinal) for timeline, lsn, ordinal in known)


def is_before(position: Position) -> pc.Expression:
    """Return the condition for rows before a position."""
    timeline, lsn, ordinal = (pc.field(name) for name in PLACE)
    in_commit = (lsn == position.commit_lsn) & (ordinal < position.ordinal)
    return (timeline < position.timeline) | (
        (timeline == position.timeline) & ((lsn < position.commit_lsn) | in_commit)
    )


def is_after(position: Position) -> pc.Expression:
    """Return the condition for rows after a position."""
    timeline, lsn, ordinal = (pc.field(name) for name in PLACE)
    in_commit = (lsn == position.commit_lsn) & (ordinal > position.ordinal)
    return (timeline > position.timeline) | (
        (timeline == position.timeline) & ((lsn > position.commit_lsn) | in_commit)
    )
