"""Items of a group as bytes: Arrow IPC streams for batches, JSON for events, raw bytes for messages.

Each payload can be read alone: a batch has its relation in the metadata of its schema, an event in its JSON. Numbering,
keys and headers are not here (`tidemark.wire.outbox`).
"""

import struct

import pyarrow as pa

from tidemark.model.change import (
    ChangeBatch,
    CopyBoundary,
    GroupItem,
    LogicalMessage,
    PartitionEvent,
    RewriteBoundary,
    RowsMessage,
    SchemaEvent,
    TransactionEnd,
    Truncation,
)
from tidemark.model.lsn import Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Position
from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.json_form import JsonForm, JsonMismatch
from tidemark.wire.relations import decode_relation, encode_relation
from tidemark.wire.values import ValueKind

RELATION_METADATA = b"tidemark.relation"
DATABASE_METADATA = b"tidemark.database"
# lsn, xid, transactional, database, timeline, commit_lsn, ordinal, origin, prefix length
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # of an IPC stream
_MESSAGE = struct.Struct(">QIBIIQQHI")
_SCHEMAS_KEPT = 1024  # some kilobytes each
_SCHEMAS: dict[tuple[Oid, Oid], tuple[pa.Schema, Relation, pa.Buffer]] = {}  # the latest of each relation


# Each event is in a list of one element, since stored values already have this form.
_SCHEMA: JsonForm[tuple[SchemaEvent]] = JsonForm(tuple[SchemaEvent])
_PARTITION: JsonForm[tuple[PartitionEvent]] = JsonForm(tuple[PartitionEvent])
_REWRITE: JsonForm[tuple[RewriteBoundary]] = JsonForm(tuple[RewriteBoundary])
_TRUNCATION: JsonForm[tuple[Truncation]] = JsonForm(tuple[Truncation])
_COPY: JsonForm[tuple[CopyBoundary]] = JsonForm(tuple[CopyBoundary])
_TRANSACTIONS: JsonForm[tuple[TransactionEnd, ...]] = JsonForm(tuple[TransactionEnd, ...])


def encode_transactions(transactions: tuple[TransactionEnd, ...]) -> bytes:
    """Return the JSON of the transactions that end in a group."""
    return _TRANSACTIONS.write(transactions)


def decode_transactions(payload: bytes) -> tuple[TransactionEnd, ...]:
    """Return what `encode_transactions` wrote."""
    try:
        return _TRANSACTIONS.read(payload)
    except JsonMismatch as error:
        raise DamagedValue("transactions", f"invalid JSON: {error}") from error


def encode_item(item: GroupItem) -> tuple[ValueKind, pa.Buffer | bytes]:  # noqa: PLR0911 - one a kind
    """Return kind and payload of one item."""
    match item:
        case ChangeBatch():
            return ValueKind.BATCH, _encode_batch(item)
        case LogicalMessage():
            return ValueKind.MESSAGE, _encode_message(item)
        case SchemaEvent():
            return ValueKind.SCHEMA, _SCHEMA.write((item,))
        case PartitionEvent():
            return ValueKind.PARTITION, _PARTITION.write((item,))
        case RewriteBoundary():
            return ValueKind.REWRITE, _REWRITE.write((item,))
        case Truncation():
            return ValueKind.TRUNCATION, _TRUNCATION.write((item,))
        case CopyBoundary():
            return ValueKind.COPY, _COPY.write((item,))


