"""Row changes (`heapam_xlog.h`), and tuples in WAL.

All tuples are *packed*: `xl_heap_header` (infomask2 u16, infomask u16, hoff u8), then the tuple from its byte 23 on
(null bitmap, padding, values), as in WAL. That is the tuple on a page from its byte 18 on.

If the record has a page image, the server may omit the tuple itself: it is then on the restored page (`page_tuple`).
An update may also omit the prefix or suffix that it shares with the old tuple. The server does neither for a table that
is logically logged.
"""

from array import array
from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.wal.record import BadRecord, BlockRef, Record
from tidemark.wal.versions import PAGE_BYTES

OPCODE_MASK = 0x70
INSERT = 0x00
DELETE = 0x10
UPDATE = 0x20
TRUNCATE = 0x30
HOT_UPDATE = 0x40
CONFIRM = 0x50
LOCK = 0x60
INPLACE = 0x70
INIT_PAGE = 0x80

INSERT_ALL_VISIBLE_CLEARED = 0x01
INSERT_LAST_IN_MULTI = 0x02
INSERT_IS_SPECULATIVE = 0x04
INSERT_CONTAINS_NEW_TUPLE = 0x08
INSERT_ON_TOAST_RELATION = 0x10
DELETE_CONTAINS_OLD_TUPLE = 0x02
DELETE_CONTAINS_OLD_KEY = 0x04
DELETE_IS_SUPER = 0x08
DELETE_IS_PARTITION_MOVE = 0x10
UPDATE_CONTAINS_OLD_TUPLE = 0x04
UPDATE_CONTAINS_OLD_KEY = 0x08
UPDATE_CONTAINS_NEW_TUPLE = 0x10
UPDATE_PREFIX_FROM_OLD = 0x20
UPDATE_SUFFIX_FROM_OLD = 0x40
TRUNCATE_CASCADE = 0x01
TRUNCATE_RESTART_SEQS = 0x02

PACKED_HEADER_BYTES = 5  # SizeOfHeapHeader
TUPLE_HEADER_BYTES = 23  # SizeofHeapTupleHeader
PACKED_AT = TUPLE_HEADER_BYTES - PACKED_HEADER_BYTES  # start of the packed form in a tuple on a page
HOFF_AT = 4  # in a packed tuple
ATTRIBUTES_MASK = 0x07FF  # of infomask2, HEAP_NATTS_MASK
HAS_NULLS = 0x0001  # of infomask, HEAP_HASNULL

_INSERT = Struct("<HB")
_DELETE = Struct("<IHBB")
_LOCK = Struct("<IHBB")
_UPDATE = Struct("<IHBBIH")
_TRUNCATE = Struct("<IIB3x")
_OFFSET = Struct("<H")
_U16 = Struct("<H")
_PAGE_BOUNDS = Struct("<HHH")  # pd_lower, pd_upper, pd_special
PAGE_BOUNDS_AT = 12
_PAGE_LSN = Struct("<II")
DATA_PAGE_HEADER_BYTES = 24  # SizeOfPageHeaderData
_LINE_POINTER = Struct("<I")
_LP_NORMAL = 1
_XMIN_XMAX = Struct("<II")


class HeapInsert(NamedTuple):
    """A row inserted at `offset` of `block`."""

    block: BlockRef
    offset: int
    flags: int
    tuple: bytes | None  # packed; None: on the page image


class HeapDelete(NamedTuple):
    """A deletion of the row at `offset` of `block`."""

    block: BlockRef
    offset: int
    flags: int
    xmax: Xid  # may be a multixact: the deleter is the record's xid
    infobits: int
    old_tuple: bytes | None  # packed: the whole row or its key, by the flags


class HeapUpdate(NamedTuple):
    """A row's new version at `new_offset` of `block`, its old one at `old_offset` of `old_block`."""

    block: BlockRef
    old_block: BlockRef
    old_offset: int
    new_offset: int
    flags: int
    old_xmax: Xid
    new_xmax: Xid
    old_tuple: bytes | None  # packed: the whole row or its key, by the flags
    prefix: int  # bytes at the start of the values that equal the old row's; `suffix` at the end
    suffix: int
    changed: bytes | None  # packed new row without prefix and suffix; None: on the page image
    old_infobits: int  # XLHL_* of the old row

    @property
    def tuple(self) -> bytes | None:
        """The packed new row, if the record contains it whole."""
        return None if self.prefix or self.suffix else self.changed


