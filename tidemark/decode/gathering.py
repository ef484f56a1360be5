"""Rows of many transactions and relations on their way into batches: taken in runs, sorted by relation at the end.

Two passes, as everywhere where rows become columns: what a run costs does not depend on its rows, and what a row costs
is one turn of a loop (`row_entries`).
"""

from array import array
from collections.abc import Callable, Iterator

from tidemark.decode.batch_costs import MetVersions
from tidemark.decode.batches import RowSpans
from tidemark.decode.committed_run import CommittedRun
from tidemark.decode.row_entries import ENTRY_BYTES, arrange, narrow, shift, tally, tuple_bytes
from tidemark.decode.rowlog import RelationVersions
from tidemark.decode.transactions import RowRun
from tidemark.model.change import TransactionEnd
from tidemark.model.errors import InternalError
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation

ARENA_KEPT_BYTES = 64 << 20  # an arena that had to be larger is not kept


class Arena:
    """Bytes put end to end, in memory that is kept from one group to the next: fresh pages cost more than the copy."""

    __slots__ = ("_buffer", "size")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.size = 0

    def put(self, part: bytes | bytearray | memoryview) -> None:
        """Put `part` behind what is there."""
        end = self.size + len(part)
        if end <= len(self._buffer):
            memoryview(self._buffer)[self.size : end] = part
        else:
            del self._buffer[self.size :]
            self._buffer += part
        self.size = end

    def content(self) -> bytearray:
        """Return what was put since `clear`: good until the next `put`."""
        del self._buffer[self.size :]
        return self._buffer

    def clear(self) -> None:
        """Begin anew."""
        if len(self._buffer) > ARENA_KEPT_BYTES:
            self._buffer = bytearray()
        self.size = 0


class Arenas:
    """Where a grouper's rows are gathered, one group after the other."""

    __slots__ = ("entries", "tuples")

    def __init__(self) -> None:
        self.entries = Arena()
        self.tuples = Arena()


class GatheredRows:
    """Rows in stream order, each run with what its transaction says of it."""

    __slots__ = (
        "_commit_lsns",
        "_entries",
        "_run_ordinals",
        "_run_rows",
        "_timelines",
        "_times_us",
        "_tuples",
        "_uncounted_bytes",
        "_versions",
        "_xids",
        "met",
    )

    def __init__(self, versions: RelationVersions, arenas: Arenas, uncounted_bytes: int) -> None:
        """Gather in `arenas`: what others gathered there is gone.

        Tables are counted where batches of all of them take more than `uncounted_bytes` beside their rows.
        """
        self._versions = versions
        self.met = MetVersions(versions.batch_bytes)
        self._uncounted_bytes = uncounted_bytes
        self._entries = arenas.entries
        self._tuples = arenas.tuples
        self._entries.clear()
        self._tuples.clear()
        self._run_rows = array("q")  # entries up to the run's end
        self._run_ordinals = array("q")  # of its first row
        self._timelines = array("i")
        self._commit_lsns = array("q")
        self._times_us = array("q")
        self._xids = array("q")

    def __len__(self) -> int:
        return self._entries.size // ENTRY_BYTES

    @property
    def byte_count(self) -> int:
        """Memory taken, about."""
        return self._entries.size + self._tuples.size

    def fits(self, run: RowRun | CommittedRun) -> bool:
        """Tell if the run's entries name relation versions by the same numbers."""
        return run.versions is self._versions

    def within(self, run: RowRun | CommittedRun, start: int, stop: int, most: int) -> int:
        """Return the entry from `start` on by which batches take `most` beside their rows, counted in; or `stop`."""
        return self.met.within(run.chunk.entries if isinstance(run, RowRun) else run.entries, start, stop, most)

    def take(self, run: RowRun, start: int, stop: int, end: TransactionEnd) -> None:
        """Take the rows `start` to `stop` of a run of the transaction `end`."""
        chunk = run.chunk
        if self._versions.all_batch_bytes > self._uncounted_bytes:
            self.met.take(chunk.entries, start, stop)
        if stop - start == len(chunk):  # most transactions are small
            self._entries.put(chunk.entries)
            self._tuples.put(chunk.tuples)
        else:
            begin = run.tuples_at + tuple_bytes(chunk.entries, run.start, start)
            size = tuple_bytes(chunk.entries, start, stop)
            self._entries.put(memoryview(chunk.entries)[start * ENTRY_BYTES : stop * ENTRY_BYTES])
            self._tuples.put(memoryview(chunk.tuples)[begin : begin + size])
        self._run_rows.append(len(self))
        self._run_ordinals.append(run.ordinal(start))
        self._timelines.append(end.timeline)
        self._commit_lsns.append(end.commit_lsn)
        self._times_us.append(end.commit_time_us)
        self._xids.append(end.xid)

    def take_transactions(self, run: CommittedRun, start: int, stop: int) -> None:
        """Take the rows of the transactions `start` to `stop`."""
        first, ends, count = run.rows_before(start), run.ends, stop - start
        row_ends = array("q", bytes(8 * count))
        shift(run.row_ends, start, stop, len(self) - first, row_ends)
        if self._versions.all_batch_bytes > self._uncounted_bytes:
            self.met.take(run.entries, first, run.rows_before(stop))
        self._entries.put(memoryview(run.entries)[first * ENTRY_BYTES : run.rows_before(stop) * ENTRY_BYTES])
        self._tuples.put(memoryview(run.tuples)[run.bytes_before(start) : run.bytes_before(stop)])
        self._run_rows += row_ends
        self._run_ordinals += array("q", bytes(8 * count))
        self._timelines += array("i", [ends.timeline]) * count
        self._commit_lsns += ends.commit_lsns[start:stop]
        self._times_us += ends.times_us[start:stop]
        xids = array("q", bytes(8 * count))
        narrow(ends.full_xids, start, stop, xids)
        self._xids += xids

    def by_relation(self, wanted: Callable[[Relation], bool]) -> Iterator[tuple[Oid, Relation, RowSpans]]:
        """Give out the rows of each wanted relation version, in the order in which the versions were first seen."""
        versions = self._versions
        row_counts = array("q", [0]) * len(versions)
        if tally(self._entries.content(), row_counts) < 0:
            raise InternalError("gathered rows name a relation version that is none")
        chosen = [number for number, count in enumerate(row_counts) if count and wanted(versions.relations[number])]
        next_row = array("q", [-1]) * len(versions)
        rows = 0
        for number in chosen:
            next_row[number] = rows
            rows += row_counts[number]
        columns = self._arranged(rows, next_row)
        for number in chosen:
            stop = next_row[number]
            spans = columns.part(stop - row_counts[number], stop)
            yield versions.databases[number], versions.relations[number], spans

    def _arranged(self, rows: int, next_row: "array[int]") -> RowSpans:
        """Return all rows, those of one relation version next to each other."""
        out = RowSpans(self._tuples.content(), rows)
        moved = arrange(
            self._entries.content(),
            self._tuples.size,
            self._run_rows,
            self._run_ordinals,
            self._timelines,
            self._commit_lsns,
            self._times_us,
            self._xids,
            next_row,
            out.op,
            out.before_kind,
            out.origin,
            out.lsn,
            out.ordinal,
            out.timeline,
            out.commit_lsn,
            out.commit_time_us,
            out.xid,
            out.new_at,
            out.new_length,
            out.old_at,
            out.old_length,
        )
        if moved != rows:
            raise InternalError(f"{moved} of {rows} gathered rows have tuples")
        return out
