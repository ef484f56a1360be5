"""Values of the outbox as bytes, header and payload together, or only the header.

The values remain encoded inside Spark, because Spark's rows cost more than all other steps;
`tidemark.pipeline.landing.feed` decodes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidemark.model.position import Sequence
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.source.query_table import QueryTable
from tidemark.wire.values import NO_SCHEMA_VERSION, ValueHeader, encode_header

RECORD_BATCH_BYTES = 32 << 20
RECORD_BATCH_HEADERS = 10_000
SCHEMA = pa.schema([pa.field("sequence", pa.int64()), pa.field("value", pa.binary())])


@dataclass(frozen=True)
class ValueContents:
    """The values of all tables, or of one table; `headers_only` is for a driver that reads the payloads itself."""

    headers_only: bool = False
    table: QueryTable | None = None

    @property
    def columns_id(self) -> str:
        """Return "": the columns never change."""
        return ""

    @property
    def is_undivided(self) -> bool:
        """Return whether a range is one partition: headers are small."""
        return self.headers_only

    def wants(self, outbox: OutboxPort, header: ValueHeader) -> bool:
        """Return whether the value is of the table; each is, without a table."""
        if self.table is None:
            return True
        if header.schema_version == NO_SCHEMA_VERSION:
            return False
        return self.table.contains(header.database, outbox.relation(header.schema_version))

    def misfit(self, outbox: OutboxPort, header: ValueHeader) -> str | None:  # noqa: ARG002 - of the protocol
        """Return None: bytes have no columns."""
        return None

    def read(self, outbox: OutboxPort, after: Sequence, upto: Sequence) -> Iterator[pa.RecordBatch]:
        """Yield the values of (after, upto]."""
        if self.headers_only:
            yield from self._headers(outbox, after, upto)
            return
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

    @staticmethod
    def _headers(outbox: OutboxPort, after: Sequence, upto: Sequence) -> Iterator[pa.RecordBatch]:
        for first in range(after, upto, RECORD_BATCH_HEADERS):
            headers = outbox.headers(Sequence(first), Sequence(min(first + RECORD_BATCH_HEADERS, upto)))
            yield _batch([header.sequence for header in headers], list(map(encode_header, headers)))


def _batch(sequences: list[int], values: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(sequences, pa.int64()), pa.array(values, pa.binary())], schema=SCHEMA)