class HeapTruncate(NamedTuple):
    """TRUNCATE of all `relations` in one statement: OIDs, not files."""

    database: Oid
    relations: tuple[Oid, ...]
    cascade: bool
    restart_identity: bool


class HeapConfirm(NamedTuple):
    """The confirmation of a speculative insert."""

    block: BlockRef
    offset: int


class HeapInplace(NamedTuple):
    """Values of a row that were overwritten in place, visible to all transactions at once; its header is unchanged."""

    block: BlockRef
    offset: int
    values: bytes  # the tuple after its hoff; empty: on the page image


class HeapLock(NamedTuple):
    """A lock of the row at `offset` of `block`."""

    block: BlockRef
    offset: int
    xmax: Xid  # may be a multixact
    infobits: int


HeapRecord = HeapInsert | HeapDelete | HeapUpdate | HeapTruncate | HeapConfirm | HeapInplace


def parse(record: Record) -> HeapRecord | None:  # noqa: PLR0911 - one for each opcode
    """Return the change of a HEAP record; None for a row lock."""
    match record.info & OPCODE_MASK:
        case opcode if opcode == INSERT:
            return parse_insert(record)
        case opcode if opcode == DELETE:
            return parse_delete(record)
        case opcode if opcode in (UPDATE, HOT_UPDATE):
            return parse_update(record)
        case opcode if opcode == TRUNCATE:
            return parse_truncate(record)
        case opcode if opcode == CONFIRM:
            block = record.need_block(0)
            return HeapConfirm(block, record.read(_OFFSET)[0])
        case opcode if opcode == INPLACE:
            block = record.need_block(0)
            return HeapInplace(block, record.read(_OFFSET)[0], block.data)
    return None


def parse_insert(record: Record) -> HeapInsert:
    """Parse an INSERT record."""
    block = record.need_block(0)
    offset, flags = record.read(_INSERT)
    return HeapInsert(block, offset, flags, _packed(record, block.data, block))


def parse_delete(record: Record) -> HeapDelete:
    """Parse a DELETE record."""
    block = record.need_block(0)
    xmax, offset, infobits, flags = record.read(_DELETE)
    old = None
    if flags & (DELETE_CONTAINS_OLD_TUPLE | DELETE_CONTAINS_OLD_KEY):
        old = _packed(record, record.main[_DELETE.size :])
    return HeapDelete(block, offset, flags, Xid(xmax), infobits, old)


def parse_update(record: Record) -> HeapUpdate:
    """Parse an UPDATE or HOT_UPDATE record."""
    block = record.need_block(0)
    old_xmax, old_offset, infobits, flags, new_xmax, new_offset = record.read(_UPDATE)
    old = None
    if flags & (UPDATE_CONTAINS_OLD_TUPLE | UPDATE_CONTAINS_OLD_KEY):
        old = _packed(record, record.main[_UPDATE.size :])
    data = block.data
    prefix = suffix = 0
    if data and flags & UPDATE_PREFIX_FROM_OLD:
        prefix, data = _read_u16(record, data)
    if data and flags & UPDATE_SUFFIX_FROM_OLD:
        suffix, data = _read_u16(record, data)
    return HeapUpdate(
        block,
        record.block(1) or block,
        old_offset,
        new_offset,
        flags,
        Xid(old_xmax),
        Xid(new_xmax),
        old,
        prefix,
        suffix,
        _packed(record, data, block),
        infobits,
    )


def parse_lock(record: Record) -> HeapLock:
    """Parse a LOCK record, or a LOCK_UPDATED record of HEAP2."""
    block = record.need_block(0)
    xmax, offset, infobits, _flags = record.read(_LOCK)
    return HeapLock(block, offset, Xid(xmax), infobits)


def parse_truncate(record: Record) -> HeapTruncate:
    """Parse a TRUNCATE record."""
    database, count, flags = record.read(_TRUNCATE)
    if len(record.main) - _TRUNCATE.size < 4 * count:
        raise BadRecord(record.lsn, f"{count} truncated relations in {len(record.main)} bytes")
    relations = record.read(Struct(f"<{count}I"), _TRUNCATE.size)
    cascade, restart = bool(flags & TRUNCATE_CASCADE), bool(flags & TRUNCATE_RESTART_SEQS)
    return HeapTruncate(Oid(database), tuple(map(Oid, relations)), cascade, restart)


