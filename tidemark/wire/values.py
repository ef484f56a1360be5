"""The form of the outbox's values: one item of a group each, with a header that describes everything but the rows.

    value   = header, payload; cut into chunks of 1 MB under (sequence, chunk)
    header  = fixed fields, big-endian, with a separate checksum: planning reads headers only
    group   = the values group_first..group_last; readers end at group ends

Every value of a group contains the group's pointer (position and restart LSN), so the last value that a reader has
shows where a restart must decode from. `tidemark.wire.outbox` handles payloads, and imports Arrow.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

import google_crc32c

from tidemark.model.lsn import INVALID_OID, Lsn, Oid, TimelineId
from tidemark.model.position import Pointer, Position, Sequence
from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue, NewerValue
from tidemark.wire.keys import CHUNK_MAX
from tidemark.wire.relations import SchemaVersion

if TYPE_CHECKING:  # loading Arrow takes longer than the rest of `cdcctl status`
    import pyarrow as pa

Payload: TypeAlias = "bytes | pa.Buffer"


class ValueKind(IntEnum):
    """The kind of an outbox value; a number that was written never changes its meaning."""

    BATCH = 1
    SCHEMA = 2
    REWRITE = 3
    TRUNCATION = 4
    MESSAGE = 5
    COPY = 6
    TRANSACTIONS = 7
    PARTITION = 8


FORMAT_VERSION = 1
CHUNK_BYTES = 1 << 20  # larger values cost LMDB long searches for contiguous free pages (measured: 1 MB is best)
_HEADER = struct.Struct(">BB QQQ IQQ IQQ IQQQ IIIIq QI")
_CRC = struct.Struct(">I")
KINDS = frozenset(ValueKind)
HEADER_BYTES = _HEADER.size + _CRC.size
NO_SCHEMA_VERSION = SchemaVersion(0)
PAYLOAD_BYTES_MAX = CHUNK_BYTES * CHUNK_MAX - HEADER_BYTES


@dataclass(frozen=True, slots=True)
class ValueHeader:
    """All facts about an outbox value except its payload."""

    kind: ValueKind
    sequence: Sequence
    group_first: Sequence
    group_last: Sequence
    first: Position  # of the value's rows
    last: Position
    pointer: Pointer  # of the whole group: the same in all of its values
    database: Oid
    relation: Oid
    schema_version: SchemaVersion
    row_count: int
    commit_time_us: int  # latest commit in the group, since 1970-01-01 UTC; 0 if no transaction ends in it
    payload_length: int
    payload_crc: int

    @property
    def chunk_count(self) -> int:
        """How many chunks the value was cut into."""
        return -(-(HEADER_BYTES + self.payload_length) // CHUNK_BYTES)

    @property
    def ends_group(self) -> bool:
        """Return whether a reader may stop after this value."""
        return self.sequence == self.group_last


def encode_header(header: ValueHeader) -> bytes:
    """Return the header's bytes, checksum included."""
    first, last, at = header.first, header.last, header.pointer.position
    packed = _HEADER.pack(
        FORMAT_VERSION,
        header.kind,
        header.sequence,
        header.group_first,
        header.group_last,
        first.timeline,
        first.commit_lsn,
        first.ordinal,
        last.timeline,
        last.commit_lsn,
        last.ordinal,
        at.timeline,
        at.commit_lsn,
        at.ordinal,
        header.pointer.restart_lsn,
        header.database,
        header.relation,
        header.schema_version,
        header.row_count,
        header.commit_time_us,
        header.payload_length,
        header.payload_crc,
    )
    return packed + _CRC.pack(google_crc32c.value(packed))


def header_bytes(chunk: "bytes | memoryview") -> bytes:
    """Return the part of chunk 0 of a value that `decode_header` reads."""
    return bytes(chunk[:HEADER_BYTES])


