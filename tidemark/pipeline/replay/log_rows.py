"""The rows of a log in stream order, in parts of a bounded number of rows.

The files of a log are not in one order: maintenance sorts and combines some, and a partitioned log has several for one
range. The positions are therefore counted in ranges first, from their columns alone, and each part is read with a
filter on its range, for which most files are skipped by their statistics.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import Op
from tidemark.model.position import Position
from tidemark.pipeline.lake.log_order import PLACE, is_after, is_before, least_rows, position_in, ranges_of
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.replay.refusal import reading
from tidemark.pipeline.sinks.log.changelog import expired_lsn

PART_BYTES = 64 << 20  # of a part's rows as they are stored
PART_ROWS_MIN = 10_000
RANGES_MAX = 1 << 16  # that are counted at once
_ORDER = [(name, "ascending") for name in PLACE]


class LogRows:
    """A log at one version."""

    def __init__(self, log: LakeTable, rows_max: int) -> None:
        self._log = log
        with reading(log.uri):
            files = log.files(PLACE)
        rows, size = (int(pc.sum(files.column(name)).as_py() or 0) for name in ("num_records", "size_bytes"))
        fitting = PART_BYTES * rows // size if size else rows_max
        self._part_rows = min(rows_max, max(PART_ROWS_MIN, fitting))
        self.expired = expired_lsn(log)
        self.schema = log.schema

    def first(self, after: Position, where: pc.Expression) -> Position | None:
        """Return the position of the first change after another one that matches `where`; rows of copies are none."""
        wanted = is_after(after) & where & (pc.field("_op") != Op.COPY.value)
        with reading(self._log.uri):
            ranges = list(ranges_of(self._log, wanted))
        for part in ranges:
            least = min((position_in(least_rows(batch)) for batch in self._scan(PLACE, wanted & part)), default=None)
            if least is not None:
                return least
        return None

    def has_dated(self, after: Position, before: Position | None) -> bool:
        """Return whether there is a change with a commit time between two positions."""
        dated = pc.field("_commit_time").is_valid()
        return self.first(after, dated if before is None else dated & is_before(before)) is not None

    def _scan(self, columns: Sequence[str], where: pc.Expression) -> Iterator[pa.RecordBatch]:
        with reading(self._log.uri):
            for batch in self._log.scan(columns, where):
                if batch.num_rows:
                    yield batch

    def parts(self, after: Position, before: Position | None) -> Iterator[pa.Table]:
        """Yield the rows after one position and before another one in stream order, without those of TRUNCATEs."""
        wanted = is_after(after) & (pc.field("_op") != Op.TRUNCATE.value)
        if before is not None:
            wanted &= is_before(before)
        timelines: set[int] = set()
        for batch in self._scan(["_tli"], wanted):
            timelines.update(batch.column(0).unique().to_pylist())
        for timeline in sorted(timelines):
            for part in self._ranges("_commit_lsn", wanted & (pc.field("_tli") == timeline)):
                with reading(self._log.uri):
                    rows = self._log.scan(where=part).read_all()
                yield rows.sort_by(_ORDER)

    def _ranges(self, name: str, wanted: pc.Expression) -> Iterator[pc.Expression]:
        """Yield conditions that divide the rows by a column, in its order, into parts of at most the wanted number.

        The rows of one transaction are divided by their ordinals.
        """
        counts, width = self._counts(name, wanted)
        low, rows = 0, 0
        part: list[int] = []
        for number in sorted(counts):
            if part and rows + counts[number] > self._part_rows:
                yield wanted & (pc.field(name) >= low) & (pc.field(name) < (part[-1] + 1) * width)
                part, rows = [], 0
            low = low if part else number * width
            if counts[number] > self._part_rows and (width > 1 or name == "_commit_lsn"):
                within = wanted & (pc.field(name) >= low) & (pc.field(name) < low + width)
                yield from self._ranges(name if width > 1 else "_ordinal", within)
                continue
            part.append(number)
            rows += counts[number]
        if part:
            yield wanted & (pc.field(name) >= low) & (pc.field(name) < (part[-1] + 1) * width)

    def _counts(self, name: str, wanted: pc.Expression) -> tuple[Counter[int], int]:
        """Return the number of rows in ranges of a column, by the number of the range, and the width of a range."""
        counts: Counter[int] = Counter()
        shift = 0
        for batch in self._scan([name], wanted):
            values = batch.column(0).to_numpy()
            numbers, found = np.unique(values >> shift, return_counts=True)
            counts.update(dict(zip(numbers.tolist(), found.tolist(), strict=True)))
            while len(counts) > RANGES_MAX:
                shift += 1
                wider: Counter[int] = Counter()
                for number, count in counts.items():
                    wider[number >> 1] += count
                counts = wider
        return counts, 1 << shift
