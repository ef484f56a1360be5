"""Leaves out of the stream what is delivered already: before a restart, before the changes begin, or by a first copy.

Rows of excluded origins are left out as well (`origin_filter`). Whether a table is selected is decided by
`selected_items`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from tidemark.decode.groups.origin_filter import has_excluded, kept_rows
from tidemark.decode.groups.partitions import PartitionRoutes
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import RowRun
from tidemark.model.change import LogicalMessage, TransactionEnd, Truncation
from tidemark.model.lsn import FullXid, Lsn, Oid
from tidemark.model.origins import ExcludedOrigins
from tidemark.model.position import Position
from tidemark.model.snapshot import Visibility

Copied = Callable[[Oid, TransactionEnd], bool]  # for a relation and a transaction: the first copy contains its rows


def nothing_copied(_relation: Oid, _end: TransactionEnd) -> bool:
    """Return that no first copy contains the rows."""
    return False


class DeliveryFilter:
    """Determines which transactions, rows and messages of the stream are left out."""

    def __init__(
        self,
        routes: PartitionRoutes,
        *,
        excluded: ExcludedOrigins,
        copied: Copied,
        copied_by: Collection[Visibility],
        after: Position | None,
        behind: Visibility | None,
    ) -> None:
        """Take the arguments of `GroupBuilder`."""
        self._routes = routes
        self._excluded = excluded
        self._excludes = bool(excluded)
        self._copied = copied
        self._snapshots = tuple(copied_by) if behind is None else (behind, *copied_by)
        self._unseen_from: tuple[int, int] | None = None  # xid and LSN from which no snapshot shows anything
        self._checks_each_row = copied is not nothing_copied and not copied_by
        self._after = after
        self._behind = behind

    def first_new(self, end: TransactionEnd) -> int:
        """Return the ordinal of the first item of the transaction that was not delivered yet."""
        if self._behind is not None and self._behind.shows(end.full_xid, end.commit_lsn):
            return end.item_count
        if self._after is None:
            return 0
        if (end.timeline, end.commit_lsn) == (self._after.timeline, self._after.commit_lsn):
            return self._after.ordinal + 1
        return end.item_count if Position(end.timeline, end.commit_lsn, 0) < self._after else 0

    def is_delivered(self, message: LogicalMessage) -> bool:
        """Return whether a message that belongs to no transaction was delivered."""
        return self._after is not None and message.position <= self._after

    def is_all_new(self, run: CommittedRun) -> bool:
        """Return whether the whole run is new: nothing was delivered or copied, and no row needs a check."""
        after, ends = self._after, run.ends
        if self._checks_each_row or (self._excludes and has_excluded(run.entries, self._excluded)):
            return False
        if after is not None and ends.timeline != after.timeline:
            return False
        if after is not None and ends.commit_lsns[0] <= after.commit_lsn:
            return False
        if not self._snapshots:
            return True
        oldest, lsn = FullXid(min(ends.full_xids)), Lsn(ends.commit_lsns[0])
        if self._unseen_from is not None and oldest >= self._unseen_from[0] and lsn >= self._unseen_from[1]:
            return True
        return self._is_unseen_from(oldest, lsn)

    def _is_unseen_from(self, xid: FullXid, commit_lsn: Lsn) -> bool:
        """Return whether no snapshot shows anything of `xid` and later xids at or after an LSN; remember it if so."""
        if not all(snapshot.shows_none_from(xid, commit_lsn) for snapshot in self._snapshots):
            return False
        self._unseen_from = xid, commit_lsn
        return True

    def rows(self, run: RowRun, start: int, stop: int, end: TransactionEnd) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows that no first copy contains and whose origin is not excluded."""
        ranges: Iterable[tuple[int, int]] = ((start, stop),)
        if self._excludes:
            ranges = kept_rows(run.chunk.entries, start, stop, self._excluded, end.origin)
        if self._copied is nothing_copied:
            yield from ranges
        else:
            for begin, finish in ranges:
                yield from self._not_copied(run, begin, finish, end)

    def _not_copied(self, run: RowRun, start: int, stop: int, end: TransactionEnd) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows that no first copy contains."""
        numbers, relations = run.chunk.numbers(start, stop), run.versions.relations
        copied = {number for number in set(numbers) if self._copied(self._routes.target(relations[number]).oid, end)}
        if not copied:
            yield start, stop
            return
        begin = start
        for row, number in enumerate(numbers, start):
            if number in copied:
                if row > begin:
                    yield begin, row
                begin = row + 1
        if stop > begin:
            yield begin, stop

    def is_excluded(self, item: LogicalMessage | Truncation, end: TransactionEnd | None) -> bool:
        """Return whether the origin of an item is excluded."""
        return self._excludes and self._excluded.holds(item.origin, end.origin if end is not None else 0)
