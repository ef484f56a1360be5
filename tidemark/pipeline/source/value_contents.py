"""Values of the outbox as bytes, header and payload together.

The values remain encoded inside Spark, because Spark's rows cost more than all other steps;
`tidemark.pipeline.landing.feed` decodes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidemark.model.position import Sequence
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.source.rows.query_table import QueryTable
from tidemark.wire.values import NO_SCHEMA_VERSION, ValueHeader, encode_header

RECORD_BATCH_BYTES = 32 << 20
SCHEMA = pa.schema([pa.field("sequence", pa.int64()), pa.field("value", pa.binary())])


@dataclass(frozen=True)
class ValueContents:
    """The values of all tables, or of one table."""

    table: QueryTable | None = None

    @property
    def columns_id(self) -> str:
        """Return "": the columns never change."""
        return ""

    def change_from(self, outbox: OutboxPort, columns_id: str) -> str:  # noqa: ARG002 - of the protocol
        """Return "": bytes have no columns."""
        return ""

    def wants(self, outbox: OutboxPort, header: ValueHeader) -> bool:
        """Return whether the value is of the table; each is, without a table."""
        if self.table is None:
            return True
        if header.schema_version == NO_SCHEMA_VERSION:
            return False
        return self.table.contains(header.database, outbox.relation(header.schema_version), outbox.beginning)

    def misfit(self, outbox: OutboxPort, header: ValueHeader) -> str | None:  # noqa: ARG002 - of the protocol
        """Return None: bytes have no columns."""
        return None

    def gap(self, outbox: OutboxPort, header: ValueHeader) -> str | None:  # noqa: ARG002 - of the protocol
        """Return None: the values include the events that report it."""
        return None

    def read(self, outbox: OutboxPort, after: Sequence, upto: Sequence) -> Iterator[pa.RecordBatch]:
        """Yield the values of (after, upto]."""
        sequences: list[int] = []
        waiting: list[bytes] = []
        byte_count = 0
        for value in outbox.read(after, upto, lambda header: self.wants(outbox, header)):
            sequences.append(value.header.sequence)
            waiting.append(encode_header(value.header) + value.payload)
            byte_count += len(waiting[-1])
            if byte_count >= RECORD_BATCH_BYTES:
                yield _batch(sequences, waiting)
                sequences, waiting, byte_count = [], [], 0
        if waiting:
            yield _batch(sequences, waiting)


def _batch(sequences: list[int], values: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(sequences, pa.int64()), pa.array(values, pa.binary())], schema=SCHEMA)
