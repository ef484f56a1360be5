"""Collects the rows of many transactions and relations in runs, then sorts them by relation for batches.

Rows become columns in two passes: the cost of a run does not depend on its rows, and a row costs one iteration of a
compiled loop (`row_entries`).
"""

from array import array
from collections.abc import Callable

from tidemark.decode.arrow.batch_costs import VersionCosts
from tidemark.decode.arrow.batches import RowSpans
from tidemark.decode.datum.row_entries import ALL_KNOWN, ENTRY_BYTES, RowSorter, has_selected, put_runs, tuple_bytes
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import RowRun
from tidemark.decode.transactions.reorder_buffer.rowlog import RelationVersions
from tidemark.model.change import TransactionEnd
from tidemark.model.errors import InternalError
from tidemark.model.relation import Relation

ARENA_KEPT_BYTES = 64 << 20  # a larger arena is not kept
SORTED_ROWS = 1024  # in memory that is reused
ARENA_GROWS_BYTES = 1 << 20  # maximum growth beyond the present need; up to here the size doubles


class Arena:
    """Contiguous bytes in memory that is reused from group to group: allocating new pages costs more than the copy."""

    __slots__ = ("_buffer", "size")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.size = 0

    def put(self, part: bytes | bytearray | memoryview) -> None:
        """Append `part`."""
        end = self.size + len(part)
        if end > len(self._buffer):
            self._buffer += bytes(max(end - len(self._buffer), min(len(self._buffer), ARENA_GROWS_BYTES)))
        memoryview(self._buffer)[self.size : end] = part
        self.size = end

    def content(self) -> bytearray:
        """Return the bytes put since `clear`: valid until the next `put`."""
        del self._buffer[self.size :]
        return self._buffer

    def clear(self) -> None:
        """Remove the content."""
        if len(self._buffer) > ARENA_KEPT_BYTES:
            self._buffer = bytearray()
        self.size = 0


class Runs:
    """The transaction's attributes of each run of rows, as columns whose memory is reused."""

    __slots__ = ("columns", "count")

    def __init__(self) -> None:
        self.count = 0  # of the values in the columns: those put since `clear`
        # Entries up to the run's end, ordinal of its first row, timeline, commit LSN, time, 32-bit or 64-bit xid.
        self.columns = tuple(array(code) for code in "qqiqqq")

    def put(self, rows: int, ordinal: int, end: TransactionEnd) -> None:
        """Append a run of the transaction `end`."""
        at = self._make_space(1)
        attributes = (rows, ordinal, end.timeline, end.commit_lsn, end.commit_time_us, end.xid)
        for column, value in zip(self.columns, attributes, strict=True):
            column[at] = value

    def put_transactions(self, run: CommittedRun, start: int, stop: int, more_rows: int) -> None:
        """Append a run for each of the transactions `start` to `stop`, with `more_rows` added to their row ends."""
        ends = run.ends
        put_runs(
            run.row_ends,
            ends.commit_lsns,
            ends.times_us,
            ends.full_xids,
            start,
            stop,
            more_rows,
            ends.timeline,
            self._make_space(stop - start),
            *self.columns,
        )

    def clear(self) -> None:
        """Remove all runs."""
        self.count = 0

    def _make_space(self, count: int) -> int:
        """Return the index of the next `count` runs."""
        at = self.count
        self.count += count
        space = len(self.columns[0])
        if self.count > space:
            for column in self.columns:
                column.frombytes(bytes(column.itemsize * max(self.count - space, space)))
        return at


class Arenas:
    """The reused memory in which a group builder collects rows, one group after another."""

    __slots__ = ("entries", "numbered_by", "rows", "runs", "sorter", "tuples")

    def __init__(self) -> None:
        self.entries = Arena()
        self.tuples = Arena()
        self.runs = Runs()
        self.rows = RowSpans(bytearray(), SORTED_ROWS)
        self.sorter = RowSorter(self.rows)
        self.numbered_by: RelationVersions | None = None  # of the sorter's selection


