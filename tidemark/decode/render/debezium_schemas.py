"""The schema part of Debezium's records: of rows, keys and envelopes, in the JSON of Kafka Connect's `JsonConverter`.

Names and versions are those of the PostgreSQL connector with `decimal.handling.mode=string`; a value of
`debezium_values` has the form that its schema states. Every column of a row may be NULL: an old row can be known in
part only.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from tidemark.decode.render.debezium_values import (
    BIT,
    INTERVAL,
    MILLISECOND_DIGITS,
    NUMERIC,
    POINT,
    TIME,
    TIMESTAMP,
    TIMETZ,
    VARBIT,
)
from tidemark.model.relation import TABLEOID_NUMBER, Column, Relation, TypeDescription, TypeKind

Schema = dict[str, object]

# Types by OID (`pg_type.dat`), which never change.
JSON, XML, UUID, JSONB = 114, 142, 2950, 3802
_IsArrow = Callable[[pa.DataType], bool]


def _row_schema(relation: Relation, rows: pa.StructType, name: str) -> Schema:
    """Return the schema of `before` and `after`; `rows`: the Arrow type of one of them."""
    return _struct([_field(one, column_schema(column, of)) for one, column, of in _columns(relation, rows)], name)


def key_schema(relation: Relation, rows: pa.StructType, name: str) -> Schema:
    """Return the schema of the key, whose columns are never NULL."""
    named = [one for one in _columns(relation, rows) if one[1].number in relation.primary_key]
    fields = [_field(one, {**column_schema(column, of), "optional": False}) for one, column, of in named]
    return {**_struct(fields, name), "optional": False}


def _envelope_schema(row: Schema, name: str) -> Schema:
    """Return the schema of the whole value of a record."""
    fields = [
        _field("before", row),
        _field("after", row),
        _field("source", SOURCE),
        _field("transaction", TRANSACTION),
        _field("op", {**STRING, "optional": False}),
        *(_field(time, INT64) for time in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return {**_struct(fields, name, version=2), "optional": False}


def table_envelope(relation: Relation, rows: pa.StructType, prefix: str) -> Schema:
    """Return the schema of the whole value of a table's records; `prefix`: of the names of schemas."""
    return _envelope_schema(_row_schema(relation, rows, f"{prefix}.Value"), f"{prefix}.Envelope")


def column_schema(column: Column, arrow: pa.DataType) -> Schema:
    """Return the schema of a column's values; a column that a transform made has that of its Arrow type."""
    return _of_type(column.type, column.typmod, arrow) if column.type is not None else _of_arrow(arrow)


def _columns(relation: Relation, rows: pa.StructType) -> Sequence[tuple[str, Column, pa.DataType]]:
    return [
        (column.name, column, rows.field(index).type)
        for index, column in enumerate(relation.live_columns)
        if column.number != TABLEOID_NUMBER
    ]


def _of_type(described: TypeDescription, typmod: int, arrow: pa.DataType) -> Schema:
    while described.base is not None:
        described, typmod = described.base, described.base_typmod
    if described.element is not None and pa.types.is_list(arrow):
        return _array(_of_type(described.element, typmod, arrow.value_type))
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        return _of_text(described, typmod, arrow)
    if described.oid in {TIME, TIMESTAMP} and 0 <= typmod <= MILLISECOND_DIGITS:
        return MILLISECONDS[described.oid]
    return MICRO_TIME if described.oid == TIME and pa.types.is_integer(arrow) else _of_arrow(arrow)


def _of_text(described: TypeDescription, typmod: int, arrow: pa.DataType) -> Schema:
    """Return the schema of a type whose Arrow type is text or bytes."""
    if described.oid in {BIT, VARBIT}:
        bits = _named("bytes", "io.debezium.data.Bits", length=str(max(typmod, 0)))
        return BOOLEAN if described.oid == BIT and typmod == 1 else bits
    if described.kind is TypeKind.ENUM:
        allowed = ",".join(label.label for label in described.labels)
        return _named("string", "io.debezium.data.Enum", allowed=allowed)
    return BY_OID.get(described.oid) or BY_NAME.get(described.name) or _of_arrow(arrow)


def _of_arrow(arrow: pa.DataType) -> Schema:
    if pa.types.is_list(arrow):
        return _array(_of_arrow(arrow.value_type))
    if pa.types.is_timestamp(arrow):
        return ZONED_TIMESTAMP if arrow.tz else _named("int64", "io.debezium.time.MicroTimestamp")
    return next(schema for is_it, schema in BY_ARROW_TYPE if is_it(arrow))


def _named(kind: str, name: str, **parameters: str) -> Schema:
    found: Schema = {"type": kind, "optional": True, "name": name, "version": 1}
    return {**found, "parameters": parameters} if parameters else found


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items, "optional": True}


def _struct(fields: Sequence[Schema], name: str, *, version: int = 0) -> Schema:
    found: Schema = {"type": "struct", "fields": list(fields), "optional": True, "name": name}
    return {**found, "version": version} if version else found


def _field(name: str, schema: Mapping[str, object]) -> Schema:
    return {**schema, "field": name}


