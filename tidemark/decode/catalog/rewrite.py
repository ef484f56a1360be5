"""New files of catalogs, whose pages arrive before anything says what the file is.

VACUUM FULL and CLUSTER copy a catalog into a transient heap and swap the files when they commit:

  pg_class row with relrewrite     marks the transaction: it rewrites that catalog, into that file if it tells one
  page images of that file         the copy; a mapped catalog's is unknown: rows of its shape give it away
  heap records on that file        the transaction itself goes on in the new file: its private view from here on
  relation map, or the commit      the file becomes the catalog's (mapped catalogs; all others by their pg_class row)

What a copied tuple's xmin and xmax mean is decided as the server would: by hint bits, else by what is open here. The
copy was made before its pages were logged, so an xid that ended in between may show no hint; nor does one whose end
was logged just before the copy began, for the server still held it for running. Xids that aborted are remembered until
RUNNING_XACTS leaves them behind and no rewrite is on; all others committed.

A multixact for xmax hides who ends the row. While a seed is being taken, WAL has told of it if he is younger than the
seed (`Marks.updaters`); afterwards the old file has the same row, with its mark. NB: the server itself puts the updater
in place of a multixact where all the others are older than any running transaction (`FreezeMultiXactId`).
"""

from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

from tidemark.decode.catalog.heap import CatalogHeap, Tid, make_tid
from tidemark.decode.catalog.layout import NATTS_MASK, PACKED_HEADER, data_at
from tidemark.decode.catalog.transactions import Fate
from tidemark.model.lsn import INVALID_XID, BlockNumber, Xid
from tidemark.wal.rmgr import heap
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


class CopiedRow(NamedTuple):
    """A row of the copy that somebody may still see, with its open inserter and deleter (0: none)."""

    tid: Tid
    packed: bytes
    inserter: Xid
    deleter: Xid

    @property
    def waits_for(self) -> set[Xid]:
        """Whose end decides on the row."""
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
    return infomask2 & NATTS_MASK


class Ends(NamedTuple):
    """What is known of those that made and ended rows."""

    fate: Callable[[Xid], Fate]
    updaters: Mapping[Xid, Xid]  # of multixacts
    deleter_behind: Callable[[bytes], Xid | None]  # of a row whose xmax is a multixact that is not among them


def copied_rows(block: BlockNumber, image: bytes, ends: Ends) -> Iterator[CopiedRow]:
    """Give the rows of a page of a copy."""
    for offset, packed, xmin, xmax in heap.page_tuples(image):
        inserter = _inserter(packed, xmin, ends.fate)
        deleter = _deleter(packed, xmax, ends)
        if inserter is not None and deleter is not None:
            yield CopiedRow(make_tid(block, offset), packed, inserter, deleter)


def _inserter(packed: bytes, xmin: Xid, fate: Callable[[Xid], Fate]) -> Xid | None:
    """Return who is still open of those that made the row, 0 if nobody is; None if the row never came to be."""
    _, infomask, _ = PACKED_HEADER.unpack_from(packed)
    if infomask & _XMIN_COMMITTED:  # frozen rows have both bits
        return Xid(0)
    if infomask & _XMIN_INVALID:
        return None
    match fate(xmin):
        case Fate.OPEN:
            return xmin
        case Fate.ABORTED:
            return None
    return Xid(0)


def _deleter(packed: bytes, xmax: Xid, ends: Ends) -> Xid | None:
    """Return who is still open of those that ended the row, 0 if nobody is; None if it is gone."""
    _, infomask, _ = PACKED_HEADER.unpack_from(packed)
    locked = infomask & _XMAX_LOCK_ONLY or infomask & _XMAX_EXCLUSIVE_MASK == _XMAX_EXCLUSIVE_LOCK
    if infomask & _XMAX_INVALID or locked or not xmax:
        return Xid(0)
    if infomask & _XMAX_COMMITTED:
        return None
    if infomask & _XMAX_IS_MULTI:
        if xmax not in ends.updaters:
            return ends.deleter_behind(packed)
        xmax = ends.updaters[xmax]
    match ends.fate(xmax):
        case Fate.OPEN:
            return xmax
        case Fate.ABORTED:
            return Xid(0)
    return None


def deleter_of_twin(packed: bytes, old: CatalogHeap) -> Xid | None:
    """Return the open deleter of the row in the old file that `packed` is a copy of, 0 if nobody is; None: it is gone.

    A transaction may have put back what it changed: of several that look the same, it is the one that has a deleter.
    """
    data = packed[data_at(packed) :]
    twins = [tid for tid, there in old.rows.items() if there and there[data_at(there) :] == data]
    if not twins:
        return None
    return next((old.deleter[tid] for tid in twins if tid in old.deleter), Xid(0))