def apply_update(old: bytes, update: HeapUpdate) -> bytes:
    """Return the packed new row of `update`, with prefix and suffix from the packed row `old`."""
    changed = update.changed
    lsn = update.block.lsn
    if changed is None:
        raise BadRecord(lsn, "the new row is only in the page image")
    old_values_at = old[HOFF_AT] - PACKED_AT
    old_values = len(old) - old_values_at
    head_bytes = changed[HOFF_AT] - PACKED_AT if update.prefix else len(changed)
    if max(update.prefix, update.suffix) > old_values or not PACKED_HEADER_BYTES <= head_bytes <= len(changed):
        raise BadRecord(lsn, f"prefix {update.prefix} and suffix {update.suffix} of {old_values} bytes")
    prefix = old[old_values_at : old_values_at + update.prefix]
    suffix = old[len(old) - update.suffix :]
    return changed[:head_bytes] + prefix + changed[head_bytes:] + suffix


def apply_inplace(old: bytes, update: HeapInplace) -> bytes:
    """Return the packed row `old` with all of its values overwritten (`heap_xlog_inplace`)."""
    values_at = old[HOFF_AT] - PACKED_AT if old else 0
    if len(old) - values_at != len(update.values):
        raise BadRecord(
            update.block.lsn,
            f"in-place update of {len(update.values)} bytes in a row of {len(old)}",
        )
    return old[:values_at] + update.values


def page_tuple(page: bytes, offset: int) -> tuple[bytes, Xid, Xid] | None:
    """Return packed tuple, xmin and xmax at line pointer `offset` of a heap page; None if it has no tuple."""
    if not 1 <= offset <= _line_pointers(page):
        return None
    (pointer,) = _LINE_POINTER.unpack_from(page, DATA_PAGE_HEADER_BYTES + _LINE_POINTER.size * (offset - 1))
    return _tuple_at(page, offset, pointer)


def _tuple_at(page: bytes, offset: int, pointer: int) -> tuple[bytes, Xid, Xid] | None:
    begin, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
    if flags != _LP_NORMAL:
        return None
    if length < TUPLE_HEADER_BYTES or begin + length > PAGE_BYTES:
        raise BadRecord(_page_lsn(page), f"page image: tuple {offset} at {begin} with {length} bytes")
    xmin, xmax = _XMIN_XMAX.unpack_from(page, begin)
    return page[begin + PACKED_AT : begin + length], Xid(xmin), Xid(xmax)


def page_tuples(page: bytes) -> Iterator[tuple[int, bytes, Xid, Xid]]:
    """Yield offset, packed tuple, xmin and xmax of all tuples on a heap page."""
    count = _line_pointers(page)
    pointers = array("I", page[DATA_PAGE_HEADER_BYTES : DATA_PAGE_HEADER_BYTES + _LINE_POINTER.size * count])
    for offset, pointer in enumerate(pointers, 1):
        found = _tuple_at(page, offset, pointer)
        if found is not None:
            yield offset, *found


def _line_pointers(page: bytes) -> int:
    """Return the number of a page's line pointers; 0 if it is new."""
    try:
        lower, upper, special = _PAGE_BOUNDS.unpack_from(page, PAGE_BOUNDS_AT)
    except struct_error:
        raise BadRecord(Lsn(0), f"page of {len(page)} bytes") from None
    if upper == 0:
        return 0
    if not DATA_PAGE_HEADER_BYTES <= lower <= upper <= special <= PAGE_BYTES == len(page):
        raise BadRecord(_page_lsn(page), f"page image: bounds {lower}, {upper}, {special} of {len(page)} bytes")
    count: int = (lower - DATA_PAGE_HEADER_BYTES) // _LINE_POINTER.size
    return count


def _page_lsn(page: bytes) -> Lsn:
    high, low = _PAGE_LSN.unpack_from(page)
    return Lsn(high << 32 | low)


def _read_u16(record: Record, data: bytes) -> tuple[int, bytes]:
    if len(data) < _U16.size:
        raise BadRecord(record.lsn, f"{len(data)} bytes of a new row are cut off")
    return _U16.unpack_from(data)[0], data[_U16.size :]


def _packed(record: Record, data: bytes, block: BlockRef | None = None) -> bytes | None:
    """Return `data` as a packed tuple; None if the tuple is only in the page image of `block`."""
    if not data and block is not None and block.image_applies:
        return None
    if len(data) < PACKED_HEADER_BYTES or data[HOFF_AT] < TUPLE_HEADER_BYTES:
        raise BadRecord(record.lsn, f"{len(data)} bytes are not a tuple")
    return data
