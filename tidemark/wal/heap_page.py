"""A heap page that changes: the effects of heap records on line pointers and tuples (`heapam.c`, `bufpage.c`, PG 16).

The result has the tuples of the server's page. It lacks what no reader of rows needs: ctid and command ids, flags and
hint bits of the page, and the place of a tuple within the page.
"""

from struct import Struct

from tidemark.model.lsn import INVALID_XID, Lsn, Xid
from tidemark.wal.record import BadRecord
from tidemark.wal.rmgr import heap
from tidemark.wal.rmgr.heap_cleanup import PageCleanup
from tidemark.wal.versions import PAGE_BYTES

OFFSETS_MAX = 291  # MaxHeapTuplesPerPage
# Bits of t_infomask, except where t_infomask2 is stated: see htup_details.h.
_XMAX_BITS = 0x1CD0  # HEAP_XMAX_BITS: what describes xmax
_MOVED = 0xC000  # HEAP_MOVED
_KEYS_UPDATED = 0x2000  # of infomask2
_INFOBITS = ((0x01, 0x1000), (0x02, 0x0080), (0x04, 0x0040), (0x08, 0x0010))  # XLHL_* and the bit of infomask
_INFOBIT_KEYS_UPDATED = 0x10  # XLHL_KEYS_UPDATED
_BOUNDS = Struct("<HHH")  # pd_lower, pd_upper, pd_special
_VERSION = Struct("<H")
_VERSION_AT = 18
_LAYOUT_VERSION = 4  # PG_PAGE_LAYOUT_VERSION
_POINTER = Struct("<I")
_UNUSED, _NORMAL, _REDIRECT, _DEAD = range(4)  # lp_flags
_XIDS = Struct("<II")
_MASKS = Struct("<HH")  # infomask2, infomask
_MASKS_AT = heap.PACKED_AT
_XMAX_AT = 4
_ALIGNED_BYTES = 8  # MAXALIGN


def new_page() -> bytearray:
    """Return an empty heap page (`PageInit`)."""
    page = bytearray(PAGE_BYTES)
    _BOUNDS.pack_into(page, heap.PAGE_BOUNDS_AT, heap.DATA_PAGE_HEADER_BYTES, PAGE_BYTES, PAGE_BYTES)
    _VERSION.pack_into(page, _VERSION_AT, PAGE_BYTES | _LAYOUT_VERSION)
    return page


