"""JSON as records: Debezium's envelope, and the row alone."""

from abc import abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from tidemark.decode.render.debezium import DebeziumLines
from tidemark.decode.render.debezium_rows import LETTERS, Sides
from tidemark.decode.render.debezium_schemas import key_schema, table_envelope
from tidemark.decode.render.flat_json import FLAT_METADATA, flat_lines, flat_sides
from tidemark.decode.render.placed_lines import Lines, LineWriter
from tidemark.decode.render.row_keys import key_lines
from tidemark.engine.pool.batch import Batch
from tidemark.model.change import AFTER, ChangeBatch, EngineEvent, Op, TransactionBoundary
from tidemark.model.lsn import Oid
from tidemark.serializers.debezium_events import DebeziumEvents, schema_head
from tidemark.serializers.record_columns import RecordColumns, RecordTexts, line_count
from tidemark.serializers.serializer import SerializedRecord, Serializer, SerializerFailed, shown_relation
from tidemark.serializers.text_blocks import TextBlocks

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.model.relation import Relation

STRETCH_ROWS = 4096  # twice the default of `LineWriter`: after each kernel call a thread waits for the GIL
_DATABASE = Oid(1)  # of a batch here: it has the name of its database


class _JsonRecords(Serializer):
    """Records whose keys and values are lines of JSON."""

    only_computes = True
    _ops: Container[Op] = frozenset(Op)  # rows of others have no record

    def __init__(self, *, tombstones: bool = True) -> None:
        """`tombstones`: a record without a value follows that of a delete, as Kafka's log compaction needs it."""
        self._tombstones = tombstones
        self._writers: list[LineWriter] = []  # that no thread has
        self._blocks = TextBlocks()

    def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
        """Return the records of a batch. Raise `SerializerFailed` for flat rows."""
        if AFTER not in batch.arrow.schema.names:
            raise SerializerFailed(f"{type(self).__name__}: the rows of {batch.table} are flat: omit Flatten")
        shown = ChangeBatch(_DATABASE, shown_relation(batch), batch.arrow)
        sides = self._sides(shown)
        values = self._values(shown, sides, batch.database, now_ns)
        if values is None:
            return ()
        keys, deletes = key_lines(shown, sides, self._ops)
        key_head, head = self._heads(shown)
        counts = np.zeros(max(values.pieces) + 1, np.int64)
        for variant, pieces in values.pieces.items():
            counts[variant] = line_count(pieces)
        with self._writer() as writer:
            key_texts = RecordTexts(writer, keys, key_head, self._blocks)
            texts = RecordTexts(writer, values, head, self._blocks)
        return RecordColumns(key_texts, texts, counts[values.variants], deletes if self._tombstones else None)

    @contextmanager
    def _writer(self) -> Iterator[LineWriter]:
        """Lend a writer, whose memory is reused, to one thread."""
        try:
            writer = self._writers.pop()
        except IndexError:
            writer = LineWriter(STRETCH_ROWS)
        try:
            yield writer
        finally:
            self._writers.append(writer)

    def _heads(self, shown: ChangeBatch) -> tuple[bytes, bytes]:
        """Return what stands before the payload of each key and of each value; empty: they are the payload alone."""
        del shown
        return b"", b""

    def _sides(self, shown: ChangeBatch) -> Sides:
        """Return the rows of a batch in the forms of keys."""
        return Sides(shown.relation, shown.rows)

    @abstractmethod
    def _values(self, shown: ChangeBatch, sides: Sides, database: str, now_ns: int) -> Lines | None:
        """Return the values as lines; None if there are none."""


class DebeziumJson(_JsonRecords):
    """Debezium's envelope, as `cdcctl decode --format debezium` prints it, and its keys.

    An update that changes the key is a delete and a create. With `schemas`, keys and values have the schema part that
    Kafka Connect's `JsonConverter` writes and reads with `schemas.enable=true`.
    """

    _ops = LETTERS
    settings: Mapping[str, Mapping[str, object]] = {"types": {"decimals": "string"}}

    def __init__(self, *, name: str = "tidemark", tombstones: bool = True, schemas: bool = False) -> None:
        """`name`: of `source.name`, the prefix of topics in Debezium."""
        super().__init__(tombstones=tombstones)
        self._name = name
        self._schemas = schemas
        self._latest: tuple[Relation, pa.DataType, tuple[bytes, bytes]] | None = None  # of the last batch
        self._version = version("tidemark")
        self._events = DebeziumEvents(name, schemas=schemas)

    def event_records(self, event: EngineEvent, database: str, now_ns: int) -> Sequence[SerializedRecord]:
        """Return the records of a TRUNCATE, a message, a heartbeat, or begins or ends of transactions; of others none.

        The begin of a copy has that of a TRUNCATE: it removes all earlier rows.

        database: the name of the event's. Their topics in Debezium: the table's, PREFIX.message, PREFIX.transaction.
        """
        return [*self._events.records(event, self._lines({_oid_of(event): database}, now_ns), now_ns)]

    def heartbeat(self, now_ns: int) -> SerializedRecord:
        """Return a heartbeat, whose topic in Debezium is __debezium-heartbeat.PREFIX."""
        return self._events.heartbeat(now_ns)

    def _heads(self, shown: ChangeBatch) -> tuple[bytes, bytes]:
        if not self._schemas:
            return super()._heads(shown)
        relation, rows, latest = shown.relation, shown.rows.schema.field(AFTER).type, self._latest
        if latest is None or latest[0] != relation or latest[1] != rows:  # NB: other threads may replace it meanwhile
            prefix = f"{self._name}.{relation.namespace}.{relation.name}"
            envelope = table_envelope(relation, rows, prefix)
            key = key_schema(relation, rows, f"{prefix}.Key")
            self._latest = latest = relation, rows, (schema_head(key), schema_head(envelope))
        return latest[2]

    def _values(self, shown: ChangeBatch, sides: Sides, database: str, now_ns: int) -> Lines | None:
        return self._lines({_DATABASE: database}, now_ns).of_batch(shown, sides)

    def _lines(self, databases: Mapping[Oid, str], now_ns: int) -> DebeziumLines:
        return DebeziumLines(databases, version=self._version, now_ns=lambda: now_ns, name=self._name)


class FlatJson(_JsonRecords):
    """Only the row: its columns, then `__op` and `__deleted`; of a deleted row the known columns.

    An update that changes the key is a delete and an insert. Unchanged values that are not in WAL are left out. The
    forms of values, also in keys, are those of `cdcctl decode --format jsonl`.
    """

    def _sides(self, shown: ChangeBatch) -> Sides:
        return flat_sides(shown)

    def _values(self, shown: ChangeBatch, sides: Sides, database: str, now_ns: int) -> Lines | None:
        del database, now_ns
        names = [field.name for field in shown.rows.schema.field(AFTER).type]
        if taken := [name for name in FLAT_METADATA if name in names]:
            table = shown.relation.qualified_name
            raise SerializerFailed(
                f"FlatJson: {table} has a column {taken[0]}, which is the name of a metadata field",
                hint=f'rename it: Rename("{table}.{taken[0]}", "another_name")',
            )
        return flat_lines(shown, sides)


def _oid_of(event: EngineEvent) -> Oid:
    return _DATABASE if isinstance(event, TransactionBoundary) else event.database
