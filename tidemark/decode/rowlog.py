"""The rows of one open transaction, in the order of their records: an arena, no object a row.

Packed tuples lie end to end in one buffer; what else a row has stands in arrays beside it, one an attribute. A log is a
list of *chunks* of bounded size, so that a large transaction can leave memory chunk by chunk (`spill`) and come back
the same way while it is given out.

A subtransaction's abort takes its rows with it. Nothing of the parent is ever written between a subtransaction's first
row and its abort record, so those rows are the tail of the log and are cut off; what has been spilled already stays on
disk and is passed over when it is read back.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from struct import Struct

from tidemark.decode.ports import SpillPort
from tidemark.model.errors import StateError
from tidemark.model.relation import Relation

CHUNK_BYTES = 4 << 20  # a chunk is closed at the row that passes this: spilling writes and reads whole chunks
CHUNK_ROWS = 65536  # bounds the arrays where tuples are tiny
ROW_OVERHEAD_BYTES = 50  # what the arrays take for a row
ABSENT = -1  # offset and length of a tuple that is not there

_COLUMNS = (  # attribute of RowChunk and its array code
    ("op", "B"),
    ("before_kind", "B"),
    ("relation", "I"),
    ("xid", "I"),
    ("lsn", "Q"),
    ("new_at", "q"),
    ("new_length", "q"),
    ("old_at", "q"),
    ("old_length", "q"),
)
_SPILLED = Struct("<QQ")  # rows, bytes of tuples


class RowChunk:
    """Some rows, each the same index in all arrays; offsets point into `tuples`."""

    __slots__ = (
        "before_kind",
        "lsn",
        "new_at",
        "new_length",
        "old_at",
        "old_length",
        "op",
        "relation",
        "tuples",
        "xid",
    )

    def __init__(self) -> None:
        self.tuples = bytearray()
        self.op = array("B")  # the letter of an Op
        self.before_kind = array("B")
        self.relation = array("I")  # index into RowLog.relations
        self.xid = array("I")  # of the subtransaction
        self.lsn = array("Q")
        self.new_at = array("q")
        self.new_length = array("q")
        self.old_at = array("q")
        self.old_length = array("q")

    def __len__(self) -> int:
        return len(self.op)

    @property
    def byte_count(self) -> int:
        """Memory taken, about."""
        return len(self.tuples) + len(self.op) * ROW_OVERHEAD_BYTES

    def new_tuple(self, row: int) -> bytes | None:
        """Return the packed new tuple of `row`."""
        start = self.new_at[row]
        return None if start < 0 else bytes(self.tuples[start : start + self.new_length[row]])

    def old_tuple(self, row: int) -> bytes | None:
        """Return the packed old tuple, or old key, of `row`."""
        start = self.old_at[row]
        return None if start < 0 else bytes(self.tuples[start : start + self.old_length[row]])

    def truncate(self, row_count: int) -> None:
        """Forget the rows from `row_count` on."""
        if row_count >= len(self.op):
            return
        for index in range(row_count, len(self.op)):
            start = self.old_at[index] if self.old_at[index] >= 0 else self.new_at[index]
            if start >= 0:  # the first tuple of the first row that goes: all behind it belongs to rows that go too
                del self.tuples[start:]
                break
        for name, _ in _COLUMNS:
            del getattr(self, name)[row_count:]

    def dump(self) -> bytes:
        """Return the chunk as bytes, for the spill: read back by the same process only."""
        parts = [_SPILLED.pack(len(self.op), len(self.tuples))]
        parts.extend(getattr(self, name).tobytes() for name, _ in _COLUMNS)
        parts.append(bytes(self.tuples))
        return b"".join(parts)

    @classmethod
    def load(cls, content: bytes) -> "RowChunk":
        """Return the chunk that `dump` wrote."""
        rows, tuple_bytes = _SPILLED.unpack_from(content)
        chunk = cls()
        at = _SPILLED.size
        for name, code in _COLUMNS:
            column = array(code)
            length = rows * column.itemsize
            column.frombytes(content[at : at + length])
            setattr(chunk, name, column)
            at += length
        chunk.tuples = bytearray(content[at : at + tuple_bytes])
        if len(chunk.old_length) != rows or len(chunk.tuples) != tuple_bytes:
            raise StateError("a spilled part of a transaction came back shorter than it was written")
        return chunk


@dataclass(frozen=True, slots=True)
class _Spilled:
    """A chunk that is on disk."""

    handle: int
    row_count: int
    rows_of: Mapping[int, int]  # by subtransaction


class RowLog:
    """All rows of a transaction and its subtransactions."""

    __slots__ = ("_chunks", "_dropped", "_relation_index", "_row_base", "byte_count", "relations", "spilled_bytes")

    def __init__(self) -> None:
        self.relations: list[Relation] = []  # RowChunk.relation counts in here
        self.byte_count = 0  # in memory
        self.spilled_bytes = 0
        self._relation_index: dict[Relation, int] = {}
        self._chunks: list[RowChunk | _Spilled] = [RowChunk()]
        self._row_base = 0  # rows before the last chunk
        self._dropped: set[int] = set()  # aborted subtransactions with rows on disk

    @property
    def row_count(self) -> int:
        """Rows logged, those on disk that will be passed over included."""
        return self._row_base + len(self._last)

    @property
    def surviving_count(self) -> int:
        """Rows that will be given out."""
        on_disk = (chunk for chunk in self._chunks if isinstance(chunk, _Spilled))
        return self.row_count - sum(chunk.rows_of.get(xid, 0) for chunk in on_disk for xid in self._dropped)

    @property
    def _last(self) -> RowChunk:
        last = self._chunks[-1]
        assert isinstance(last, RowChunk)
        return last

    def append(
        self,
        op: int,
        relation: Relation,
        lsn: int,
        xid: int,
        *,
        new: bytes | None,
        old: bytes | None,
        before_kind: int,
    ) -> None:
        """Log one row; `op` is the letter's byte, tuples are packed."""
        index = self._relation_index.get(relation)
        if index is None:
            index = self._relation_index[relation] = len(self.relations)
            self.relations.append(relation)
        chunk = self._chunks[-1]
        assert isinstance(chunk, RowChunk)
        tuples = chunk.tuples
        before = len(tuples)
        if old is None:
            chunk.old_at.append(ABSENT)
            chunk.old_length.append(ABSENT)
        else:
            chunk.old_at.append(before)
            chunk.old_length.append(len(old))
            tuples += old
        if new is None:
            chunk.new_at.append(ABSENT)
            chunk.new_length.append(ABSENT)
        else:
            chunk.new_at.append(len(tuples))
            chunk.new_length.append(len(new))
            tuples += new
        chunk.op.append(op)
        chunk.before_kind.append(before_kind)
        chunk.relation.append(index)
        chunk.xid.append(xid)
        chunk.lsn.append(lsn)
        self.byte_count += len(tuples) - before + ROW_OVERHEAD_BYTES
        if len(tuples) >= CHUNK_BYTES or len(chunk.op) >= CHUNK_ROWS:
            self._row_base += len(chunk.op)
            self._chunks.append(RowChunk())

    def drop(self, xids: AbstractSet[int]) -> None:
        """Forget the rows of aborted subtransactions."""
        while True:
            chunk = self._last
            keep = len(chunk)
            while keep and chunk.xid[keep - 1] in xids:
                keep -= 1
            self.byte_count -= chunk.byte_count
            chunk.truncate(keep)
            self.byte_count += chunk.byte_count
            before = self._chunks[-2] if len(self._chunks) > 1 else None
            if keep or not isinstance(before, RowChunk):
                break
            self._chunks.pop()
            self._row_base -= len(before)
        for chunk_on_disk in self._chunks:
            if isinstance(chunk_on_disk, _Spilled):
                self._dropped |= xids & chunk_on_disk.rows_of.keys()
        assert not any(xid in xids for xid in self._last.xid), "an aborted subtransaction's rows are the log's tail"

    def spill(self, port: SpillPort) -> None:
        """Move all rows to `port`."""
        chunks: list[RowChunk | _Spilled] = []
        for chunk in self._chunks:
            if isinstance(chunk, RowChunk) and len(chunk):
                content = chunk.dump()
                chunks.append(_Spilled(port.write(content), len(chunk), Counter(chunk.xid)))
                self.spilled_bytes += len(content)
            elif isinstance(chunk, _Spilled):
                chunks.append(chunk)
        self._row_base = self.row_count
        self._chunks = [*chunks, RowChunk()]
        self.byte_count = 0

    def chunks(self, port: SpillPort | None) -> Iterator[tuple[int, RowChunk]]:
        """Give out the chunks that are left, each with the number of rows logged before it."""
        base = 0
        for chunk in self._chunks:
            if isinstance(chunk, RowChunk):
                yield base, chunk
                base += len(chunk)
            else:
                assert port is not None, "spilled without a port"
                yield base, RowChunk.load(port.read(chunk.handle))
                base += chunk.row_count

    def surviving(self, chunk: RowChunk, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Give out the ranges within rows `start` to `stop` of `chunk` that no aborted subtransaction wrote."""
        if not self._dropped:
            yield start, stop
            return
        begin = start
        for row in range(start, stop):
            if chunk.xid[row] in self._dropped:
                if row > begin:
                    yield begin, row
                begin = row + 1
        if stop > begin:
            yield begin, stop

    def release(self, port: SpillPort | None) -> None:
        """Forget everything, on disk as well."""
        for chunk in self._chunks:
            if isinstance(chunk, _Spilled):
                assert port is not None, "spilled without a port"
                port.release(chunk.handle)
        self._chunks = [RowChunk()]
        self.byte_count = 0
