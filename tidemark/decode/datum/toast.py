"""Reassembles TOASTed values: their chunks are rows of the TOAST table that precede the row which owns them.

Chunks are kept for each subtransaction until that row was read, then dropped (`ReorderBufferToastReset`,
`reorderbuffer.c`, PG 16): a pointer without chunks refers to a value written earlier, which is not in WAL again.
A multi-insert is one operation with many rows: its chunks are dropped after its last record. The chunks of a value are
dropped as soon as it is reassembled: each belongs to one row, and a value can be a gigabyte.
"""

import struct

from tidemark.decode.datum.tuples import TupleLayout, external_pointers, replace_external
from tidemark.decode.datum.varlena import BadDatum, ExternalPointer, datum_length, read_datum, reassembled_datum
from tidemark.model.lsn import Oid
from tidemark.wal.rmgr.heap import HOFF_AT, PACKED_HEADER_BYTES, TUPLE_HEADER_BYTES

HAS_EXTERNAL = 0x0004  # of infomask: some value is stored in a TOAST table
INFOMASK_AT = 2
_CHUNK_KEY = struct.Struct("<Ii")  # chunk_id, chunk_seq; chunk_data follows


def chunk_key(packed: bytes) -> tuple[Oid, int]:
    """Return the value of a row of a TOAST table, and its number among the chunks of that value."""
    at = _key_at(packed)
    value_id, number = _CHUNK_KEY.unpack_from(packed, at)
    return Oid(value_id), number


def chunk_content(packed: bytes) -> bytes:
    """Return the data in a row of a TOAST table."""
    at = _key_at(packed) + _CHUNK_KEY.size
    content = read_datum(packed, at, datum_length(packed, at))
    if isinstance(content, ExternalPointer):
        value_id, number = chunk_key(packed)
        raise BadDatum(f"chunk {number} of TOAST value {value_id} is itself a pointer")
    return content


def _key_at(packed: bytes) -> int:
    at = PACKED_HEADER_BYTES + packed[HOFF_AT] - TUPLE_HEADER_BYTES
    if len(packed) < at + _CHUNK_KEY.size:
        raise BadDatum(f"TOAST chunk of {len(packed)} bytes")
    return at


class ToastChunks:
    """Chunks of values whose owning rows have not been read yet."""

    __slots__ = ("_values", "byte_count")

    def __init__(self) -> None:
        self._values: dict[Oid, list[bytes]] = {}
        self.byte_count = 0

    def add(self, packed: bytes) -> None:
        """Add one row of a TOAST table."""
        value_id, number = chunk_key(packed)
        content = chunk_content(packed)
        if number == 0:
            self._values[value_id] = []
        chunks = self._values.get(value_id, [])
        if number != len(chunks):
            raise BadDatum(f"chunk {number} of TOAST value {value_id} comes after {len(chunks)} chunks")
        chunks.append(content)
        self.byte_count += len(content)

    def clear(self) -> None:
        """Drop all chunks: the row that owned them was read."""
        self._values.clear()
        self.byte_count = 0

    def fill_in(self, packed: bytes, layout: TupleLayout) -> bytes:
        """Return `packed` with pointers replaced by the values that are here; drop their chunks."""
        if not self._values or not packed[INFOMASK_AT] & HAS_EXTERNAL:
            return packed
        datums = {}
        for column, pointer in external_pointers(packed, layout):
            chunks = self._values.pop(pointer.value_id, None)
            if chunks is not None:
                datums[column] = reassembled_datum(pointer, chunks)
                self.byte_count -= pointer.stored_size
        return replace_external(packed, layout, datums) if datums else packed