def decode_header(chunk: bytes, sequence: Sequence) -> ValueHeader:
    """Return the header at the start of chunk 0 of the value that was read under `sequence`."""
    name = f"outbox value {sequence}"
    if len(chunk) < HEADER_BYTES:
        raise DamagedValue(name, "shorter than its header")
    packed = bytes(chunk[: _HEADER.size])
    if google_crc32c.value(packed) != _CRC.unpack_from(chunk, _HEADER.size)[0]:
        raise DamagedValue(name, "header checksum mismatch")
    fields = _HEADER.unpack(packed)
    if fields[0] != FORMAT_VERSION:
        raise NewerValue(name, fields[0], FORMAT_VERSION)
    if fields[1] not in KINDS:
        raise DamagedValue(name, f"its kind {fields[1]} is unknown")
    header = ValueHeader(
        kind=ValueKind(fields[1]),
        sequence=Sequence(fields[2]),
        group_first=Sequence(fields[3]),
        group_last=Sequence(fields[4]),
        first=position_of(fields[5:8]),
        last=position_of(fields[8:11]),
        pointer=Pointer(position_of(fields[11:14]), Lsn(fields[14])),
        database=Oid(fields[15]),
        relation=Oid(fields[16]),
        schema_version=SchemaVersion(fields[17]),
        row_count=fields[18],
        commit_time_us=fields[19],
        payload_length=fields[20],
        payload_crc=fields[21],
    )
    if header.sequence != sequence:
        raise DamagedValue(name, f"its header has the sequence {header.sequence}")
    return header


def chunks(header: ValueHeader, payload: Payload) -> Iterator[bytes | memoryview]:
    """Split a value into its stored chunks, chunk 0 first; the payload is not copied."""
    view = memoryview(payload)
    at = min(CHUNK_BYTES - HEADER_BYTES, len(view))
    yield encode_header(header) + view[:at]
    while at < len(view):
        yield view[at : at + CHUNK_BYTES]
        at += CHUNK_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class EncodedValue:
    """An item as bytes, and its header fields."""

    kind: ValueKind
    payload: Payload
    first: Position
    last: Position
    database: Oid
    relation: Relation | None
    row_count: int


@dataclass(frozen=True, slots=True, eq=False)
class EncodedGroup:
    """A group's values without sequences, which are known only inside the delivery transaction."""

    last: Pointer
    commit_time_us: int
    values: tuple[EncodedValue, ...]
    moves_delivered: bool = True  # False for a first copy, which is not part of the stream
    byte_count: int = field(init=False)  # the size of the values in the outbox, headers included

    def __post_init__(self) -> None:
        byte_count = sum([len(value.payload) for value in self.values], HEADER_BYTES * len(self.values))
        object.__setattr__(self, "byte_count", byte_count)

    def numbered(
        self, after: Sequence, version_of: Callable[[Oid, Relation], SchemaVersion]
    ) -> Iterator[tuple[ValueHeader, Payload]]:
        """Yield the values with sequences; the first one is `after` + 1."""
        first, last = Sequence(after + 1), Sequence(after + len(self.values))
        for sequence, value in enumerate(self.values, start=first):
            relation = value.relation
            header = ValueHeader(
                kind=value.kind,
                sequence=Sequence(sequence),
                group_first=first,
                group_last=last,
                first=value.first,
                last=value.last,
                pointer=self.last,
                database=value.database,
                relation=relation.oid if relation else INVALID_OID,
                schema_version=version_of(value.database, relation) if relation else NO_SCHEMA_VERSION,
                row_count=value.row_count,
                commit_time_us=self.commit_time_us,
                payload_length=len(value.payload),
                payload_crc=google_crc32c.value(value.payload),
            )
            yield header, value.payload


def position_of(fields: tuple[int, ...] | list[int]) -> Position:
    """Return the position of timeline, commit LSN and ordinal."""
    timeline, commit_lsn, ordinal = fields
    return Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)
