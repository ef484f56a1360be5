"""What a query reads from a range of the outbox: values as bytes, their headers, or the rows of a table."""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from tidemark.model.position import Sequence
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.wire.values import ValueHeader


class Contents(Protocol):
    """One kind of contents. Spark pickles it: it has no handle."""

    @property
    def columns_id(self) -> str:
        """Return what identifies the columns of the query in its offsets; "" if they never change."""

    def change_from(self, outbox: OutboxPort, columns_id: str) -> str:
        """Return how the columns differ from those that `columns_id` identifies; "" if these are not known."""

    def wants(self, outbox: OutboxPort, header: ValueHeader) -> bool:
        """Return whether the query reads the value with this header."""

    def misfit(self, outbox: OutboxPort, header: ValueHeader) -> str | None:
        """Return how the columns of a value differ from those of the query; None if the query can read it."""

    def gap(self, outbox: OutboxPort, header: ValueHeader) -> str | None:
        """Return why the table does not follow from the rows of the query, from a value on; None: it follows."""

    def read(self, outbox: OutboxPort, after: Sequence, upto: Sequence) -> Iterator[pa.RecordBatch]:
        """Yield the contents of (after, upto]."""
