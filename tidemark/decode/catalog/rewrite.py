"""New files of catalogs, whose pages are in WAL before any record shows which catalog they belong to.

VACUUM FULL and CLUSTER copy a catalog into a transient heap and swap the files when they commit:

  pg_class row with relrewrite     shows that the transaction rewrites that catalog, and the file unless it is mapped
  page images of that file         the copy; a mapped catalog's file is recognised by the shape of its rows
  heap records on that file        the transaction itself continues in the new file, which only it sees
  relation map, or the commit      the file becomes the catalog's (mapped catalogs; all others by their pg_class row)

The xmin and xmax of a copied tuple are interpreted as by the server: by hint bits, else by the transactions open here.
The copy was made before its pages were logged, so an xid that ended in between may have no hint; nor does one whose end
was logged just before the copy began, for the server still considered it running. Aborted xids are remembered until
RUNNING_XACTS is past them and no rewrite is in progress; all others committed.

A multixact in xmax hides the deleter. During a seed, WAL contains it if it is younger than the seed's start
(`Marks.updaters`); afterwards the old file has the same row, with its mark. NB: the server itself replaces the
multixact by the updater if all other members are older than any running transaction (`FreezeMultiXactId`).
"""

from collections.abc import Callable, Iterator
from enum import Enum, auto
from struct import Struct
from typing import NamedTuple

from tidemark.decode.catalog.heap import CatalogHeap, make_tid
from tidemark.decode.catalog.layout import PACKED_HEADER, data_at
from tidemark.decode.catalog.packed_rows import Tid
from tidemark.decode.catalog.transactions import XidStatus
from tidemark.model.lsn import FIRST_NORMAL_XID, INVALID_XID, BlockNumber, Xid
from tidemark.wal.rmgr import heap
from tidemark.wal.rmgr.heap import ATTRIBUTES_MASK
from tidemark.wal.versions import PAGE_BYTES

_U16 = Struct("<H")
_SPECIAL_AT = 16  # pd_special
_XMAX_LOCK_ONLY = 0x0080  # t_infomask (htup_details.h)
_XMAX_EXCLUSIVE_MASK = 0x1050  # HEAP_XMAX_IS_MULTI | HEAP_LOCK_MASK
_XMAX_EXCLUSIVE_LOCK = 0x0040
_XMIN_COMMITTED = 0x0100
_XMIN_INVALID = 0x0200
_XMAX_COMMITTED = 0x0400
_XMAX_INVALID = 0x0800
_XMAX_IS_MULTI = 0x1000


class Hint(Enum):
    """What a tuple's hint bits show, if no transaction is changing its table."""

    LIVE = auto()
    DEAD = auto()
    UNSURE = auto()  # its last writer has ended, and no reader has set a hint bit since


class CopiedRow(NamedTuple):
    """A row of the copy that may be visible, with its open inserter and deleter (0: none)."""

    tid: Tid
    packed: bytes
    inserter: Xid
    deleter: Xid

    @property
    def waits_for(self) -> set[Xid]:
        """The xids whose end decides on the row."""
        return {self.inserter, self.deleter} - {INVALID_XID}


def shape_of(image: bytes) -> int | None:
    """Return the number of columns of the rows on a heap page; None if it is no heap page or has no rows."""
    (special,) = _U16.unpack_from(image, _SPECIAL_AT)
    if special != PAGE_BYTES:
        return None
    found = next(heap.page_tuples(image), None)
    if found is None:
        return None
    infomask2: int = PACKED_HEADER.unpack_from(found[1])[0]
    return infomask2 & ATTRIBUTES_MASK


class Ends(NamedTuple):
    """What is known of the inserters and deleters of rows."""

    status: Callable[[Xid], XidStatus]
    updater: Callable[[Xid], Xid | None]  # of a multixact: the deleter of the row, 0 if there is none; None: unknown
    deleter_behind: Callable[[bytes], Xid | None]  # of a row with an unknown multixact


def copied_rows(block: BlockNumber, image: bytes, ends: Ends) -> Iterator[CopiedRow]:
    """Yield the rows of a page of a copy."""
    for offset, packed, xmin, xmax in heap.page_tuples(image):
        inserter = _inserter(packed, xmin, ends.status)
        deleter = _deleter(packed, xmax, ends)
        if inserter is not None and deleter is not None:
            yield CopiedRow(make_tid(block, offset), packed, inserter, deleter)


def hint_of(packed: bytes, xmin: Xid, xmax: Xid) -> Hint:
    """Return what the tuple shows by itself; without hint bits it is unsure."""
    _, infomask, _ = PACKED_HEADER.unpack_from(packed)
    is_known = infomask & (_XMIN_COMMITTED | _XMIN_INVALID) or xmin < FIRST_NORMAL_XID
    if not infomask & _XMIN_COMMITTED and infomask & _XMIN_INVALID:
        return Hint.DEAD
    if not _is_deleted(infomask, xmax):
        return Hint.LIVE if is_known else Hint.UNSURE
    return Hint.DEAD if infomask & _XMAX_COMMITTED and not infomask & _XMAX_IS_MULTI else Hint.UNSURE


def _is_deleted(infomask: int, xmax: Xid) -> bool:
    """Return whether a transaction has deleted the row, or has tried to."""
    locked = infomask & _XMAX_LOCK_ONLY or infomask & _XMAX_EXCLUSIVE_MASK == _XMAX_EXCLUSIVE_LOCK
    return not (infomask & _XMAX_INVALID or locked or not xmax)


def _inserter(packed: bytes, xmin: Xid, status: Callable[[Xid], XidStatus]) -> Xid | None:
    """Return the row's inserter if it is open, 0 if it has committed; None if it has aborted."""
    _, infomask, _ = PACKED_HEADER.unpack_from(packed)
    if infomask & _XMIN_COMMITTED:  # frozen rows have both bits
        return Xid(0)
    if infomask & _XMIN_INVALID:
        return None
    match status(xmin):
        case XidStatus.OPEN:
            return xmin
        case XidStatus.ABORTED:
            return None
    return Xid(0)


def _deleter(packed: bytes, xmax: Xid, ends: Ends) -> Xid | None:
    """Return the row's deleter if it is open, 0 if there is none; None if the row is deleted."""
    _, infomask, _ = PACKED_HEADER.unpack_from(packed)
    if not _is_deleted(infomask, xmax):
        return Xid(0)
    if infomask & _XMAX_COMMITTED:
        return None
    if infomask & _XMAX_IS_MULTI:
        updater = ends.updater(xmax)
        if updater is None:
            return ends.deleter_behind(packed)
        xmax = updater
    match ends.status(xmax) if xmax else XidStatus.ABORTED:
        case XidStatus.OPEN:
            return xmax
        case XidStatus.ABORTED:
            return Xid(0)
    return None


def deleter_of_twin(packed: bytes, old: CatalogHeap) -> Xid | None:
    """Return the open deleter of the old file's row of which `packed` is a copy, 0 if none; None: the row is gone.

    A transaction may have restored what it had changed: of several equal rows, the one with a deleter counts.
    """
    data = packed[data_at(packed) :]
    twins = [tid for tid, there in old.rows.pairs() if there and there[data_at(there) :] == data]
    if not twins:
        return None
    return next((old.deleter[tid] for tid in twins if tid in old.deleter), Xid(0))
