"""A committed transaction: its rows in runs, and the items between them, with their positions in the stream."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidemark.decode.datum.row_entries import tuple_bytes
from tidemark.decode.transactions.object_names import NO_NAMES, RecordedNames
from tidemark.decode.transactions.ports import SpillPort
from tidemark.decode.transactions.reorder_buffer.itemlog import Item, ItemLog
from tidemark.decode.transactions.reorder_buffer.rowlog import RelationVersions, Row, RowChunk, RowLog
from tidemark.model.change import LogicalMessage, TransactionEnd
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.model.position import Position


class Ended(NamedTuple):
    """The content of a commit record and its LSNs."""

    xid: Xid
    commit_lsn: Lsn
    end_lsn: Lsn
    time_us: int
    database: Oid
    origin: int = 0
    gid: str | None = None


@dataclass(frozen=True, slots=True)
class RowRun:
    """Entries `start` to `stop` of a chunk, contiguous in the stream; the first row has `first_ordinal`."""

    chunk: RowChunk
    versions: RelationVersions  # numbered as in the entries
    start: int
    stop: int
    first_ordinal: int
    tuples_at: int  # offset of the tuples of row `start`

    def ordinal(self, row: int) -> int:
        """Return the ordinal of an entry; for `stop`, the ordinal after the last row."""
        return self.first_ordinal + self.chunk.row_count(self.start, row)

    def row_at(self, ordinal: int) -> int:
        """Return the first entry that has a row at or after `ordinal`."""
        if not self.chunk.more:
            return min(self.stop, self.start + max(0, ordinal - self.first_ordinal))
        return bisect_right(range(self.start, self.stop), ordinal, key=lambda row: self.ordinal(row + 1)) + self.start

    def rows(self) -> Iterator[Row]:
        """Yield the rows one by one."""
        return self.chunk.rows(self.start, self.stop, self.tuples_at)


@dataclass(frozen=True, slots=True, eq=False)
class CommittedTransaction:
    """A whole transaction, not empty, at its position in commit order.

    `release` frees the spilled parts; the items cannot be read afterwards.
    """

    end: TransactionEnd
    restart_lsn: Lsn  # of a pointer at the transaction's end
    inner_restart_lsn: Lsn  # of a pointer inside the transaction, which must then be read again
    _rows: RowLog
    _between: ItemLog
    _port: SpillPort | None
    names: RecordedNames = NO_NAMES  # needed by its rows, if names are kept

    def items(self) -> Iterator[RowRun | Item]:
        """Yield the rows, in runs as long as possible, and the items between them."""
        ordinal = 0
        waiting = self._between.read(self._port)
        following = next(waiting, None)
        for base, chunk in self._rows.chunks(self._port):
            start = counted = at = 0
            while start < len(chunk):
                while following is not None and following[0] <= base + start:
                    yield self._with_position(following[1], ordinal)
                    ordinal += 1
                    following = next(waiting, None)
                stop = len(chunk) if following is None else min(len(chunk), following[0] - base)
                for run_start, run_stop in self._rows.surviving(chunk, start, stop):
                    at += tuple_bytes(chunk.entries, counted, run_start)
                    counted = run_start
                    yield RowRun(chunk, self._rows.versions, run_start, run_stop, ordinal, at)
                    ordinal += chunk.row_count(run_start, run_stop)
                start = stop
        while following is not None:
            yield self._with_position(following[1], ordinal)
            ordinal += 1
            following = next(waiting, None)
        assert ordinal == self.end.item_count, self.end

    @property
    def byte_count(self) -> int:
        """Approximate memory used, without spilled parts."""
        return self._rows.byte_count + self._between.byte_count

    def release(self) -> None:
        """Drop rows and items, on disk as well."""
        self._rows.release(self._port)
        self._between.release(self._port)

    def _with_position(self, item: Item, ordinal: int) -> Item:
        position = Position(self.end.timeline, self.end.commit_lsn, ordinal)
        if isinstance(item, LogicalMessage):
            return replace(item, position=position)
        return replace(item, position=position, commit_time_us=self.end.commit_time_us)
