"""Rows that are still in the outbox: their header is known, and they are read when they are needed."""

from functools import cached_property

import pyarrow as pa

from tidemark.model.change import ChangeBatch
from tidemark.model.errors import InternalError
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.source.outbox_port import OutboxPort, check_not_renumbered
from tidemark.wire.values import ValueHeader


class UnreadRows:
    """The rows of one value of the outbox `outbox_id`."""

    def __init__(self, outbox: OutboxPort, outbox_id: str, header: ValueHeader) -> None:
        self._outbox = outbox
        self._header = header
        self.outbox_id = outbox_id

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
        """Return the rows; they are read once."""
        return self._rows

    @cached_property
    def _rows(self) -> pa.RecordBatch:
        (batch,) = read_batches(self._outbox, self.outbox_id, [self._header.sequence])
        return batch.rows


def read_batches(outbox: OutboxPort, outbox_id: str, sequences: list[OutboxSequence]) -> list[ChangeBatch]:
    """Read values that are row changes, in order; raise `OutboxReplaced` if the outbox has another name."""
    wanted = frozenset(sequences)
    after = OutboxSequence(sequences[0] - 1)
    items = [value.item() for value in outbox.read(after, sequences[-1], lambda header: header.sequence in wanted)]
    check_not_renumbered(outbox, outbox_id)
    batches = [item for item in items if isinstance(item, ChangeBatch)]
    if len(batches) != len(sequences):
        raise InternalError(f"{len(batches)} of {len(sequences)} values of rows after {after} in {outbox.place}")
    return batches
