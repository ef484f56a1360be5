"""One catalog's heap: packed tuples by their tid, and which open transactions inserted or deleted them.

Only rows that are live or undecided are kept, so no commit log is needed: the end of a transaction resolves its marks.
The contents of system columns' rows (`attnum` < 0) are not needed; only their tids are kept (`ELIDED`), so that a
record for an unknown row is always an error.

During a seed (`seeding`) most rows are unknown. The heap then keeps the bytes of unknown rows in page images, and the
tids whose rows ended, for the merge with the rows from SQL (docs/design/catalog.md).
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
_NO_INSERTER = Xid(0)
_KEY = struct.Struct("<I")


def make_tid(block: int, offset: int) -> Tid:
    """Return the tid `(block, offset)` as a number."""
    return Tid(block << OFFSET_BITS | offset)


def format_tid(tid: int) -> str:
    """Return `tid` as PostgreSQL prints it."""
    return f"({tid >> OFFSET_BITS},{tid & OFFSET_MASK})"


class CatalogSnapshot:
    """What one transaction sees, or, without one, what is committed."""

    __slots__ = ("_top_of", "top_xid")

    def __init__(self, top_xid: Xid | None, top_of: Mapping[Xid, Xid]) -> None:
        self.top_xid = top_xid
        self._top_of = top_of

    def owns(self, xid: Xid) -> bool:
        """Return whether `xid` is the transaction itself or one of its subtransactions."""
        return self.top_xid is not None and self._top_of.get(xid, xid) == self.top_xid


COMMITTED_SNAPSHOT = CatalogSnapshot(None, {})


class KeyIndex:
    """Rows by one column: rows of the run by its index; changed rows as a tid, or a set if a key has several."""

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
        """Add the row at `tid`, which has changed."""
        key = self._key(packed)
        there = self._changed.get(key)
        if there is None:
            self._changed[key] = tid
        elif isinstance(there, set):
            there.add(tid)
        elif there != tid:
            self._changed[key] = {there, tid}

    def remove(self, tid: Tid, packed: bytes) -> None:
        """Remove the row at `tid`; a row of the run is skipped once it is gone or has changed."""
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


class SeedRows:
    """What a heap keeps about unknown rows during a seed."""

    __slots__ = ("dead", "images")

    def __init__(self) -> None:
        self.images: dict[Tid, bytes] = {}  # bytes of unknown rows, from page images
        self.dead: set[Tid] = set()  # tids whose earlier row ended, or was overwritten


class CatalogHeap:
    """The rows of one catalog in one file."""

    __slots__ = ("_indexes", "deleter", "file", "inserter", "layout", "rows", "seeding")

    def __init__(self, layout: CatalogLayout, file: RelFileLocator, *, seeding: bool = False) -> None:
        self.layout = layout
        self.file = file
        self.rows = PackedRows()
        self.inserter: dict[Tid, Xid] = {}  # of rows whose inserter is open
        self.deleter: dict[Tid, Xid] = {}  # of rows whose deleter is open; during a seed also of unknown rows
        self.seeding = SeedRows() if seeding else None
        self._indexes: dict[str, KeyIndex] = {}

    def insert(self, tid: Tid, packed: bytes, xid: Xid = _NO_INSERTER) -> None:
        """Store a row at `tid`, replacing any other; `xid` is its open inserter, if it has one."""
        self._remove(tid)
        if self.seeding:
            self.seeding.images.pop(tid, None)
            self.seeding.dead.discard(tid)
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
        """Replace the bytes of the row at `tid`; its marks stay."""
        old = self.rows[tid]
        if old in (packed, ELIDED):
            return
        for index in self._indexes.values():
            index.remove(tid, old)
            index.add(tid, packed)
        self.rows[tid] = packed

    def overwrite(self, tid: Tid, packed: bytes) -> None:
        """Replace the bytes of the row at `tid`, whether known or only in a page image."""
        if tid in self.rows:
            self.replace(tid, packed)
        elif self.seeding:
            self.seeding.images[tid] = packed

    def remove(self, tid: Tid) -> None:
        """Remove the row at `tid`: no transaction can see it any more."""
        self._remove(tid)
        self.deleter.pop(tid, None)
        if self.seeding:
            self.seeding.images.pop(tid, None)
            self.seeding.dead.add(tid)

    def _remove(self, tid: Tid) -> None:
        old = self.rows.take(tid)
        self.inserter.pop(tid, None)
        if old:
            for index in self._indexes.values():
                index.remove(tid, old)

    def commit(self, tid: Tid, xid: Xid) -> None:
        """Apply the commit of `xid` to the row at `tid`."""
        if self.inserter.get(tid) == xid:
            del self.inserter[tid]
        if self.deleter.get(tid) == xid:
            self.remove(tid)

    def abort(self, tid: Tid, xid: Xid) -> None:
        """Apply the abort of `xid` to the row at `tid`."""
        if self.inserter.get(tid) == xid:
            self.remove(tid)
        elif self.deleter.get(tid) == xid:
            del self.deleter[tid]

    def is_determined(self, tid: Tid) -> bool:
        """Return whether WAL has determined the row at `tid`, or its absence."""
        return tid in self.rows or (self.seeding is not None and tid in self.seeding.dead)

    def known_bytes(self, tid: Tid) -> bytes | None:
        """Return the bytes of the row at `tid`; None if they are unknown."""
        packed = self.rows.find(tid)
        if packed is None and self.seeding:
            return self.seeding.images.get(tid)
        return packed

    def add_seeded(self, rows: Iterable[tuple[Tid, bytes]]) -> None:
        """Add the rows from SQL, except where WAL has determined the tid: WAL is later, and has the server's bytes."""
        seeding = self.seeding
        assert seeding is not None, "rows are added during a seed"
        for tid, packed in rows:
            if not self.is_determined(tid):
                # NB: the mark of an open deleter exists already, and stays.
                self.rows[tid] = seeding.images.get(tid, packed) if packed else ELIDED
        self._indexes.clear()

    def end_seed(self) -> None:
        """From now on all rows are known."""
        self.seeding = None
        self.rows.pack()
        for tid in [tid for tid in self.deleter if tid not in self.rows]:
            del self.deleter[tid]

    def find_committed(self, column: str, key: int) -> Iterator[bytes]:
        """Yield the committed rows whose `column` is `key`."""
        return self.find(column, key, COMMITTED_SNAPSHOT)

    def find(self, column: str, key: int, snapshot: CatalogSnapshot) -> Iterator[bytes]:
        """Yield the rows whose `column` is `key`, as `snapshot` sees them."""
        index = self._indexes.get(column)
        if index is None:
            index = self._indexes[column] = KeyIndex(self.layout, column, self.rows)
        all_visible = not self.inserter and not self.deleter
        for tid, packed in index.find(key):
            if all_visible or self._visible(tid, snapshot):
                yield packed

    def scan(self, snapshot: CatalogSnapshot) -> Iterator[tuple[Tid, bytes]]:
        """Yield all rows that `snapshot` sees, without those of system columns."""
        for tid, packed in self.rows.pairs():
            if packed and self._visible(tid, snapshot):
                yield tid, packed

    def row_count(self) -> int:
        """Return the number of committed rows."""
        return sum(1 for _ in self.scan(COMMITTED_SNAPSHOT))

    def _visible(self, tid: Tid, snapshot: CatalogSnapshot) -> bool:
        inserter = self.inserter.get(tid)
        if inserter is not None and not snapshot.owns(inserter):
            return False
        deleter = self.deleter.get(tid)
        return deleter is None or not snapshot.owns(deleter)

    def subject(self, packed: bytes) -> Oid:
        """Return the OID of the object that the row belongs to."""
        at = data_at(packed) + self.layout.offsets[self.layout.catalog.subject]
        return Oid(int.from_bytes(packed[at : at + 4], "little"))

    def _is_system_column(self, packed: bytes) -> bool:
        number_at = data_at(packed) + self.layout.offsets["attnum"]
        return packed[number_at + 1] >= 0x80  # the sign of an int2
