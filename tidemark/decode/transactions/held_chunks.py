"""Chunks of TOASTed values, until the row that owns them.

A chunk is a range of bytes here. The row that points to its value gets the value's bytes in place of the pointer, by
the rules of `datum.toast`. The bytes are in the current block. At the end of the block, the chunks without a row are
copied into the buffer `carried`. `Decoder.decode` processes the records of the chunks if the loop cannot continue with
them, or if they exceed the bounds of the buffer.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tidemark.decode.datum import varlena
from tidemark.decode.datum.lookup import IntegerMap
from tidemark.wal.page import RECORDS_MAX
from tidemark.wal.rmgr import heap

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u16, read_u32
else:
    from cython.cimports.libc.string import memcpy, memmove
    from cython.cimports.tidemark.wal.byte_readers import (  # type: ignore[no-redef] # the same ones
        read_u16,
        read_u32,
    )

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK_COLUMNS = 6
LAYOUT_INTEGERS_MAX = 1 << 20  # two for each column of each layout; above it all are forgotten
CARRIED_BYTES_MAX = 8 << 20
NONE = -1  # no chunk

# Copies as C integers, which Python code does not see.
BLOCK_RECORDS = RECORDS_MAX
CHUNKS_MAX = 2 * RECORDS_MAX  # carried ones, and all of a block
CARRIED_MAX = CARRIED_BYTES_MAX
NO_CHUNK = NONE
REFUSED = 0  # no row has this length
TUPLE_HEADER_SIZE = heap.TUPLE_HEADER_BYTES
PACKED_HEADER_SIZE = heap.PACKED_HEADER_BYTES
COLUMN_COUNT_BITS = heap.ATTRIBUTES_MASK
NULLS = heap.HAS_NULLS
CHUNK_KEY = 8  # bytes: chunk_id, chunk_seq; chunk_data follows
PLAIN_HEADER = varlena.PLAIN_HEADER_BYTES
POINTER_BYTES = varlena.EXTERNAL_DATUM_BYTES
POINTER_TAG = varlena.EXTERNAL_TAG_ON_DISK
POINTER_BYTE = varlena.EXTERNAL_HEADER
SHORT_BIT = varlena.SHORT_HEADER
COMPRESSED_BITS = varlena.COMPRESSED_HEADER_BITS
STORED_BITS = varlena.LENGTH_MASK
VARIABLE = varlena.VARLENA
NO_BYTES = b""

Buffer = bytes | bytearray


class HeldChunks:
    """The chunks in the order of their records, and the layouts of rows that can point to them."""

    def __init__(self) -> None:
        self.linear: Buffer = NO_BYTES  # the current block: an argument of this type would be copied by each call
        self.joined = bytearray(1)  # the last row that was joined
        self.size = 0  # of it
        self.layout = self.head = 0  # its columns in `columns`; where its values begin
        self.has_nulls = False
        self.base = self.position = self.end = 0  # in the block, of the row as it was: values, next value, end
        self.has_values = False  # whether it is not simply the row as it was
        self.layouts = IntegerMap()  # from the number of a relation version plus 1 to its columns in `columns`
        self.columns = array("i", bytes(4 * 64))  # for each layout: how many columns; length and alignment of each
        self.column_count = 0
        rows = [array("q", bytes(8 * CHUNKS_MAX)) for _ in range(CHUNK_COLUMNS)]
        # xid 0: joined, forgotten. A record's number is `first_record` of its block plus its place there.
        self.xids, self.records, self.values, self.numbers, self.starts, self.sizes = rows
        self.first_record = self.oldest_record = 0  # the latter after `carry`
        self.carried = bytearray(1)  # bytes of the first `carried_count` chunks
        self.carried_count = self.carried_size = 0
        self.first = 0  # before it, none is left
        self.count = 0
        self.left = 0

    def set_layout(self, number: int, lengths: Sequence[int], aligns: Sequence[int]) -> None:
        """Set lengths and alignments of the columns of a relation version, unless they are known."""
        if self.has_layout(number) or any(length < VARIABLE or length == 0 for length in lengths):
            return
        if self.column_count > LAYOUT_INTEGERS_MAX:
            self.forget_layouts()
        added = [len(lengths), *(value for pair in zip(lengths, aligns, strict=True) for value in pair)]
        needed = self.column_count + len(added)
        if needed > len(self.columns):
            kept = list(self.columns[: self.column_count])
            self.columns = array("i", kept + [0] * (2 * needed - len(kept)))
        for at, value in enumerate(added):
            self.columns[self.column_count + at] = value
        self.layouts.put(number + 1, self.column_count + 1)
        self.column_count = needed

    def has_layout(self, number: int) -> bool:
        """Return whether the columns of a relation version are known: of many, all are forgotten at times."""
        return bool(self.layouts.get(number + 1))

    def forget_layouts(self) -> None:
        """Forget all layouts: relation versions get other numbers."""
        self.layouts = IntegerMap()
        self.column_count = 0

    def begin(self, linear: Buffer) -> int:
        """Begin with a block of records, or continue with it."""
        self.linear = linear
        if len(self.joined) < len(linear) + self.carried_size:
            self.joined = bytearray(len(linear) + self.carried_size)
        return 0

    def carry(self, linear: Buffer) -> int:
        """Keep the chunks that are left at the end of a block; return 0 if they are too many."""
        size = 0
        for at in range(self.first, self.count):
            size += self.sizes[at] if self.xids[at] != 0 else 0
        if size > CARRIED_MAX or self.left > BLOCK_RECORDS:
            return 0
        if len(self.carried) < size:
            grown = bytearray(max(size, 2 * self.carried_size))
            grown[: self.carried_size] = bytes(self.carried[: self.carried_size])
            self.carried = grown
        self.linear = linear
        self.move()
        self.linear = NO_BYTES
        self.first_record = self.first_record + BLOCK_RECORDS if self.left > 0 else 0
        return 1

    def move(self) -> int:
        """Move the chunks that are left to the beginning, and their bytes to the buffer."""
        count = size = 0
        for at in range(self.first, self.count):
            if self.xids[at] == 0:
                continue
            begin = self.starts[at]
            length = self.sizes[at]
            if not cython.compiled:
                source = self.carried if at < self.carried_count else self.linear
                self.carried[size : size + length] = source[begin : begin + length]
            elif length > 0 and at >= self.carried_count:
                memcpy(cython.address(self.carried[size]), cython.address(self.linear[begin]), length)
            elif length > 0 and begin != size:
                memmove(cython.address(self.carried[size]), cython.address(self.carried[begin]), length)
            self.xids[count] = self.xids[at]
            self.records[count] = self.records[at]
            self.values[count] = self.values[at]
            self.numbers[count] = self.numbers[at]
            self.starts[count] = size
            self.sizes[count] = length
            size += length
            count += 1
        self.oldest_record = self.records[0]
        self.first = 0
        self.count = self.carried_count = count
        self.carried_size = size
        return 0

    def hold(self, xid: int, record: int, at: int, length: int) -> int:
        """Hold a row of a TOAST table; return 0 if it is not the next chunk of a value."""
        begin = at + PACKED_HEADER_SIZE + self.linear[at + 4] - TUPLE_HEADER_SIZE
        space = at + length - begin - CHUNK_KEY
        if space < 1 or self.count == CHUNKS_MAX:
            return 0
        value = read_u32(self.linear, begin)
        number = read_u32(self.linear, begin + 4)
        begin += CHUNK_KEY
        header = 1
        first = self.linear[begin]
        size = first >> 1
        if not first & SHORT_BIT:
            if first & COMPRESSED_BITS or space < PLAIN_HEADER:
                return 0
            header = PLAIN_HEADER
            size = read_u32(self.linear, begin) >> 2
        if size < header or size > space or not self.is_next(xid, value, number):
            return 0
        self.xids[self.count] = xid
        self.records[self.count] = self.first_record + record
        self.values[self.count] = value
        self.numbers[self.count] = number
        self.starts[self.count] = begin + header
        self.sizes[self.count] = size - header
        self.count += 1
        self.left += 1
        return 1

    def is_next(self, xid: int, value: int, number: int) -> int:
        """Return whether chunk `number` of a value follows the ones that are held."""
        if number == 0:  # NB: a value that begins a second time is refused when it is joined
            return 1
        at = self.count - 1
        while at >= self.first:
            if self.xids[at] == xid and self.values[at] == value:
                return 1 if self.numbers[at] + 1 == number else 0
            at -= 1
        return 0

    def has(self, xid: int) -> int:
        """Return whether chunks of a transaction are held."""
        for at in range(self.first, self.count):
            if self.xids[at] == xid:
                return 1
        return 0

    def forget(self, xid: int) -> int:
        """Forget the chunks of a transaction: the row that owned them was read."""
        for at in range(self.first, self.count):
            if self.xids[at] == xid:
                self.xids[at] = 0
                self.left -= 1
        return self.advance()

    def advance(self) -> int:
        """Move the beginning of what is held to the first chunk that is left."""
        if self.left == 0:
            self.first = self.count = self.carried_count = self.carried_size = 0
        while self.first < self.count and self.xids[self.first] == 0:
            self.first += 1
        return 0

    def take(self) -> list[int]:
        """Return the numbers of the records of all chunks, in their order, and hold none."""
        records = [self.records[at] for at in range(self.first, self.count) if self.xids[at] != 0]
        self.left = 0
        self.advance()
        return records

    def find(self, xid: int, value: int) -> int:
        """Return the first chunk of a value; NONE if it is not held."""
        for at in range(self.first, self.count):
            if self.xids[at] == xid and self.values[at] == value:
                return at
        return NO_CHUNK

    def join(self, xid: int, version: int, at: int, length: int, consume: bool) -> int:  # noqa: FBT001
        """Write a row with the values that are held to `joined`; return its length, 0 if it is not ordinary.

        `consume`: the chunks are used up.
        """
        stored = self.begin_row(version, at, length)
        for index in range(stored):
            byte = self.linear[at + PACKED_HEADER_SIZE + (index >> 3)] if self.has_nulls else 0xFF
            if byte >> (index & 7) & 1 and not self.put_column(xid, index, consume):
                return REFUSED
        return self.size

    def begin_row(self, version: int, at: int, length: int) -> int:
        """Begin with a row's header; return the number of its columns, 0 with `size` 0 if it is not ordinary."""
        self.layout = self.layouts.get(version + 1)
        self.size = 0
        self.has_values = False
        if self.layout == 0:
            return 0
        stored = read_u16(self.linear, at) & COLUMN_COUNT_BITS
        self.has_nulls = read_u16(self.linear, at + 2) & NULLS != 0
        hoff = self.linear[at + 4]
        bitmap = (stored + 7) >> 3 if self.has_nulls else 0
        self.base = at + PACKED_HEADER_SIZE + hoff - TUPLE_HEADER_SIZE
        self.end = at + length
        self.position = self.base
        is_valid = hoff & 7 == 0 and hoff >= TUPLE_HEADER_SIZE + bitmap and self.base <= self.end
        if not is_valid or stored > self.columns[self.layout - 1] or not self.put(at, self.base - at):
            return 0
        self.head = self.size
        return stored

    def put_column(self, xid: int, index: int, consume: bool) -> int:  # noqa: FBT001
        """Append the next column that is not NULL; return 0 if it is not valid."""
        size = self.columns[self.layout + 2 * index]
        mask = self.columns[self.layout + 2 * index + 1] - 1
        is_variable = size == VARIABLE
        if not is_variable or (self.position < self.end and self.linear[self.position] == 0):
            self.position += (self.base - self.position) & mask
        if is_variable:
            size = self.datum_size(self.position, self.end)
        if size <= 0 or size > self.end - self.position:
            return 0
        at = self.position
        self.position += size
        first = self.linear[at]
        chunk = self.find(xid, read_u32(self.linear, at + 10)) if is_variable and first == POINTER_BYTE else NO_CHUNK
        is_aligned = chunk != NO_CHUNK or not is_variable or not first & SHORT_BIT
        if is_aligned and not self.pad((self.head - self.size) & mask):
            return 0
        return self.put(at, size) if chunk == NO_CHUNK else self.put_value(chunk, at, consume)

    def datum_size(self, at: int, end: int) -> int:
        """Return the length of a datum, header included (`varlena.datum_length`); 0 if it is not valid."""
        if at >= end:
            return 0
        first = self.linear[at]
        if first == POINTER_BYTE:
            return POINTER_BYTES if end - at >= POINTER_BYTES and self.linear[at + 1] == POINTER_TAG else 0
        if first & SHORT_BIT:
            return first >> 1
        size = read_u32(self.linear, at) >> 2 if end - at >= PLAIN_HEADER else 0
        return size if size >= PLAIN_HEADER else 0

    def put_value(self, chunk: int, pointer: int, consume: bool) -> int:  # noqa: FBT001
        """Append the value of which `chunk` is the first; return 0 if it is not the one in `pointer`."""
        raw = read_u32(self.linear, pointer + 2)
        stored = read_u32(self.linear, pointer + 6) & STORED_BITS
        if raw < PLAIN_HEADER or stored > len(self.joined) or not self.pad(PLAIN_HEADER):
            return 0
        header = (stored + PLAIN_HEADER) << 2 | (COMPRESSED_BITS if stored < raw - PLAIN_HEADER else 0)
        for byte in range(PLAIN_HEADER):
            self.joined[self.size - PLAIN_HEADER + byte] = header >> (8 * byte) & 0xFF
        xid = self.xids[chunk]
        value = self.values[chunk]
        left = stored
        number = 0
        for at in range(chunk, self.count):
            if self.xids[at] != xid or self.values[at] != value:
                continue
            if self.numbers[at] != number or self.sizes[at] > left or not self.put_chunk(at):
                return 0
            left -= self.sizes[at]
            number += 1
            if consume:
                self.xids[at] = 0
                self.left -= 1
            if left == 0:
                break
        self.has_values = True
        return 1 if left == 0 else 0

    def put_chunk(self, chunk: int) -> int:
        """Append the bytes of a chunk; return 0 if there is no space for them."""
        at = self.starts[chunk]
        length = self.sizes[chunk]
        if chunk >= self.carried_count:
            return self.put(at, length)
        if length > len(self.joined) - self.size:
            return 0
        if cython.compiled:
            if length > 0:
                memcpy(cython.address(self.joined[self.size]), cython.address(self.carried[at]), length)
        else:
            self.joined[self.size : self.size + length] = self.carried[at : at + length]
        self.size += length
        return 1

    def put(self, at: int, length: int) -> int:
        """Append bytes of the block; return 0 if there is no space for them."""
        if length < 0 or length > len(self.joined) - self.size:
            return 0
        if cython.compiled:
            if length > 0:
                memcpy(cython.address(self.joined[self.size]), cython.address(self.linear[at]), length)
        else:
            self.joined[self.size : self.size + length] = self.linear[at : at + length]
        self.size += length
        return 1

    def pad(self, length: int) -> int:
        """Append zeros; return 0 if there is no space for them."""
        if length > len(self.joined) - self.size:
            return 0
        for at in range(length):
            self.joined[self.size + at] = 0
        self.size += length
        return 1
