"""One catalog's heap: packed tuples by their place, and which transactions that are still open made or ended them.

Only rows that are live or undecided are kept, so no commit log is needed: the end of a transaction settles its marks.
Rows of system columns (`attnum` < 0) say nothing; they are kept as places only (`ELIDED`), so that a record for a row
that we do not know is always an error.

While a seed is being taken (`learning`) the heap does not know most rows yet. It then remembers the bytes of unknown
rows that page images show, and the places whose rows ended, for the merge with what SQL saw (docs/design/catalog.md).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping

from tidemark.decode.catalog.layout import PG_ATTRIBUTE, CatalogLayout, data_at
from tidemark.decode.catalog.packed_rows import PackedRows, Tid
from tidemark.model.lsn import Oid, Xid
from tidemark.model.relation import RelFileLocator

OFFSET_BITS = 16
OFFSET_MASK = 0xFFFF
ELIDED = b""
_NOBODY = Xid(0)
_KEY = struct.Struct("<I")


def make_tid(block: int, offset: int) -> Tid:
    """Return the place `(block, offset)`."""
    return Tid(block << OFFSET_BITS | offset)


def format_tid(tid: int) -> str:
    """Return `tid` as PostgreSQL prints it."""
    return f"({tid >> OFFSET_BITS},{tid & OFFSET_MASK})"


class Sight:
    """What one transaction sees, or, without one, what is committed."""

    __slots__ = ("_top_of", "top_xid")

    def __init__(self, top_xid: Xid | None, top_of: Mapping[Xid, Xid]) -> None:
        self.top_xid = top_xid
        self._top_of = top_of

    def owns(self, xid: Xid) -> bool:
        """Tell if `xid` is the transaction itself or one of its subtransactions."""
        return self.top_xid is not None and self._top_of.get(xid, xid) == self.top_xid


EVERYBODY = Sight(None, {})


class KeyIndex:
    """Rows by the value of one column: those of the run by an index of it, one that changed bare, several in a set."""

    __slots__ = ("_at", "_changed", "_of_run", "_rows")

    def __init__(self, layout: CatalogLayout, column: str, rows: PackedRows) -> None:
        self._at = layout.offsets[column]
        self._rows = rows
        self._begin()

    def _begin(self) -> None:
        self._changed: dict[int, Tid | set[Tid]] = {}
        self._of_run = self._rows.index(self._at)
        for tid, packed in self._rows.changed():
            if packed:
                self.add(tid, packed)

    def _key(self, packed: bytes) -> int:
        key: int = _KEY.unpack_from(packed, data_at(packed) + self._at)[0]
        return key

    def add(self, tid: Tid, packed: bytes) -> None:
        """Enter the row at `tid`, which has changed."""
        key = self._key(packed)
        there = self._changed.get(key)
        if there is None:
            self._changed[key] = tid
        elif isinstance(there, set):
            there.add(tid)
        elif there != tid:
            self._changed[key] = {there, tid}

    def remove(self, tid: Tid, packed: bytes) -> None:
        """Take the row at `tid` out; one of the run is not found any more once it is gone or has changed there."""
        key = self._key(packed)
        there = self._changed.get(key)
        if isinstance(there, set):
            there.discard(tid)
            if not there:
                del self._changed[key]
        elif there == tid:
            del self._changed[key]

    def find(self, key: int) -> list[tuple[Tid, bytes]]:
        """Return the rows whose column is `key`."""
        if not self._rows.indexes(self._of_run):
            self._begin()
        found = self._rows.of_run(self._of_run, key)
        there = self._changed.get(key)
        if there is not None:
            found += [(tid, self._rows[tid]) for tid in (there if isinstance(there, set) else (there,))]
        return found


class Learning:
    """What a heap remembers about rows that it does not know yet."""

    __slots__ = ("dead", "images")

    def __init__(self) -> None:
        self.images: dict[Tid, bytes] = {}  # bytes of unknown rows, from page images
        self.dead: set[Tid] = set()  # places whose earlier row ended, or was overwritten


class CatalogHeap:
    """The rows of one catalog in one file."""

    __slots__ = ("_indexes", "deleter", "file", "inserter", "layout", "learning", "rows")

    def __init__(self, layout: CatalogLayout, file: RelFileLocator, *, learning: bool = False) -> None:
        self.layout = layout
        self.file = file
        self.rows = PackedRows()
        self.inserter: dict[Tid, Xid] = {}  # of rows whose inserter is open
        self.deleter: dict[Tid, Xid] = {}  # of rows, while learning also unknown ones, whose deleter is open
        self.learning = Learning() if learning else None
        self._indexes: dict[str, KeyIndex] = {}

    def insert(self, tid: Tid, packed: bytes, xid: Xid = _NOBODY) -> None:
        """Put a row at `tid`, in place of whatever stood there; `xid` is its open inserter, if it has one."""
        self._take_out(tid)
        if self.learning:
            self.learning.images.pop(tid, None)
            self.learning.dead.discard(tid)
        self.deleter.pop(tid, None)
        if xid:
            self.inserter[tid] = xid
        if packed and self.layout.catalog is PG_ATTRIBUTE and self._is_system_column(packed):
            packed = ELIDED
        self.rows[tid] = packed
        if packed:
            for index in self._indexes.values():
                index.add(tid, packed)

    def replace(self, tid: Tid, packed: bytes) -> None:
        """Give the row at `tid` new bytes; its marks stay."""
        old = self.rows[tid]
        if old in (packed, ELIDED):
            return
        for index in self._indexes.values():
            index.remove(tid, old)
            index.add(tid, packed)
        self.rows[tid] = packed

    def overwrite(self, tid: Tid, packed: bytes) -> None:
        """Give the row at `tid`, known or only seen, new bytes."""
        if tid in self.rows:
            self.replace(tid, packed)
        elif self.learning:
            self.learning.images[tid] = packed

    def remove(self, tid: Tid) -> None:
        """Forget the row at `tid`: nobody will see it any more."""
        self._take_out(tid)
        self.deleter.pop(tid, None)
        if self.learning:
            self.learning.images.pop(tid, None)
            self.learning.dead.add(tid)

    def _take_out(self, tid: Tid) -> None:
        old = self.rows.pop(tid, None)
        self.inserter.pop(tid, None)
        if old:
            for index in self._indexes.values():
                index.remove(tid, old)

    def commit(self, tid: Tid, xid: Xid) -> None:
        """Settle what `xid` did at `tid`: it committed."""
        if self.inserter.get(tid) == xid:
            del self.inserter[tid]
        if self.deleter.get(tid) == xid:
            self.remove(tid)

    def abort(self, tid: Tid, xid: Xid) -> None:
        """Settle what `xid` did at `tid`: it never happened."""
        if self.inserter.get(tid) == xid:
            self.remove(tid)
        elif self.deleter.get(tid) == xid:
            del self.deleter[tid]

    def tells_of(self, tid: Tid) -> bool:
        """Tell if WAL has told what stands at `tid`, or that nothing does."""
        return tid in self.rows or (self.learning is not None and tid in self.learning.dead)

    def known_bytes(self, tid: Tid) -> bytes | None:
        """Return the bytes of the row at `tid`; None where nothing is known of it."""
        packed = self.rows.get(tid)
        if packed is None and self.learning:
            return self.learning.images.get(tid)
        return packed

    def adopt(self, rows: Iterable[tuple[Tid, bytes]]) -> None:
        """Add the rows that SQL saw, unless WAL told of the place: what it told is later, and in real bytes."""
        learning = self.learning
        assert learning is not None, "rows are adopted while learning"
        for tid, packed in rows:
            if not self.tells_of(tid):
                # NB: an open deleter's mark is there already, and stays.
                self.rows[tid] = learning.images.get(tid, packed) if packed else ELIDED
        self._indexes.clear()

    def stop_learning(self) -> None:
        """Hold that all rows are known from here on."""
        self.learning = None
        self.rows.pack()
        for tid in [tid for tid in self.deleter if tid not in self.rows]:
            del self.deleter[tid]

    def find_committed(self, column: str, key: int) -> Iterator[bytes]:
        """Give the committed rows whose `column` is `key`."""
        return self.find(column, key, EVERYBODY)

    def find(self, column: str, key: int, sight: Sight) -> Iterator[bytes]:
        """Give the rows whose `column` is `key`, as `sight` sees them."""
        index = self._indexes.get(column)
        if index is None:
            index = self._indexes[column] = KeyIndex(self.layout, column, self.rows)
        all_visible = not self.inserter and not self.deleter
        for tid, packed in index.find(key):
            if all_visible or self._visible(tid, sight):
                yield packed

    def scan(self, sight: Sight) -> Iterator[tuple[Tid, bytes]]:
        """Give all rows that `sight` sees, those of system columns left out."""
        for tid, packed in self.rows.pairs():
            if packed and self._visible(tid, sight):
                yield tid, packed

    def row_count(self) -> int:
        """Return how many rows everybody sees."""
        return sum(1 for _ in self.scan(EVERYBODY))

    def _visible(self, tid: Tid, sight: Sight) -> bool:
        inserter = self.inserter.get(tid)
        if inserter is not None and not sight.owns(inserter):
            return False
        deleter = self.deleter.get(tid)
        return deleter is None or not sight.owns(deleter)

    def subject(self, packed: bytes) -> Oid:
        """Return the OID of what the row describes, or helps to describe."""
        at = data_at(packed) + self.layout.offsets[self.layout.catalog.subject]
        return Oid(int.from_bytes(packed[at : at + 4], "little"))

    def _is_system_column(self, packed: bytes) -> bool:
        number_at = data_at(packed) + self.layout.offsets["attnum"]
        return packed[number_at + 1] >= 0x80  # the sign of an int2