def decode_item(kind: ValueKind, stored: bytes | pa.Buffer) -> GroupItem:  # noqa: PLR0911 - one a kind
    """Return the item that `encode_item` wrote; `ValueKind.TRANSACTIONS` has its own function.

    The columns of a batch stay where they are stored.
    """
    if kind is ValueKind.BATCH:
        return _decode_batch(stored)
    payload = bytes(stored)
    try:
        match kind:
            case ValueKind.SCHEMA:
                return _SCHEMA.read(payload)[0]
            case ValueKind.PARTITION:
                return _PARTITION.read(payload)[0]
            case ValueKind.REWRITE:
                return _REWRITE.read(payload)[0]
            case ValueKind.TRUNCATION:
                return _TRUNCATION.read(payload)[0]
            case ValueKind.MESSAGE:
                return _decode_message(payload)
            case ValueKind.COPY:
                return _COPY.read(payload)[0]
            case ValueKind.TRANSACTIONS:
                raise DamagedValue("outbox value", "transactions are not an item of a group")
    except JsonMismatch as error:
        name = f"outbox value ({kind.name.lower()})"
        raise DamagedValue(name, f"invalid JSON: {error}") from error


def relation_of(item: GroupItem) -> Relation | None:
    """Return the relation version of `item`: after the change, or before it if the relation was dropped."""
    match item:
        case LogicalMessage():
            return None
        case SchemaEvent():
            return item.after or item.before
        case _:
            return item.relation


def _encode_batch(batch: ChangeBatch) -> pa.Buffer | bytes:
    given = batch.given
    if isinstance(given, RowsMessage):
        return b"".join((_schema_message(batch, given.schema), given.message, _END_OF_STREAM))
    rows, metadata = batch.rows, _metadata(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema.with_metadata(metadata)) as stream:
        stream.write_batch(rows.replace_schema_metadata(metadata))
    return sink.getvalue()


def _schema_message(batch: ChangeBatch, schema: pa.Schema) -> pa.Buffer:
    """Return the first message of the batch's stream: for small batches, making it costs more than all the rest."""
    key = (batch.database, batch.relation.oid)
    known_schema, known_relation, message = _SCHEMAS.get(key, (None, None, None))
    if message is None or known_schema is not schema or known_relation is not batch.relation:
        message = schema.with_metadata(_metadata(batch)).serialize()
        if len(_SCHEMAS) >= _SCHEMAS_KEPT:
            _SCHEMAS.clear()
        _SCHEMAS[key] = (schema, batch.relation, message)
    return message


def _metadata(batch: ChangeBatch) -> dict[bytes, bytes]:
    return {
        RELATION_METADATA: encode_relation(batch.relation),
        DATABASE_METADATA: str(batch.database).encode(),
    }


def _decode_batch(payload: bytes | pa.Buffer) -> ChangeBatch:
    try:
        with pa.ipc.open_stream(payload) as stream:
            rows = stream.read_next_batch()
        metadata = rows.schema.metadata
        relation, database = metadata[RELATION_METADATA], Oid(int(metadata[DATABASE_METADATA]))
    except (pa.ArrowException, OSError, StopIteration, KeyError, TypeError, ValueError) as error:
        raise DamagedValue("outbox value (batch)", str(error)) from error
    return ChangeBatch(database, decode_relation(relation), rows.replace_schema_metadata(None))


def _encode_message(item: LogicalMessage) -> bytes:
    prefix = item.prefix.encode(errors="surrogateescape")
    at = item.position
    position = (at.timeline, at.commit_lsn, at.ordinal)
    head = _MESSAGE.pack(item.lsn, item.xid, item.transactional, item.database, *position, item.origin, len(prefix))
    return head + prefix + item.content


def _decode_message(payload: bytes) -> LogicalMessage:
    if len(payload) < _MESSAGE.size:
        raise DamagedValue("outbox value (message)", "too short")
    lsn, xid, transactional, database, *position, origin, prefix_length = _MESSAGE.unpack_from(payload)
    timeline, commit_lsn, ordinal = position
    content_at = _MESSAGE.size + prefix_length
    if content_at > len(payload):
        raise DamagedValue("outbox value (message)", "prefix reaches past the end")
    return LogicalMessage(
        position=Position(TimelineId(timeline), Lsn(commit_lsn), ordinal),
        lsn=Lsn(lsn),
        database=Oid(database),
        xid=Xid(xid),
        transactional=bool(transactional),
        prefix=payload[_MESSAGE.size : content_at].decode(errors="surrogateescape"),
        content=payload[content_at:],
        origin=origin,
    )