class GroupRows:
    """Rows in stream order, and each run's transaction attributes."""

    __slots__ = ("_arenas", "_costs", "_entries", "_passed_over", "_runs", "_tuples", "_uncounted_bytes", "versions")

    def __init__(self, versions: RelationVersions, arenas: Arenas, uncounted_bytes: int) -> None:
        """Collect in `arenas` and clear them first.

        Tables are counted if batches of all tables together exceed `uncounted_bytes` without their rows.
        """
        self.versions = versions  # which the entries name by number
        self._costs: VersionCosts | None = None  # made when it is needed
        self._uncounted_bytes = uncounted_bytes
        self._arenas = arenas
        self._entries, self._tuples, self._runs = arenas.entries, arenas.tuples, arenas.runs
        self._entries.clear()
        self._tuples.clear()
        self._runs.clear()
        arenas.rows.data = bytearray()
        self._passed_over = 0  # entries of transactions without selected rows: counted, but not collected

    def __len__(self) -> int:
        return self._entries.size // ENTRY_BYTES + self._passed_over

    @property
    def byte_count(self) -> int:
        """Approximate memory used."""
        return self._entries.size + self._passed_over * ENTRY_BYTES + self._tuples.size

    @property
    def batch_bytes(self) -> int:
        """Fixed size of one batch for each version, as far as it is counted."""
        return self._costs.byte_count if self._costs is not None else 0

    def fits(self, run: RowRun | CommittedRun) -> bool:
        """Return whether the run's entries number the relation versions in the same way."""
        return run.versions is self.versions

    def within(self, run: RowRun | CommittedRun, start: int, stop: int, most: int) -> int:
        """Return the end of the entries from `start` on whose batches' fixed size reaches `most`; or `stop`."""
        return self._counted().within(run.chunk.entries if isinstance(run, RowRun) else run.entries, start, stop, most)

    def append(self, run: RowRun, start: int, stop: int, end: TransactionEnd) -> None:
        """Add the rows `start` to `stop` of a run of the transaction `end`."""
        chunk = run.chunk
        if self.versions.all_batch_bytes > self._uncounted_bytes:
            self._counted().add(chunk.entries, start, stop)
        if stop - start == len(chunk):  # most transactions are small
            self._entries.put(chunk.entries)
            self._tuples.put(chunk.tuples)
        else:
            begin = run.tuples_at + tuple_bytes(chunk.entries, run.start, start)
            size = tuple_bytes(chunk.entries, start, stop)
            self._entries.put(memoryview(chunk.entries)[start * ENTRY_BYTES : stop * ENTRY_BYTES])
            self._tuples.put(memoryview(chunk.tuples)[begin : begin + size])
        self._runs.put(self._entries.size // ENTRY_BYTES, run.ordinal(start), end)

    def append_transactions(self, run: CommittedRun, start: int, stop: int) -> None:
        """Add the rows of the transactions `start` to `stop`."""
        first, last = run.row_ends[start - 1] if start else 0, run.row_ends[stop - 1]
        if self.versions.all_batch_bytes > self._uncounted_bytes:
            self._counted().add(run.entries, first, last)
        if not has_selected(run.entries, first, last):
            self._passed_over += last - first
            return
        self._runs.put_transactions(run, start, stop, self._entries.size // ENTRY_BYTES - first)
        if stop - start == len(run.row_ends):  # most often
            self._entries.put(run.entries)
            self._tuples.put(run.tuples)
        else:
            self._entries.put(memoryview(run.entries)[first * ENTRY_BYTES : last * ENTRY_BYTES])
            self._tuples.put(memoryview(run.tuples)[run.bytes_before(start) : run.bytes_before(stop)])

    def by_version(self, selected: Callable[[Relation], bool]) -> tuple[RowSpans, list[tuple[int, int, int]]]:
        """Return the rows of the selected relation versions, and the number of each version with its rows.

        They are sorted by version. `selected` is called once for each version. The rows are valid until the next call
        for these arenas.
        """
        entries, runs, sorter = self._entries.content(), self._arenas.runs, self._arenas.sorter
        relations = self.versions.relations
        if self._arenas.numbered_by is not self.versions:
            self._arenas.numbered_by = self.versions
            sorter.forget()
        while (number := sorter.count(entries, len(relations))) != ALL_KNOWN:
            sorter.select(number, selected(relations[number]))
        rows, count = self._arenas.rows, len(entries) // ENTRY_BYTES
        if count > SORTED_ROWS:
            rows = RowSpans(bytearray(), count)
            sorter.hold(rows)
        rows.data = self._tuples.content()
        ranges = sorter.sort(entries, self._tuples.size, runs.count, *runs.columns)
        if ranges is None:
            raise InternalError("collected rows and their tuples do not match")
        if rows is not self._arenas.rows:
            sorter.hold(self._arenas.rows)
        return rows, ranges

    def _counted(self) -> VersionCosts:
        if self._costs is None:
            self._costs = VersionCosts(self.versions.batch_bytes)
        return self._costs
