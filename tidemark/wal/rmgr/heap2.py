"""Multi-row records (`heapam_xlog.h`, the heap's second resource manager): COPY and catalog inserts."""

from struct import Struct
from typing import NamedTuple

from tidemark.model.lsn import Xid
from tidemark.wal.record import BadRecord, BlockRef, Record
from tidemark.wal.rmgr.heap import INIT_PAGE, OPCODE_MASK, PACKED_HEADER_BYTES, TUPLE_HEADER_BYTES

MULTI_INSERT = 0x50
LOCK_UPDATED = 0x60
NEW_CID = 0x70

_HEAD = Struct("<BxH")  # flags, ntuples
_LENGTH = Struct("<H")
_TOP_XID = Struct("<I")
TUPLES_MAX = 2048  # more than MaxHeapTuplesPerPage, 291


class HeapMultiInsert(NamedTuple):
    """Rows inserted into one block; `flags` are as in an insert."""

    block: BlockRef
    flags: int
    offsets: tuple[int, ...]
    tuples: tuple[bytes, ...] | None  # packed, one for each offset; None: on the page image


class NewCid(NamedTuple):
    """A transaction wrote to a catalog."""

    top_xid: Xid


def parse(record: Record) -> HeapMultiInsert | NewCid | None:
    """Parse a HEAP2 record with rows; return None for pruning, freezing, visibility and locks."""
    match record.info & OPCODE_MASK:
        case opcode if opcode == MULTI_INSERT:
            return parse_multi_insert(record)
        case opcode if opcode == NEW_CID:
            return NewCid(Xid(record.read(_TOP_XID)[0]))
    return None


def parse_multi_insert(record: Record) -> HeapMultiInsert:
    """Parse a MULTI_INSERT record."""
    block = record.need_block(0)
    flags, count = record.read(_HEAD)
    if count > TUPLES_MAX:
        raise BadRecord(record.lsn, f"{count} tuples on a page")
    offsets = tuple(range(1, count + 1))
    if not record.info & INIT_PAGE:
        offsets = record.read(Struct(f"<{count}H"), _HEAD.size)
    if not block.data and block.image_applies:
        return HeapMultiInsert(block, flags, offsets, None)
    return HeapMultiInsert(block, flags, offsets, _tuples(record, block.data, count))


def _tuples(record: Record, data: bytes, count: int) -> tuple[bytes, ...]:
    """Split a block's data into packed tuples: each has a header, aligned to 2, with the length of what follows it."""
    tuples: list[bytes] = []
    at = 0
    for _ in range(count):
        at += at & 1
        begin = at + _LENGTH.size
        if begin > len(data):
            raise BadRecord(record.lsn, f"{count} tuples in {len(data)} bytes")
        at = begin + PACKED_HEADER_BYTES + _LENGTH.unpack_from(data, at)[0]
        packed = data[begin:at]
        if at > len(data) or packed[4] < TUPLE_HEADER_BYTES:
            raise BadRecord(record.lsn, f"tuple at {begin} of {len(data)} bytes of tuples")
        tuples.append(packed)
    if at != len(data):
        raise BadRecord(record.lsn, f"{count} tuples occupy {at} of {len(data)} bytes")
    return tuple(tuples)
