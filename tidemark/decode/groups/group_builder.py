"""Builds bounded change groups from committed transactions: collects rows of many transactions into columnar batches.

A group is a contiguous part of the stream. It ends where a bound is reached, also inside a transaction, and before an
event by which a table leaves the selection or a column gets another type: a reader that ends there has all earlier
changes, and may continue with other columns. An item that is neither a row nor a message is a *barrier*: all batches
end there, so that rows of earlier batches precede it in the stream and rows of later batches follow it. Between
barriers there is one batch for each relation version, in no order: the rows carry their positions. Batches of one table
are in stream order, also if its versions or partitions alternate.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from tidemark.decode.datum.row_entries import ENTRY_BYTES, rows_within
from tidemark.decode.groups.delivery_filter import Copied, DeliveryFilter, nothing_copied
from tidemark.decode.groups.group_rows import Arenas, GroupRows
from tidemark.decode.groups.left_tables import LeftTables
from tidemark.decode.groups.partitions import PartitionRoutes, RootOf, by_leaf
from tidemark.decode.groups.selected_items import IsSelected, SelectedItems, all_tables
from tidemark.decode.groups.stream_order import in_stream_order
from tidemark.decode.groups.transaction_counts import TransactionCounts
from tidemark.decode.groups.version_builders import VersionBuilders
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun, EndsInGroup
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction, RowRun
from tidemark.decode.transactions.reorder_buffer.itemlog import Item
from tidemark.decode.types.codec import Dialect
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import (
    ChangeGroup,
    GroupItem,
    LogicalMessage,
    SchemaEvent,
    TransactionEnd,
    Truncation,
)
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.message_prefix import CAPTURE_PREFIXES
from tidemark.model.origins import NO_ORIGIN_EXCLUDED, ExcludedOrigins
from tidemark.model.position import Pointer, Position
from tidemark.model.relation import Relation
from tidemark.model.snapshot import Visibility

GROUP_ROWS = 65536
GROUP_BYTES = 4 << 20  # of tuples and the fixed size of finished batches, approximately: as much as the caches can hold
GROUP_BATCH_BYTES = 48 << 20  # fixed size of batches: 13,000 to 32,000 batches with 20 to 2 columns
UNCOUNTED_SHARE = 8  # part of the bound up to which the fixed size of batches of all known tables is not counted
ITEM_BYTES = 500  # counted for an item that is not a row, in addition to its content


def all_messages(_prefix: str) -> bool:
    """Select every logical message."""
    return True


NOT_COUNTED = EndsInGroup()  # stays empty


class _GroupEnd(NamedTuple):
    """The end of a group so far; a pointer is created only on request."""

    timeline: TimelineId
    commit_lsn: Lsn
    ordinal: int
    restart_lsn: Lsn


class GroupBuilder:
    """Collects the decoder's output; returns a group when one is full."""

    def __init__(
        self,
        dialects: Mapping[Oid, Dialect],
        *,
        selected: IsSelected = all_tables,
        root_of: RootOf = by_leaf,
        excluded: ExcludedOrigins = NO_ORIGIN_EXCLUDED,
        selects_message: Callable[[str], bool] = all_messages,
        counting: bool = False,
        copied: Copied = nothing_copied,
        copied_by: Collection[Visibility] = (),
        after: Position | None = None,
        behind: Visibility | None = None,
        left: LeftTables | None = None,
        rows_max: int = GROUP_ROWS,
        bytes_max: int = GROUP_BYTES,
        batch_bytes_max: int = GROUP_BATCH_BYTES,
    ) -> None:
        """`dialects` are by database; `selected` decides which relations are included, `root_of` whose name they get.

        `excluded` are replication origins; `selects_message` decides by a message's prefix. With `counting`,
        transactions have their counts, and changes are numbered by table.

        Items at or before the position `after` were delivered already and are left out, as is everything visible to
        the snapshot `behind`, after which the changes begin. `copied` decides by the snapshots `copied_by`; if these
        are not given, it is called for every row. `left`: the tables that have left the selection, whose DROP is
        delivered; None: it is not.
        """
        self._routes = PartitionRoutes(dialects, root_of)
        self._selected = SelectedItems(selected, self._routes, copied, left)
        self._builders = VersionBuilders(dialects, self._routes, self._selected.selects)
        self._filter = DeliveryFilter(
            self._routes, excluded=excluded, copied=copied, copied_by=copied_by, after=after, behind=behind
        )
        self._selects_message = selects_message
        self._counts = TransactionCounts() if counting else None
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._uncounted_bytes = batch_bytes_max // UNCOUNTED_SHARE
        self._arenas = Arenas()
        self._restart()

    def _restart(self) -> None:
        self._first: _GroupEnd | None = None
        self._last: _GroupEnd | None = None
        self._items: list[GroupItem] = []
        self._collected: GroupRows | None = None
        self._transactions = EndsInGroup()
        self._begun = EndsInGroup() if self._counts is not None else NOT_COUNTED
        self._row_count = 0
        self._byte_count = 0

    @property
    def byte_count(self) -> int:
        """Approximate bytes collected since the last group."""
        return self._byte_count + (self._collected.byte_count if self._collected is not None else 0)

    def add_transaction(self, transaction: CommittedTransaction) -> Iterator[ChangeGroup]:
        """Add a transaction and release it; yield the groups that it fills."""
        end = transaction.end
        first = self._filter.first_new(end)
        if first >= end.item_count:
            transaction.release()
            return
        yield from self._begin(end, first)
        for item in transaction.items():
            if not isinstance(item, RowRun):
                if item.position.ordinal < first:
                    self._count_item(item, end)
                    continue
                if self._is_full or self._ends_before(item):
                    yield self._close()
                self._add_item(item, transaction.inner_restart_lsn, end)
                continue
            row = item.row_at(first)
            self._count_rows(item, item.start, row, end)
            while row < item.stop:
                self._collection_for(item)  # NB: rows with other versions end the batches, which can fill the group
                if self._is_full:
                    yield self._close()
                row = self._add_rows(item, row, first, transaction)
        transaction.release()
        assert self._last is not None, end
        self._transactions.append(end)
        self._last = self._last._replace(restart_lsn=transaction.restart_lsn)
        if self._is_full:
            yield self._close()

    def add_run(self, run: CommittedRun) -> Iterator[ChangeGroup]:
        """Add small transactions; yield the groups that they fill, as if they were added one by one."""
        if not self._filter.is_all_new(run):
            for index in range(len(run)):
                yield from self.add_transaction(run.transaction(index))
            return
        index, count = 0, len(run)
        while index < count:
            stop = self._fitting(run, index)
            if stop > index:
                self._add_transactions(run, index, stop)
            else:
                yield from self.add_transaction(run.transaction(index))
            index = max(stop, index + 1)

    def _begin(self, end: TransactionEnd, first: int) -> Iterator[ChangeGroup]:
        """With `counting`, record where a transaction begins: in the group of its first item."""
        if self._counts is not None and first == 0:
            if self._is_full:
                yield self._close()
            self._begun.append(end)

    def add_message(self, message: LogicalMessage, restart_lsn: Lsn) -> Iterator[ChangeGroup]:
        """Add a message that belongs to no transaction; yield the group if it is full."""
        if self._filter.is_delivered(message):
            return
        self._add_item(message, restart_lsn)
        if self._is_full:
            yield self._close()

    def flush(self) -> ChangeGroup | None:
        """Return the collected group, full or not; None if it is empty."""
        return None if self._first is None else self._close()

    @property
    def _is_full(self) -> bool:
        rows = self._row_count + (len(self._collected) if self._collected is not None else 0)
        if self._collected is not None and self._collected.batch_bytes >= self._batch_bytes_max:
            return True
        return rows >= self._rows_max or self.byte_count >= self._bytes_max

    def _fitting(self, run: CommittedRun, index: int) -> int:
        """Return the first transaction of a run, from `index` on, that fills the group; or the run's end."""
        collected = self._collection_for(run)  # NB: first, as above
        rows = self._rows_max - self._row_count - len(collected)
        space = self._bytes_max - self._byte_count - collected.byte_count
        stop = len(run)
        rows_before, bytes_before = (run.rows_before(index), run.bytes_before(index)) if index else (0, 0)
        if run.versions.all_batch_bytes > self._uncounted_bytes:
            end = run.rows_before(stop)
            within = collected.within(run, rows_before, end, self._batch_bytes_max)
            stop = stop if within == end else bisect_left(run.row_ends, within, lo=index)

        if stop == index:
            return stop
        added = run.row_ends[stop - 1] - rows_before
        if added < rows and added * ENTRY_BYTES + run.byte_ends[stop - 1] - bytes_before < space:
            return stop

        def fills(number: int) -> bool:
            added = run.row_ends[number] - rows_before
            return added >= rows or added * ENTRY_BYTES + run.byte_ends[number] - bytes_before >= space

        return bisect_left(range(stop), True, lo=index, key=fills)

    def _collection_for(self, run: RowRun | CommittedRun) -> GroupRows:
        """Return the collection to which the rows of `run` belong."""
        if self._collected is None or not self._collected.fits(run):
            if self._collected is not None:
                self._end_batches()
            self._collected = GroupRows(run.versions, self._arenas, self._uncounted_bytes)
        return self._collected

    def _add_transactions(self, run: CommittedRun, start: int, stop: int) -> None:
        collected = self._collected
        assert collected is not None, "the caller has asked how many fit"
        ends, last = run.ends, stop - 1
        part = ends if stop - start == len(run.row_ends) else ends.part(start, stop)
        if self._first is None:
            self._first = _GroupEnd(ends.timeline, Lsn(ends.commit_lsns[start]), 0, run.inner_restart_lsn(start))
        commit_lsn, restart_lsn = Lsn(ends.commit_lsns[last]), Lsn(run.restart_lsns[last])
        self._last = _GroupEnd(ends.timeline, commit_lsn, ends.row_counts[last] - 1, restart_lsn)
        collected.append_transactions(run, start, stop)
        self._transactions.extend(part)
        if self._counts is not None:
            self._begun.extend(part)

    def _add_item(self, item: Item, restart_lsn: Lsn, end: TransactionEnd | None = None) -> None:
        position = item.position
        self._reach(_GroupEnd(position.timeline, position.commit_lsn, position.ordinal, restart_lsn))
        if isinstance(item, LogicalMessage | Truncation) and self._filter.is_excluded(item, end):
            return
        if isinstance(item, LogicalMessage):
            if item.prefix not in CAPTURE_PREFIXES and self._selects_message(item.prefix):
                self._items.append(item)
                self._byte_count += ITEM_BYTES + len(item.content)
            return
        items = list(self._selected.delivered(item, end))
        if items:
            self._end_batches()
            self._count_item(item, end)
            self._items.extend(items)
            self._byte_count += ITEM_BYTES * len(items)

    def _add_rows(self, run: RowRun, row: int, first: int, transaction: CommittedTransaction) -> int:
        """Add rows of `run` from `row` on until the group is full; return the first remaining row.

        Unselected rows before the ordinal `first` may have been skipped already.
        """
        end = transaction.end
        collected, chunk = self._collection_for(run), run.chunk
        stop = min(run.stop, row + self._rows_max - self._row_count - len(collected))
        space = self._bytes_max - self.byte_count
        if chunk.byte_count >= space:
            stop = row + rows_within(chunk.entries, row, stop, space)
        if run.versions.all_batch_bytes > self._uncounted_bytes:
            stop = collected.within(run, row, stop, self._batch_bytes_max)
        ordinal = max(first, run.ordinal(row))
        here = _GroupEnd(end.timeline, end.commit_lsn, ordinal, transaction.inner_restart_lsn)
        self._reach(here)
        self._last = here._replace(ordinal=run.ordinal(stop) - 1)
        for begin, finish in self._filter.rows(run, row, stop, end):
            collected.append(run, begin, finish, end)
        return stop

    def _count_item(self, item: Item, end: TransactionEnd | None) -> None:
        """Count a TRUNCATE that is delivered now or was delivered before a restart."""
        if (
            self._counts is None
            or end is None
            or not isinstance(item, Truncation)
            or self._filter.is_excluded(item, end)
        ):
            return
        for routed in self._routes.items(item):
            if isinstance(routed, Truncation) and self._selected.selects_item(routed, end):
                self._counts.count(end.commit_lsn, routed.database, routed.relation, 1)

    def _count_rows(self, run: RowRun, start: int, stop: int, end: TransactionEnd) -> None:
        """Count rows that were delivered before a restart."""
        if self._counts is None or start == stop:
            return
        versions = run.versions
        for begin, finish in self._filter.rows(run, start, stop, end):
            for number, count in Counter(run.chunk.numbers(begin, finish)).items():
                relation = versions.relations[number]
                if self._selected.selects(relation):
                    target = self._routes.target(relation)
                    self._counts.count(end.commit_lsn, versions.databases[number], target, count)

    def _ends_before(self, item: Item) -> bool:
        if self._holds_changes and self._selected.ends_capture(item):
            return True
        return self._holds_rows and self._selected.changes_types(item)

    @property
    def _holds_rows(self) -> bool:
        return self._row_count > 0 or (self._collected is not None and len(self._collected) > 0)

    @property
    def _holds_changes(self) -> bool:
        """Return whether the group has anything but events by which tables leave the selection: those come first."""
        if self._collected is not None or not self._items:
            return self._collected is not None
        last = self._items[-1]
        return not isinstance(last, SchemaEvent) or last.capture is not CaptureChange.ENDS

    def selects(self, relation: Relation) -> bool:
        """Return whether the rows of a relation version are delivered."""
        return self._selected.selects(relation)

    def _reach(self, reached: _GroupEnd) -> None:
        if self._first is None:
            self._first = reached
        self._last = reached

    def _end_batches(self) -> None:
        collected, self._collected = self._collected, None
        if collected is None:
            return
        tables, row_count, byte_count = self._builders.build(collected)
        self._byte_count += collected.byte_count + byte_count
        self._row_count += row_count
        for batches in tables:
            ordered = in_stream_order(batches) if len(batches) > 1 else batches
            self._items.extend(self._counts.number(ordered) if self._counts is not None else ordered)

    def _close(self) -> ChangeGroup:
        self._end_batches()
        first, last = self._first, self._last
        assert first is not None, "a full group has items"
        assert last is not None, "a full group has items"
        counts, ends = self._counts, self._transactions
        group = ChangeGroup(
            Position(first.timeline, first.commit_lsn, first.ordinal),
            Pointer(Position(last.timeline, last.commit_lsn, last.ordinal), last.restart_lsn),
            self._items,
            ends if counts is None else counts.counted_ends(ends),
            self._row_count,
            self._byte_count,
            self._begun,
        )
        self._restart()
        return group