class HeapPage:
    """A page, and the record at `lsn` that changes it."""

    __slots__ = ("_lsn", "_page")

    def __init__(self, page: bytearray, lsn: Lsn) -> None:
        self._page = page
        self._lsn = lsn
        lower, upper, special = _BOUNDS.unpack_from(page, heap.PAGE_BOUNDS_AT)
        if not heap.DATA_PAGE_HEADER_BYTES <= lower <= upper <= special <= PAGE_BYTES:
            raise self._bad(f"changes a page with bounds {lower}, {upper}, {special}")

    def _bad(self, what: str) -> BadRecord:
        return BadRecord(self._lsn, what)

    def _count(self) -> int:
        lower, _, _ = _BOUNDS.unpack_from(self._page, heap.PAGE_BOUNDS_AT)
        return int(lower - heap.DATA_PAGE_HEADER_BYTES) // _POINTER.size

    def _pointer(self, offset: int) -> tuple[int, int, int]:
        """Return begin, flags and length of a line pointer."""
        if not 1 <= offset <= self._count():
            raise self._bad(f"line pointer {offset} of {self._count()}")
        (pointer,) = _POINTER.unpack_from(self._page, _pointer_at(offset))
        return pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17

    def _set_pointer(self, offset: int, begin: int, flags: int, length: int) -> None:
        if not 1 <= offset <= self._count():
            raise self._bad(f"line pointer {offset} of {self._count()}")
        _POINTER.pack_into(self._page, _pointer_at(offset), begin | flags << 15 | length << 17)

    def _tuple(self, offset: int) -> int:
        """Return where a tuple begins."""
        begin, flags, length = self._pointer(offset)
        if flags != _NORMAL or length < heap.TUPLE_HEADER_BYTES or begin + length > PAGE_BYTES:
            raise self._bad(f"no tuple at line pointer {offset}")
        return begin

    def packed(self, offset: int) -> bytes:
        """Return a tuple in packed form."""
        begin = self._tuple(offset)
        return bytes(self._page[begin + heap.PACKED_AT : begin + self._pointer(offset)[2]])

    def insert(self, offset: int, packed: bytes, xmin: Xid, xmax: Xid = INVALID_XID) -> None:
        """Add a tuple at a line pointer that is not used."""
        if not 1 <= offset <= OFFSETS_MAX:
            raise self._bad(f"new tuple at line pointer {offset}")
        length = len(packed) + heap.PACKED_AT
        count = self._count()
        if offset <= count and self._pointer(offset)[1] != _UNUSED:
            raise self._bad(f"new tuple at line pointer {offset}, which is in use")
        more = max(0, offset - count) * _POINTER.size
        space = length + -length % _ALIGNED_BYTES
        lower, upper, special = _BOUNDS.unpack_from(self._page, heap.PAGE_BOUNDS_AT)
        if upper - lower < space + more:
            self._compact()
            lower, upper, special = _BOUNDS.unpack_from(self._page, heap.PAGE_BOUNDS_AT)
            more = max(0, offset - self._count()) * _POINTER.size
            if upper - lower < space + more:
                raise self._bad(f"{length} bytes of a new tuple in {upper - lower} bytes of a page")
        upper -= space
        self._page[lower : lower + more] = bytes(more)
        _BOUNDS.pack_into(self._page, heap.PAGE_BOUNDS_AT, lower + more, upper, special)
        self._set_pointer(offset, upper, _NORMAL, length)
        self._page[upper + heap.PACKED_AT : upper + length] = packed
        self._page[upper + _XIDS.size : upper + heap.PACKED_AT] = bytes(heap.PACKED_AT - _XIDS.size)
        _XIDS.pack_into(self._page, upper, xmin, xmax)

    def set_xmax(self, offset: int, xmax: Xid, infobits: int) -> None:
        """Record a delete, an update or a lock of a tuple (`fix_infomask_from_infobits`)."""
        begin = self._tuple(offset)
        infomask2, infomask = _MASKS.unpack_from(self._page, begin + _MASKS_AT)
        infomask &= ~(_XMAX_BITS | _MOVED)
        infomask2 &= ~_KEYS_UPDATED
        for bit, mask in _INFOBITS:
            if infobits & bit:
                infomask |= mask
        if infobits & _INFOBIT_KEYS_UPDATED:
            infomask2 |= _KEYS_UPDATED
        _MASKS.pack_into(self._page, begin + _MASKS_AT, infomask2, infomask)
        _POINTER.pack_into(self._page, begin + _XMAX_AT, xmax)

    def undo_insert(self, offset: int) -> None:
        """Remove a speculative insertion: the tuple has no inserter."""
        _POINTER.pack_into(self._page, self._tuple(offset), INVALID_XID)

    def clean(self, cleanup: PageCleanup) -> None:
        """Prune and freeze; the space of removed tuples is collected once it is needed."""
        for offset, target in cleanup.redirected:
            self._set_pointer(offset, target, _REDIRECT, 0)
        for offset in cleanup.dead:
            self._set_pointer(offset, 0, _DEAD, 0)
        for offset in cleanup.unused:
            self._set_pointer(offset, 0, _UNUSED, 0)
        for plan in cleanup.frozen:
            for offset in plan.offsets:
                begin = self._tuple(offset)
                _MASKS.pack_into(self._page, begin + _MASKS_AT, plan.infomask2, plan.infomask)
                _POINTER.pack_into(self._page, begin + _XMAX_AT, plan.xmax)

    def _compact(self) -> None:
        """Move the tuples together, and remove unused line pointers at the end (`PageRepairFragmentation`)."""
        page = self._page
        _, _, special = _BOUNDS.unpack_from(page, heap.PAGE_BOUNDS_AT)
        kept = [(offset, *self._pointer(offset)) for offset in range(1, self._count() + 1)]
        while kept and kept[-1][2] == _UNUSED:
            kept.pop()
        tuples = [
            (offset, bytes(page[begin : begin + length])) for offset, begin, flags, length in kept if flags == _NORMAL
        ]
        upper = special
        lower = heap.DATA_PAGE_HEADER_BYTES + _POINTER.size * len(kept)
        if special - lower < sum(len(content) + -len(content) % _ALIGNED_BYTES for _, content in tuples):
            raise self._bad("changes a page whose tuples overlap")
        for offset, content in tuples:
            upper -= len(content) + -len(content) % _ALIGNED_BYTES
            page[upper : upper + len(content)] = content
            self._set_pointer(offset, upper, _NORMAL, len(content))
        _BOUNDS.pack_into(page, heap.PAGE_BOUNDS_AT, lower, upper, special)


def _pointer_at(offset: int) -> int:
    return heap.DATA_PAGE_HEADER_BYTES + _POINTER.size * (offset - 1)
