"""A streaming query over the outbox: plans ranges that end at group ends, and confirms them for its reader.

Values that Spark requests again are identical byte for byte, or an error is raised; there are never fewer rows.

Spark calls the reader in three kinds of processes: `read` runs in a worker, on a copy that was pickled once, so a
partition contains all that it needs.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from tidemark.io.host.loaded_objects import skipping_loaded_objects
from tidemark.io.readers.outbox import OutboxTrimmed
from tidemark.model.errors import ConfigError
from tidemark.model.position import Sequence
from tidemark.pipeline.source.contents import Contents
from tidemark.pipeline.source.offsets import Offset, OffsetMovedBack, OutboxReplaced
from tidemark.pipeline.source.opened_outbox import open_outbox
from tidemark.pipeline.source.options import FORMAT, Evolution, SourceOptions
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.source.outbox_range import OutboxRange, divide
from tidemark.pipeline.source.remedies import stating_remedies
from tidemark.pipeline.source.rows.query_table import ChangesMissing, ColumnsMixed, SchemaChanged
from tidemark.wire.state.readers import Reader, ReaderKind
from tidemark.wire.values import ValueHeader, ValueKind

LOOK_S, LOOK_S_MAX = 0.02, 0.05  # between two checks for new values: at first, and after a long time without one
SERVER_LOOK_S, SERVER_LOOK_S_MAX = 0.05, 0.25  # the same by requests to a server
LOOK_SHARE = 0.1  # of the time without values
TRANSACTION_WAIT_S = 1.0  # for the next group of a transaction: twenty times what its 65,536 rows take to decode


class OutboxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans ranges of the outbox and reads them."""

    def __init__(self, options: SourceOptions, contents: Contents) -> None:
        self._options = options
        self._contents = contents
        self._target: Sequence | None = None  # of AvailableNow
        self._awaited: tuple[Sequence, float] | None = None  # a group whose transaction continues, and until when
        self._confirmed: Sequence | None = None  # as applied, by this query run
        self._run: int | None = None  # number of this query run; None: it has not used its reader yet
        self._quiet_since_s: float | None = None  # without new values

    @stating_remedies()
    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a query without a checkpoint starts: where its reader is, if it is registered."""
        reader = self._options.reader
        if reader is None:
            return self._offset(self._options.start_sequence)
        outbox = self._outbox()
        outbox.check_active(reader)
        if outbox.registered(reader) is not None:
            return self._offset(self._begin_run(outbox, reader).applied)
        start = self._options.start.find(outbox)
        begun = self._begin_run(outbox, reader)
        return self._offset(outbox.confirm(reader, start, start, run=begun.run).applied)

    @stating_remedies()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the bound of a batch: at most half of the outbox, or Spark would wait for itself."""
        return ReadMaxBytes(min(self._options.batch_bytes, self._outbox().outbox_bytes_max // 2))

    @stating_remedies()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of an AvailableNow query."""
        self._target = self._outbox().head()

    @stating_remedies()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch, which is a group end; `start` if none comes within `pollTimeoutMs`.

        Spark has completed the batches up to `start`. It calls this again within milliseconds after a call without new
        values. Raises `SchemaChanged` if the next group does not fit, and `ChangesMissing` if the capture of the table
        ends with it.
        """
        until_s = time.monotonic() + self._options.poll_timeout_ms / 1000
        after = self._sequence(start)
        self._check_columns(start)
        self._confirm_applied(after)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if bytes_max is None and not isinstance(limit, ReadAllAvailable):
            raise ConfigError(f"format {FORMAT!r} limits batches by bytes, not by {limit}")
        outbox = self._outbox()
        with self._naming_lapse():
            after = self._resumed(outbox, after)
            while True:
                head = outbox.head()
                end = self._next_end(outbox, after, bytes_max)
                if end > after:
                    self._quiet_since_s = None
                if end > after or self._target is not None or not self._await_values(outbox, head, until_s):
                    # NB: of the outbox of `start`; it may have been renumbered meanwhile, which the next call reports.
                    return self._offset(end, str(start["outbox"]))

    def _next_end(self, outbox: OutboxPort, after: Sequence, bytes_max: int | None) -> Sequence:
        end = outbox.head() if bytes_max is None else outbox.plan(after, bytes_max)
        if self._target is not None:
            end = max(after, min(end, self._target))
        elif bytes_max is not None:
            end = self._complete_transactions(outbox, after, end)
        return self._before_misfit(outbox, after, end)

    def _await_values(self, outbox: OutboxPort, head: Sequence, until_s: float) -> bool:
        """Wait until the outbox has values after `head`; false if it has none at `until_s`."""
        if self._awaited is not None and self._awaited[0] == head:
            until_s = min(until_s, self._awaited[1])
        while (remaining_s := until_s - (now_s := time.monotonic())) > 0:
            time.sleep(min(self._look_s(now_s), remaining_s))
            if outbox.head() != head:
                self._quiet_since_s = None
                return True
        return False

    def _look_s(self, now_s: float) -> float:
        """Return the time to the next look, which grows with the time without values."""
        least_s, most_s = (LOOK_S, LOOK_S_MAX) if self._options.server is None else (SERVER_LOOK_S, SERVER_LOOK_S_MAX)
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s
        return min(most_s, max(least_s, LOOK_SHARE * (now_s - self._quiet_since_s)))

    def _complete_transactions(self, outbox: OutboxPort, after: Sequence, end: Sequence) -> Sequence:
        """Wait a bounded time for the rest of a transaction, so that one merge applies it, and one batch shows it."""
        if end < after + 2 or end != outbox.head():
            return end
        rows, ends = outbox.headers(Sequence(end - 2), end)
        if rows.kind is not ValueKind.BATCH or ends.row_count:
            return end  # no transaction continues; or another one has ended in the group, and must not wait
        before = Sequence(ends.group_first - 1)
        if before > after:
            return before
        now_s = time.monotonic()
        if self._awaited is None or self._awaited[0] != end:
            self._awaited = end, now_s + TRANSACTION_WAIT_S
        return after if now_s < self._awaited[1] else end

    def _before_misfit(self, outbox: OutboxPort, after: Sequence, end: Sequence) -> Sequence:
        """Return the end of the last group whose columns the query can read, and before which no change is missing."""
        if not self._contents.columns_id or end == after:
            return end
        for header in outbox.headers(after, end):
            misfit, gap = self._contents.misfit(outbox, header), self._contents.gap(outbox, header)
            if misfit is None and gap is None:
                continue
            if header.group_first > after + 1:
                return Sequence(header.group_first - 1)
            if misfit is not None:
                raise SchemaChanged(f"other columns from value {header.group_first} of the outbox on: {misfit}")
            assert gap is not None, "one of both is the reason"
            raise ChangesMissing(gap)
        return end

    @stating_remedies()
    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the outbox's end, for the query's progress."""
        return self._offset(self._outbox().head())

    @stating_remedies()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Divide a range into partitions; none if the driver reads the values itself."""
        after, upto = self._sequence(start), self._sequence(end)
        self._check_columns(start)
        if upto < after:
            raise OffsetMovedBack(f"Spark requests outbox values from {after} back to {upto}")
        outbox = self._outbox()
        self._ensure_run(outbox)
        with self._naming_lapse():
            after = self._resumed(outbox, after)
            if upto <= after or self._options.offsets_only:
                return []
            headers = outbox.headers(after, upto)
            self._check_planned(outbox, headers)
            return divide(outbox.outbox_id, after, upto, headers, lambda header: self._contents.wants(outbox, header))

    def _check_planned(self, outbox: OutboxPort, headers: Iterable[ValueHeader]) -> None:
        """Raise `ColumnsMixed` if a range has rows with other columns: it was planned by a query that had these."""
        misfit = next(filter(None, (self._contents.misfit(outbox, header) for header in headers)), None)
        if misfit is not None:
            raise ColumnsMixed(f"the batch was planned with other columns, and has rows of both: {misfit}")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the contents of a partition."""
        assert isinstance(partition, OutboxRange), partition
        with skipping_loaded_objects(), stating_remedies(), self._naming_lapse():
            outbox = open_outbox(self._options, is_started=True)
            self._sequence({"outbox": partition.outbox, "sequence": partition.after})
            yield from self._contents.read(outbox, Sequence(partition.after), Sequence(partition.upto))

    @stating_remedies()
    def commit(self, end: Offset) -> None:
        """Confirm for the query's reader that nothing up to `end` is requested again; without a reader do nothing."""
        if self._options.reader is not None:
            sequence, outbox = self._sequence(end), self._outbox()
            run = self._ensure_run(outbox)
            outbox.confirm(self._options.reader, sequence, sequence, run=run)

    def stop(self) -> None:
        """Do nothing: the process ends, and nothing depends on it."""

    def _confirm_applied(self, after: Sequence) -> None:
        """Confirm that the batches up to `after` are complete: Spark's `commit` comes only with the next data."""
        if self._options.reader is None or self._confirmed == after:
            return
        outbox = self._outbox()
        name = self._options.reader
        run = self._ensure_run(outbox)
        before = outbox.registered(name)
        if before is None:  # it was dropped
            before = self._begin_run(outbox, name)
            run = before.run
        outbox.confirm(name, after, before.replayable, run=run)
        self._confirmed = after

    def _ensure_run(self, outbox: OutboxPort) -> int:
        """Begin a run of the query at the first use of its reader; return its number, 0 without a reader."""
        if self._options.reader is None:
            return 0
        return self._begin_run(outbox, self._options.reader).run if self._run is None else self._run

    def _begin_run(self, outbox: OutboxPort, reader: str) -> Reader:
        """Use the reader for this query alone; raise `OtherReaderKind`."""
        begun = outbox.register(reader, is_required=self._options.required, kind=ReaderKind.QUERY)
        self._run = begun.run
        return begun

    def _resumed(self, outbox: OutboxPort, after: Sequence) -> Sequence:
        """Return where the query continues: behind the values that were gone when its reader was resumed."""
        if self._options.reader is None or after >= outbox.ledger().trimmed:
            return after
        reader = outbox.registered(self._options.reader)
        return after if reader is None else reader.start(after)

    @contextmanager
    def _naming_lapse(self) -> Iterator[None]:
        """Raise `ReaderLapsed` or `ReaderTakenOver` if that is why values are gone."""
        try:
            yield
        except OutboxTrimmed:
            if self._options.reader is not None:
                self._outbox().check_active(self._options.reader)
                self._outbox().check_newest_run(self._options.reader, self._run or 0)
            raise

    def _check_columns(self, start: Offset) -> None:
        """Raise `SchemaChanged` if the checkpoint is of a query with other columns, and the query may not change."""
        if self._options.evolution is Evolution.FAIL and start.get("columns", "") != self._contents.columns_id:
            change = self._contents.change_from(self._outbox(), str(start.get("columns", "")))
            named = f", which have changed: {change}" if change else ""
            raise SchemaChanged(f"the checkpoint belongs to a query with other columns{named}")

    def _outbox(self) -> OutboxPort:
        return open_outbox(self._options)

    def _offset(self, sequence: Sequence, outbox_id: str | None = None) -> Offset:
        offset: Offset = {"outbox": outbox_id or self._outbox().outbox_id, "sequence": sequence}
        return offset | {"columns": self._contents.columns_id} if self._contents.columns_id else offset

    def _sequence(self, offset: Offset) -> Sequence:
        outbox, known = self._outbox(), offset["outbox"]
        if known != (mine := outbox.outbox_id):
            raise OutboxReplaced(f"the checkpoint belongs to outbox {known}, but {outbox.place} has {mine}")
        return Sequence(int(offset["sequence"]))
