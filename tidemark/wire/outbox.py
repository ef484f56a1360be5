"""The content of the outbox's values: items to values, stored chunks to items.

`tidemark.wire.values` defines their form; code that reads only headers needs only that module.
"""

from dataclasses import dataclass

import google_crc32c
import pyarrow as pa

from tidemark.model.change import ChangeBatch, ChangeGroup, GroupItem, RowsMessage
from tidemark.model.lsn import INVALID_OID
from tidemark.model.position import Position, Sequence
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.items import decode_item, encode_item, encode_transactions, relation_of
from tidemark.wire.values import (
    HEADER_BYTES,
    EncodedGroup,
    EncodedValue,
    ValueHeader,
    ValueKind,
    decode_header,
    header_bytes,
    position_of,
)

Chunks = list[bytes] | list[memoryview]
"""The stored chunks of a value, chunk 0 first."""


@dataclass(frozen=True, slots=True, eq=False)
class OutboxValue:
    """A value of the outbox: header, and payload (see `tidemark.wire.items`)."""

    header: ValueHeader
    payload: bytes

    def item(self) -> GroupItem:
        """Return the item; not for `ValueKind.TRANSACTIONS`, see `tidemark.wire.items.decode_transactions`."""
        return decode_item(self.header.kind, self.payload)


def join(sequence: Sequence, stored: Chunks) -> OutboxValue:
    """Copy a value's chunks, and check them."""
    if not stored:
        raise DamagedValue(f"outbox value {sequence}", "no chunk of it is there")
    header = decode_header(header_bytes(stored[0]), sequence)
    if len(stored) != header.chunk_count:
        raise DamagedValue(f"outbox value {sequence}", f"{len(stored)} chunks of {header.chunk_count}")
    payload = b"".join((memoryview(stored[0])[HEADER_BYTES:], *stored[1:]))
    if len(payload) != header.payload_length or google_crc32c.value(payload) != header.payload_crc:
        raise DamagedValue(f"outbox value {sequence}", "payload checksum mismatch")
    return OutboxValue(header, payload)


def encode_group(group: ChangeGroup) -> EncodedGroup:
    """Serialize a group: its items in order, then the transactions that end in it. An empty group has no values."""
    values = [_encode(item) for item in group.items]
    ends = tuple(group.transactions)
    if values:
        payload = encode_transactions(ends)
        last = group.last.position
        values.append(EncodedValue(ValueKind.TRANSACTIONS, payload, last, last, INVALID_OID, None, len(ends)))
    latest = max((end.commit_time_us for end in ends), default=0)
    return EncodedGroup(group.last, latest, tuple(values))


def _encode(item: GroupItem) -> EncodedValue:
    kind, payload = encode_item(item)
    if isinstance(item, ChangeBatch) and isinstance(item.given, RowsMessage):
        first, last, count = item.given.first, item.given.last, item.given.row_count
    elif isinstance(item, ChangeBatch):
        rows = item.rows
        first, last, count = _row_position(rows, 0), _row_position(rows, rows.num_rows - 1), rows.num_rows
    else:
        first, last, count = item.position, item.position, 1
    return EncodedValue(kind, payload, first, last, item.database, relation_of(item), count)


def _row_position(rows: pa.RecordBatch, index: int) -> Position:
    return position_of([rows.column(name)[index].as_py() for name in ("_tli", "_commit_lsn", "_ordinal")])