def _plain(kind: str) -> Schema:
    return {"type": kind, "optional": True}


def _required(names: Sequence[str], schema: Schema) -> list[Schema]:
    return [_field(name, {**schema, "optional": False}) for name in names]


BOOLEAN, STRING, BYTES = _plain("boolean"), _plain("string"), _plain("bytes")
INT16, INT32, INT64 = _plain("int16"), _plain("int32"), _plain("int64")
FLOAT, DOUBLE = _plain("float"), _plain("double")
ZONED_TIMESTAMP = _named("string", "io.debezium.time.ZonedTimestamp")
MICRO_TIME = _named("int64", "io.debezium.time.MicroTime")
MILLISECONDS = {
    TIME: _named("int32", "io.debezium.time.Time"),
    TIMESTAMP: _named("int64", "io.debezium.time.Timestamp"),
}
_WKB, _SRID = _field("wkb", BYTES), _field("srid", INT32)
_JSON = _named("string", "io.debezium.data.Json")
BY_OID: Mapping[int, Schema] = {
    INTERVAL: _named("int64", "io.debezium.time.MicroDuration"),
    TIMETZ: _named("string", "io.debezium.time.ZonedTime"),
    NUMERIC: STRING,
    JSON: _JSON,
    JSONB: _JSON,
    XML: _named("string", "io.debezium.data.Xml"),
    UUID: _named("string", "io.debezium.data.Uuid"),
    POINT: _struct([*_required("xy", DOUBLE), _WKB, _SRID], "io.debezium.data.geometry.Point", version=1),
}
BY_NAME: Mapping[str, Schema] = {
    "hstore": _JSON,
    "ltree": _named("string", "io.debezium.data.Ltree"),
    **{
        name.lower(): _struct([_WKB, _SRID], f"io.debezium.data.geometry.{name}", version=1)
        for name in ("Geometry", "Geography")
    },
}
BY_ARROW_TYPE: Sequence[tuple[_IsArrow, Schema]] = (
    (pa.types.is_string, STRING),
    (pa.types.is_boolean, BOOLEAN),
    (lambda arrow: pa.types.is_int8(arrow) or pa.types.is_int16(arrow), INT16),
    (pa.types.is_int32, INT32),
    (pa.types.is_integer, INT64),
    (lambda arrow: pa.types.is_floating(arrow) and not pa.types.is_float64(arrow), FLOAT),
    (pa.types.is_floating, DOUBLE),
    (pa.types.is_date32, _named("int32", "io.debezium.time.Date")),
    (pa.types.is_binary, BYTES),
    (pa.types.is_decimal, STRING),
)
SOURCE: Schema = {
    **_struct(
        [
            *_required(("version", "connector", "name"), STRING),
            *_required(("ts_ms",), INT64),
            _field("snapshot", _named("string", "io.debezium.data.Enum", allowed="true,first,last,false,incremental")),
            *_required(("db",), STRING),
            _field("sequence", STRING),
            *(_field(name, INT64) for name in ("ts_us", "ts_ns")),
            *_required(("schema", "table"), STRING),
            *(_field(name, INT64) for name in ("txId", "lsn", "xmin")),
            _field("origin", STRING),
            _field("origin_lsn", INT64),
        ],
        "io.debezium.connector.postgresql.Source",
    ),
    "optional": False,
}
TRANSACTION = _struct(
    [*_required(("id",), STRING), *_required(("total_order", "data_collection_order"), INT64)],
    "event.block",
    version=1,
)


def _record(fields: Sequence[Schema], name: str) -> Schema:
    """Return the schema of a whole key or value."""
    return {**_struct(fields, name, version=1), "optional": False}


_COMMON, _CONNECTOR = "io.debezium.connector.common", "io.debezium.connector.postgresql"
_COLLECTION = _struct(
    [*_required(("data_collection",), STRING), *_required(("event_count",), INT64)], "event.collection", version=1
)
TRANSACTION_KEY = _record(_required(("id",), STRING), f"{_COMMON}.TransactionMetadataKey")
TRANSACTION_VALUE = _record(
    [
        *_required(("status", "id"), STRING),
        *_required(("ts_ms",), INT64),
        _field("event_count", INT64),
        _field("data_collections", _array({**_COLLECTION, "optional": False})),
    ],
    f"{_COMMON}.TransactionMetadataValue",
)
HEARTBEAT_KEY = _record(_required(("serverName",), STRING), f"{_COMMON}.ServerNameKey")
HEARTBEAT_VALUE = _record(_required(("ts_ms",), INT64), f"{_COMMON}.Heartbeat")
MESSAGE_KEY = _record([_field("prefix", STRING)], f"{_CONNECTOR}.MessageKey")
MESSAGE_VALUE = _record(
    [
        *_required(("op",), STRING),
        _field("ts_ms", INT64),
        _field("source", SOURCE),
        _field("transaction", TRANSACTION),
        _field("message", _struct([_field("prefix", STRING), _field("content", BYTES)], f"{_CONNECTOR}.Message")),
    ],
    f"{_CONNECTOR}.MessageValue",
)
