"""Small transactions that committed in sequence with nothing between them: columns, without an object for each.

They are most of the WAL. Code that handles each transaction separately iterates with `singly`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tidemark.decode.datum.row_entries import ENTRY_BYTES
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.transactions.reorder_buffer.itemlog import ItemLog
from tidemark.decode.transactions.reorder_buffer.rowlog import RelationVersions, RowLog
from tidemark.model.change import LogicalMessage, TransactionEnd, TransactionEnds
from tidemark.model.lsn import XID_MASK, FullXid, Lsn, Oid, TimelineId, Xid


@dataclass(slots=True, eq=False)  # NB: as `CommittedRun`
class SmallTransactions:
    """The attributes of transactions that have only rows, as columns."""

    timeline: TimelineId
    full_xids: "array[int]"
    first_lsns: "array[int]"
    commit_lsns: "array[int]"
    end_lsns: "array[int]"
    times_us: "array[int]"  # since 1970-01-01 UTC
    databases: "array[int]"
    row_counts: "array[int]"

    def __len__(self) -> int:
        return len(self.full_xids)

    def __iter__(self) -> Iterator[TransactionEnd]:
        return map(self.end, range(len(self)))

    def part(self, start: int, stop: int) -> "SmallTransactions":
        """Return the transactions `start` to `stop`."""
        if (start, stop) == (0, len(self)):
            return self
        return SmallTransactions(
            self.timeline,
            self.full_xids[start:stop],
            self.first_lsns[start:stop],
            self.commit_lsns[start:stop],
            self.end_lsns[start:stop],
            self.times_us[start:stop],
            self.databases[start:stop],
            self.row_counts[start:stop],
        )

    def end(self, index: int) -> TransactionEnd:
        """Return the end of one transaction."""
        full_xid = self.full_xids[index]
        return TransactionEnd(
            xid=Xid(full_xid & XID_MASK),
            full_xid=FullXid(full_xid),
            timeline=self.timeline,
            first_lsn=Lsn(self.first_lsns[index]),
            commit_lsn=Lsn(self.commit_lsns[index]),
            end_lsn=Lsn(self.end_lsns[index]),
            commit_time_us=self.times_us[index],
            database=Oid(self.databases[index]),
            item_count=self.row_counts[index],
        )


@dataclass(slots=True, eq=False)  # NB: one for each quiet commit; a frozen one takes three times as long
class CommittedRun:
    """Whole transactions in commit order, and their rows; each has at least one."""

    ends: SmallTransactions
    restart_lsns: "array[int]"  # of a pointer at each transaction's end
    row_ends: "array[int]"  # entries up to each end; unselected rows can share an entry
    byte_ends: "array[int]"  # bytes of tuples up to each end
    versions: RelationVersions  # numbered as in the entries
    entries: bytes  # of all rows; `tuples` has their tuples
    tuples: bytes

    def __len__(self) -> int:
        return len(self.row_ends)

    @property
    def byte_count(self) -> int:
        """Memory used by the rows."""
        return len(self.entries) + len(self.tuples)

    def rows_before(self, index: int) -> int:
        """Return how many entries the transactions before number `index` have."""
        return self.row_ends[index - 1] if index else 0

    def bytes_before(self, index: int) -> int:
        """Return how many bytes the tuples of the transactions before number `index` have."""
        return self.byte_ends[index - 1] if index else 0

    def index_of(self, lsn: Lsn) -> int:
        """Return the number of the first transaction that commits at or after `lsn`."""
        return bisect_left(self.ends.commit_lsns, lsn)

    def inner_restart_lsn(self, index: int) -> Lsn:
        """Return the restart LSN of a pointer before the transaction's end."""
        return Lsn(min(self.ends.first_lsns[index], self.restart_lsns[index]))

    def transaction(self, index: int) -> CommittedTransaction:
        """Return one transaction as an object."""
        rows = RowLog(self.versions)
        entries, tuples = memoryview(self.entries), memoryview(self.tuples)
        start, stop = self.rows_before(index), self.row_ends[index]
        rows.extend(
            entries[start * ENTRY_BYTES : stop * ENTRY_BYTES],
            tuples[self.bytes_before(index) : self.byte_ends[index]],
            self.ends.row_counts[index] - (stop - start),
        )
        end, restart_lsn = self.ends.end(index), Lsn(self.restart_lsns[index])
        return CommittedTransaction(end, restart_lsn, self.inner_restart_lsn(index), rows, ItemLog(), None)

    def cut(self, start: int, stop: int) -> "CommittedRun":
        """Return the transactions `start` to `stop`."""
        if (start, stop) == (0, len(self)):
            return self
        rows, size = self.rows_before(start), self.bytes_before(start)
        return CommittedRun(
            self.ends.part(start, stop),
            self.restart_lsns[start:stop],
            array("q", (end - rows for end in self.row_ends[start:stop])),
            array("q", (end - size for end in self.byte_ends[start:stop])),
            self.versions,
            self.entries[rows * ENTRY_BYTES : self.rows_before(stop) * ENTRY_BYTES],
            self.tuples[size : self.bytes_before(stop)],
        )


EndsPart = SmallTransactions | tuple[TransactionEnd]


class EndsInGroup:
    """The ends of the transactions that end (or begin) in a group; small ones remain columns."""

    def __init__(self, parts: Sequence[EndsPart] = ()) -> None:
        self._parts = list(parts)

    @property
    def parts(self) -> Sequence[EndsPart]:
        """Runs of small transactions, and single ends."""
        return self._parts

    def append(self, end: TransactionEnd) -> None:
        """Append one."""
        self._parts.append((end,))

    def extend(self, ends: SmallTransactions) -> None:
        """Append several."""
        self._parts.append(ends)

    def times_us(self) -> Iterator[int]:
        """Yield the commit times, without an object for a small transaction."""
        return chain.from_iterable(map(commit_times_us, self._parts))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[TransactionEnd]:
        return chain.from_iterable(self._parts)


def commit_times_us(ends: TransactionEnds) -> Iterable[int]:
    """Yield the commit time of each of `ends`."""
    if isinstance(ends, SmallTransactions):
        return ends.times_us
    if isinstance(ends, EndsInGroup):
        return ends.times_us()
    return [end.commit_time_us for end in ends]


def singly(
    decoded: Iterable[CommittedRun | CommittedTransaction | LogicalMessage],
) -> Iterator[CommittedTransaction | LogicalMessage]:
    """Yield the transactions of runs one by one, and everything else unchanged."""
    for found in decoded:
        if isinstance(found, CommittedRun):
            for index in range(len(found)):
                yield found.transaction(index)
        else:
            yield found
