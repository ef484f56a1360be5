"""Rows from pages as the batches of a first copy, equal to those that COPY's lines give (`decode.copy`)."""

from array import array

from tidemark.decode.arrow.batches import ABSENT, BatchBuilder, RowSpans
from tidemark.model.change import ChangeBatch, Op
from tidemark.model.position import Position

ROWS_MAX = 1 << 15  # of a batch
BYTES_MAX = 16 << 20  # of its tuples; a single row may be larger


class CopiedBatches:
    """Collects the rows of one version of a table, with consecutive positions."""

    def __init__(
        self,
        builder: BatchBuilder,
        first: Position,
        time_us: int,
        *,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._builder = builder
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._first = first
        self._time_us = time_us
        self._built = 0  # rows in the batches so far
        self._arena = bytearray()
        self._at = array("q")
        self._length = array("q")

    def add(self, packed: bytes) -> list[ChangeBatch]:
        """Add a row; return the batches that are complete."""
        self._at.append(len(self._arena))
        self._length.append(len(packed))
        self._arena += packed
        is_full = len(self._at) >= self._rows_max or len(self._arena) >= self._bytes_max
        return self.build() if is_full else []

    @property
    def row_count(self) -> int:
        """Return the number of rows so far."""
        return self._built + len(self._at)

    def build(self) -> list[ChangeBatch]:
        """Return the batches of the rows that were added since the last ones."""
        count, first = len(self._at), self._first
        if not count:
            return []
        rows = RowSpans(self._arena, count)
        rows.op = bytearray(Op.COPY.value.encode()) * count
        rows.timeline = array("i", [first.timeline]) * count
        rows.commit_lsn = rows.lsn = array("q", [first.commit_lsn]) * count
        begin = first.ordinal + self._built
        rows.ordinal = array("q", range(begin, begin + count))
        rows.commit_time_us = array("q", [self._time_us]) * count
        rows.new_at, rows.new_length = self._at, self._length
        rows.old_at = array("q", [ABSENT]) * count
        made = self._builder.build(rows)
        self._built += count
        self._arena, self._at, self._length = bytearray(), array("q"), array("q")
        return made
