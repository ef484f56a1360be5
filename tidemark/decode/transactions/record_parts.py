"""Where the parts of a heap record are: the file and the data of its first block, and its main data.

Lengths are checked against the record's end before they are used. Headers that no ordinary record has are refused: the
caller has `parse_record` read the record.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""

from __future__ import annotations

from tidemark.wal import record
from tidemark.wal.versions import RECORD_HEADER_BYTES

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u16, read_u32
else:
    from cython.cimports.tidemark.wal.byte_readers import read_u16, read_u32  # type: ignore[no-redef] # the same ones

# Copies as C integers, which Python code does not see.
RECORD_HEADER = RECORD_HEADER_BYTES
ID_TOP_XID = record.ID_TOP_XID
ID_ORIGIN = record.ID_ORIGIN
ID_MAIN_LONG = record.ID_MAIN_LONG
HAS_IMAGE = record.HAS_IMAGE
SAME_REL = record.SAME_REL
FORK = record.FORK_MASK
IMAGE_HAS_HOLE = record.IMAGE_HAS_HOLE
BLOCK_START = 4  # bytes of a block header before those of its image and its location
IMAGE_HEADER_MAX = 7
LOCATION, BLOCK_NUMBER = 16, 4  # bytes: file and block number; without the file
BLOCK_ID_MAX = record.BLOCK_ID_MAX
ID_MAIN_SHORT = record.ID_MAIN_SHORT
NO_BYTES = b""

Buffer = bytes | bytearray


class RecordParts:
    """The parts of the last record that was read; offsets are in the block of records."""

    def __init__(self, image_compressed: int) -> None:
        self.linear: Buffer = NO_BYTES  # the current block: an argument of this type would be copied by each call
        self.image_compressed = image_compressed  # bits of an image's info (WalFormat)
        self.at = self.end = 0
        self.promised = 0  # bytes of data announced by the headers so far
        self.blocks = self.origin = 0
        self.top = 0  # xid named by the first record of a subtransaction
        self.image_length = 0  # of the first block
        self.data_at = self.data_length = 0
        self.main_at = self.main_length = 0
        self.spc = self.db = self.rel = self.block = 0

    def read(self, begin: int, length: int) -> int:
        """Locate the first block's file and data, and the main data; return 0 if the headers are not ordinary."""
        self.at = begin + RECORD_HEADER
        self.end = begin + length
        self.promised = self.blocks = self.origin = self.top = 0
        main = 0
        while self.end - self.at > self.promised:
            header = self.linear[self.at]
            if header <= BLOCK_ID_MAX:
                if not self.read_block():
                    return 0
            elif header == ID_ORIGIN and self.end - self.at >= 3:
                self.origin = read_u16(self.linear, self.at + 1)
                self.at += 3
            elif header == ID_TOP_XID and self.end - self.at >= 5:
                self.top = read_u32(self.linear, self.at + 1)
                self.at += 5
            elif header == ID_MAIN_SHORT and self.end - self.at >= 2:
                main = self.linear[self.at + 1]
                self.at += 2
                break
            elif header == ID_MAIN_LONG and self.end - self.at >= 5:
                main = read_u32(self.linear, self.at + 1)
                self.at += 5
                break
            else:
                return 0
        if self.blocks == 0 or self.end - self.at != self.promised + main:
            return 0
        self.data_at = self.at + self.image_length
        self.main_at = self.at + self.promised
        self.main_length = main
        return 1

    def read_block(self) -> int:
        """Read the header of a block reference at `at`; return 0 if it is not ordinary."""
        at = self.at
        if self.end - at < BLOCK_START or self.linear[at] != self.blocks:
            return 0
        flags = self.linear[at + 1]
        data_length = read_u16(self.linear, at + 2)
        image_length = 0
        at += BLOCK_START
        size = BLOCK_NUMBER if flags & SAME_REL else LOCATION
        if self.end - at < (size + IMAGE_HEADER_MAX if flags & HAS_IMAGE else size):
            return 0
        if flags & HAS_IMAGE:
            image_length = read_u16(self.linear, at)
            compressed = self.linear[at + 4] & self.image_compressed and self.linear[at + 4] & IMAGE_HAS_HOLE
            at += 7 if compressed else 5
        first = self.blocks == 0
        if first:
            if flags & (SAME_REL | FORK):
                return 0
            self.image_length = image_length
            self.data_length = data_length
            self.spc = read_u32(self.linear, at)
            self.db = read_u32(self.linear, at + 4)
            self.rel = read_u32(self.linear, at + 8)
            self.block = read_u32(self.linear, at + 12)
        at += size
        self.promised += image_length + data_length
        self.blocks += 1
        self.at = at
        return 1
