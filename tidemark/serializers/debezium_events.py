"""What a stream contains beside changes of rows, and heartbeats, as Debezium's records.

Each kind has a separate topic in Debezium, after the prefix: TRUNCATE that of its table, as the begin of a copy, which
removes all earlier rows as well, messages `.message`, and
transactions `.transaction`; heartbeats have `__debezium-heartbeat.` before the prefix. Other events have no record.
"""

import json
from collections.abc import Iterator

from tidemark.decode.render.bounds import BEGIN, END, dumped
from tidemark.decode.render.debezium import DebeziumBounds, DebeziumLines
from tidemark.decode.render.debezium_schemas import (
    HEARTBEAT_KEY,
    HEARTBEAT_VALUE,
    MESSAGE_KEY,
    MESSAGE_VALUE,
    TRANSACTION_KEY,
    TRANSACTION_VALUE,
    Schema,
    table_envelope,
)
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import arrow_struct
from tidemark.model.change import CopyBoundary, EngineEvent, LogicalMessage, TransactionBoundary, Truncation
from tidemark.model.commit_time import NSECS_PER_USEC, USECS_PER_MILLISECOND
from tidemark.model.emptied import copied_anew
from tidemark.model.mapping import Decimals, TypeMapping
from tidemark.model.message_prefix import HEARTBEAT_PREFIX
from tidemark.serializers.serializer import SerializedRecord

_DIALECT = Dialect(mapping=TypeMapping(decimals=Decimals.STRING))


class DebeziumEvents:
    """Records of events; with `schemas`, keys and values have their schema part."""

    def __init__(self, name: str, *, schemas: bool) -> None:
        """`name`: the prefix of topics."""
        self._name = name
        self._schemas = schemas

    def records(self, event: EngineEvent, lines: DebeziumLines, now_ns: int) -> Iterator[SerializedRecord]:
        """Yield the records of an event."""
        if isinstance(event, CopyBoundary) and event.begin:
            event = copied_anew(event)
        if isinstance(event, TransactionBoundary):
            for end in event.transactions:
                value = DebeziumBounds.line(BEGIN if event.begin else END, end)
                key = {"id": json.loads(value)["id"]}
                yield self._record(_text(key), value, TRANSACTION_KEY, TRANSACTION_VALUE)
        elif isinstance(event, LogicalMessage) and event.prefix == HEARTBEAT_PREFIX:
            yield self.heartbeat(now_ns)
        elif isinstance(event, LogicalMessage):
            key = {"prefix": event.prefix}
            yield self._record(_text(key), lines.of_event(event), MESSAGE_KEY, MESSAGE_VALUE)
        elif isinstance(event, Truncation):
            value = lines.of_event(event, event.commit_time_us or None)
            yield self._record(None, value, {}, self._envelope(event) if self._schemas else {})

    def heartbeat(self, now_ns: int) -> SerializedRecord:
        """Return a heartbeat."""
        value = {"ts_ms": now_ns // NSECS_PER_USEC // USECS_PER_MILLISECOND}
        return self._record(_text({"serverName": self._name}), _text(value), HEARTBEAT_KEY, HEARTBEAT_VALUE)

    def _envelope(self, event: Truncation) -> Schema:
        relation = event.relation
        rows = arrow_struct(relation.live_columns, _DIALECT)
        return table_envelope(relation, rows, f"{self._name}.{relation.namespace}.{relation.name}")

    def _record(self, key: bytes | None, value: bytes, key_schema: Schema, value_schema: Schema) -> SerializedRecord:
        value = value.rstrip(b"\n")
        if not self._schemas:
            return SerializedRecord(key, value, 0)
        whole_key = None if key is None else b"%b%b}" % (schema_head(key_schema), key)
        return SerializedRecord(whole_key, b"%b%b}" % (schema_head(value_schema), value), 0)


def schema_head(schema: Schema) -> bytes:
    """Return what stands before the payload of a record with its schema part; `}` stands behind it."""
    return b'{"schema":' + _text(schema) + b',"payload":'


def _text(value: object) -> bytes:
    return dumped(value).encode()
