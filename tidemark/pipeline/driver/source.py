"""The outbox as a source of Spark's Structured Streaming: one row for each value, as bytes, or only its header.

Spark's offset is a sequence of one outbox, with the id of that outbox, always at the end of a group. Values that Spark
requests again are identical byte for byte, or an error is raised; there are never fewer rows. The values remain
encoded inside Spark, because Spark's rows cost more than all other steps; `tidemark.pipeline.driver.feed` decodes them.

Spark calls the reader in three kinds of processes: `read` runs in a worker, on a copy that was pickled once, so a
partition contains all that it needs. NB: offsets are compared as text, so keys and their order never change.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from tidemark.io.host.log_output import get_log
from tidemark.io.state.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.write_guard import reporting_stuck_writers
from tidemark.model.errors import ConfigError, StateError
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.wire.values import ValueKind, encode_header

FORMAT = "tidemark"
BATCH_BYTES = 64 << 20
TRANSACTION_WAIT_S = 1.0  # for the next group of a transaction: twenty times what its 65,536 rows take to decode
PARTITION_BYTES = 16 << 20  # a second partition costs 17 ms: worth it above this size
PARTITIONS_MAX = 16
RECORD_BATCH_BYTES = 32 << 20
RECORD_BATCH_HEADERS = 10_000
SCHEMA = pa.schema([pa.field("sequence", pa.int64()), pa.field("value", pa.binary())])
DDL = "sequence BIGINT, value BINARY"
Offset = dict[str, str | int]


class OutboxReplaced(StateError):
    """A checkpoint of another outbox than the one in the state folder."""

    hint = "delete Spark's checkpoint: the lake stores its positions"


class OffsetMovedBack(StateError):
    """A range that ends before it starts: Spark accepts such a range without an error."""

    hint = "delete Spark's checkpoint: the lake stores its positions"


@dataclass(frozen=True)
class SourceOptions:
    """The options of `option()`."""

    state: Path
    start: Sequence
    batch_bytes: int
    shared_with_group: bool
    headers_only: bool = False  # for a driver that reads values from the outbox (`tidemark.pipeline.driver.portions`)

    @classmethod
    def parse(cls, options: dict[str, str]) -> "SourceOptions":
        """Parse the options; Spark passes their names in lower case."""
        given = {name.lower(): value for name, value in options.items()}
        known = {"state", "startingsequence", "maxbatchbytes", "sharedwithgroup", "headersonly", "path"}
        unknown = given.keys() - known
        state = given.get("state") or given.get("path")
        if unknown or not state:
            raise ConfigError(
                f"options of format {FORMAT!r}: unknown {sorted(unknown)}"
                if unknown
                else f"{FORMAT!r} requires the option state",
                hint='use option("state", FOLDER), startingSequence, maxBatchBytes, sharedWithGroup, headersOnly',
            )
        return cls(
            Path(state),
            Sequence(int(given.get("startingsequence", NO_SEQUENCE))),
            int(given.get("maxbatchbytes", BATCH_BYTES)),
            given.get("sharedwithgroup", "false").lower() == "true",
            given.get("headersonly", "false").lower() == "true",
        )

    def folder(self) -> StateFolder:
        """Return the state folder."""
        return StateFolder(self.state, self.shared_with_group)


class OutboxSource(DataSource):
    """The data source `tidemark`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns."""
        return DDL

    def streamReader(self, schema: object) -> "OutboxStreamReader":  # noqa: N802, ARG002 - Spark's name, by keyword
        """Return the reader of one query."""
        return OutboxStreamReader(SourceOptions.parse(dict(self.options)))


@dataclass
class OutboxRange(InputPartition):
    """The values of (after, upto] of one outbox."""

    outbox: str
    after: int
    upto: int


class OutboxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans ranges of the outbox and reads them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Sequence | None = None  # of AvailableNow
        self._awaited: tuple[Sequence, float] | None = None  # a group whose transaction continues, and until when

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a query without a checkpoint starts."""
        return self._offset(self._options.start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the bound of a batch: at most half of the outbox, or Spark would wait for itself."""
        return ReadMaxBytes(min(self._options.batch_bytes, self._reader().outbox_bytes_max // 2))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of an AvailableNow query."""
        self._target = self._reader().head()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch, which is a group end. Called every few milliseconds."""
        after = self._sequence(start)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if bytes_max is None and not isinstance(limit, ReadAllAvailable):
            raise ConfigError(f"format {FORMAT!r} limits batches by bytes, not by {limit}")
        reader = self._reader()
        end = reader.head() if bytes_max is None else reader.plan(after, bytes_max)
        if self._target is not None:
            end = max(after, min(end, self._target))
        elif bytes_max is not None:
            end = self._complete_transactions(reader, after, end)
        return self._offset(end)

    def _complete_transactions(self, reader: OutboxReader, after: Sequence, end: Sequence) -> Sequence:
        """Wait a bounded time for the rest of a transaction, so that one merge applies it, and one batch shows it."""
        if end < after + 2 or end != reader.head():
            return end
        rows, ends = reader.headers(Sequence(end - 2), end)
        if rows.kind is not ValueKind.BATCH or ends.row_count:
            return end  # no transaction continues; or another one has ended in the group, and must not wait
        before = Sequence(ends.group_first - 1)
        if before > after:
            return before
        now_s = time.monotonic()
        if self._awaited is None or self._awaited[0] != end:
            self._awaited = end, now_s + TRANSACTION_WAIT_S
        return after if now_s < self._awaited[1] else end

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the outbox's end, for the query's progress."""
        return self._offset(self._reader().head())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Split a range into partitions of about `PARTITION_BYTES`; one partition for headers only."""
        after, upto = self._sequence(start), self._sequence(end)
        if upto < after:
            raise OffsetMovedBack(f"Spark requests outbox values from {after} back to {upto}")
        if self._options.headers_only and upto > after:
            return [OutboxRange(str(start["outbox"]), after, upto)]
        headers = self._reader().headers(after, upto)
        total = sum(header.payload_length for header in headers)
        count = max(1, min(PARTITIONS_MAX, total // PARTITION_BYTES))
        cuts, filled = [after], 0
        for header in headers:
            filled += header.payload_length
            if filled * count >= total * len(cuts) and header.sequence < upto:
                cuts.append(header.sequence)
        ends = [*cuts[1:], upto]
        return [OutboxRange(str(start["outbox"]), a, b) for a, b in zip(cuts, ends, strict=True) if b > a]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the values of a partition: header and payload together, or only the header."""
        assert isinstance(partition, OutboxRange), partition
        self._sequence({"outbox": partition.outbox, "sequence": partition.after})
        if self._options.headers_only:
            yield from self._read_headers(partition)
            return
        sequences: list[int] = []
        waiting: list[bytes] = []
        byte_count = 0
        for value in self._reader().read(Sequence(partition.after), Sequence(partition.upto)):
            sequences.append(value.header.sequence)
            waiting.append(encode_header(value.header) + value.payload)
            byte_count += len(waiting[-1])
            if byte_count >= RECORD_BATCH_BYTES:
                yield _batch(sequences, waiting)
                sequences, waiting, byte_count = [], [], 0
        if waiting:
            yield _batch(sequences, waiting)

    def _read_headers(self, partition: OutboxRange) -> Iterator[pa.RecordBatch]:
        for after in range(partition.after, partition.upto, RECORD_BATCH_HEADERS):
            upto = min(after + RECORD_BATCH_HEADERS, partition.upto)
            headers = self._reader().headers(Sequence(after), Sequence(upto))
            yield _batch([header.sequence for header in headers], list(map(encode_header, headers)))

    def commit(self, end: Offset) -> None:
        """Do nothing: the driver confirms, because it also has the applied positions of the tables."""

    def stop(self) -> None:
        """Do nothing: the process ends, and nothing depends on it."""

    def _reader(self) -> OutboxReader:
        return open_once(self._options.folder())

    def _offset(self, sequence: Sequence) -> Offset:
        return {"outbox": self._reader().outbox_id, "sequence": sequence}

    def _sequence(self, offset: Offset) -> Sequence:
        mine = self._reader().outbox_id
        if offset["outbox"] != mine:
            raise OutboxReplaced(f"the checkpoint is of outbox {offset['outbox']}, but the state folder has {mine}")
        return Sequence(int(offset["sequence"]))


def _batch(sequences: list[int], values: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(sequences, pa.int64()), pa.array(values, pa.binary())], schema=SCHEMA)


_OPEN: dict[tuple[int, Path], tuple[int, OutboxReader]] = {}  # by process: LMDB must not be used across a fork


def open_once(folder: StateFolder) -> OutboxReader:
    """Return this process's reader of a state folder; it is opened at the first call, and again for a new state."""
    key = (os.getpid(), folder.root)
    file = folder.lmdb / "data.mdb"
    number = file.stat().st_ino if file.exists() else 0
    opened = _OPEN.get(key)
    if opened is not None and opened[0] != number:
        opened[1].close()
        opened = None
    if opened is None:
        opened = _OPEN[key] = (number, OutboxReader.open(folder, guarded=reporting_stuck_writers(get_log("state"))))
    return opened[1]
