"""Rows that are still in the outbox: their header is known, and they are read when they are needed.

Those of one table in a portion are read together: a request for each value would take longer than the values.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from tidemark.model.change import ChangeBatch
from tidemark.model.errors import InternalError
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.source.outbox_port import OutboxPort, check_not_renumbered
from tidemark.wire.values import ValueHeader


class UnreadValues:
    """Values of rows of the outbox `outbox_id`: all of them are read when the rows of one are needed, and once."""

    def __init__(
        self,
        outbox: OutboxPort,
        outbox_id: str,
        sequences: Sequence[OutboxSequence],
        recorded: Callable[[float], None] | None = None,
    ) -> None:
        """Read `sequences` of `outbox`; `recorded` gets the seconds of reading."""
        self._recorded = recorded
        self._outbox = outbox
        self._sequences = sequences
        self._lock = threading.Lock()  # log and replica are written by several threads
        self._read: Mapping[OutboxSequence, pa.RecordBatch] = {}
        self.outbox_id = outbox_id

    def rows(self, sequence: OutboxSequence) -> pa.RecordBatch:
        """Return the rows of one of the values."""
        with self._lock:
            if not self._read:
                begun_s = time.monotonic()
                batches = read_batches(self._outbox, self.outbox_id, self._sequences)
                self._read = {number: one.rows for number, one in zip(self._sequences, batches, strict=True)}
                if self._recorded is not None:
                    self._recorded(time.monotonic() - begun_s)
            return self._read[sequence]


class UnreadRows:
    """The rows of one value."""

    def __init__(self, values: UnreadValues, header: ValueHeader) -> None:
        self._values = values
        self._header = header

    @property
    def outbox_id(self) -> str:
        """Return the name of the outbox."""
        return self._values.outbox_id

    @property
    def byte_count(self) -> int:
        """Return the size of the value."""
        return self._header.payload_length

    @property
    def row_count(self) -> int:
        """Return the number of rows."""
        return self._header.row_count

    @property
    def first(self) -> Position:
        """Return the position of the first row."""
        return self._header.first

    @property
    def last(self) -> Position:
        """Return the position of the last row."""
        return self._header.last

    def unpacked(self) -> pa.RecordBatch:
        """Return the rows."""
        return self._values.rows(self._header.sequence)


def read_batches(outbox: OutboxPort, outbox_id: str, sequences: Sequence[OutboxSequence]) -> list[ChangeBatch]:
    """Read values that are row changes, in order; raise `OutboxReplaced` if the outbox has another name."""
    wanted = frozenset(sequences)
    after = OutboxSequence(sequences[0] - 1)
    items = [value.item() for value in outbox.read(after, sequences[-1], lambda header: header.sequence in wanted)]
    check_not_renumbered(outbox, outbox_id)
    batches = [item for item in items if isinstance(item, ChangeBatch)]
    if len(batches) != len(sequences):
        raise InternalError(f"{len(batches)} of {len(sequences)} values of rows after {after} in {outbox.place}")
    return batches
