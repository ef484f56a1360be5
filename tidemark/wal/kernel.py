"""The loop over WAL bytes: removes page headers, finds records and checks them. `page` does everything else.

The module is compiled if a compiler is available (its `.pxd` declares the types) and interpreted otherwise; the results
are the same. It uses integers and bytes only and creates no object for a record.

One pass, page by page, so that each page header is checked against the current state: inside a record the page must
continue that record, between records it must not. After each copy into the linear buffer, all whole records are
processed; at most one record remains, and its first eight bytes are always on one page.

NB: assign a byte to a name before shifting it, and write no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0911 - each way out of a check is a defect with a name

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from tidemark.wal.rmgr import xlog
from tidemark.wal.segments import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from tidemark.wal.versions import (
    LONG_PAGE_HEADER_BYTES,
    PAGE_BYTES,
    PAGE_HEADER_BYTES,
    RECORD_BYTES_MAX,
    RECORD_CRC_AT,
    RECORD_HEADER_BYTES,
    RMGRS,
)

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if TYPE_CHECKING:
    from array import array

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u16, read_u32, read_u64
else:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidemark.wal.byte_readers import read_u16, read_u32, read_u64  # type: ignore[no-redef] # the same ones
    from cython.cimports.tidemark.wal.crc32c import prepare_crc, record_crc


class Defect(IntEnum):
    """The error in bytes that are not valid WAL, by the field that shows it."""

    PAGE_MAGIC = 1
    PAGE_INFO = 2
    PAGE_ADDRESS = 3
    PAGE_TIMELINE = 4
    SYSTEM_IDENTIFIER = 5
    SEGMENT_BYTES = 6
    BLOCK_BYTES = 7
    LONG_HEADER = 8
    CONTRECORD_MISSING = 9
    CONTRECORD_UNEXPECTED = 10
    REM_LEN = 11
    TOTAL_LENGTH = 12
    RMGR = 13
    PREV = 14
    CRC = 15
    OVERWRITTEN = 16
    START = 17


# Copies as C integers, which the loop can read without the interpreter.
BAD_MAGIC = int(Defect.PAGE_MAGIC)
BAD_INFO = int(Defect.PAGE_INFO)
BAD_ADDRESS = int(Defect.PAGE_ADDRESS)
BAD_TIMELINE = int(Defect.PAGE_TIMELINE)
BAD_SYSTEM = int(Defect.SYSTEM_IDENTIFIER)
BAD_SEGMENT = int(Defect.SEGMENT_BYTES)
BAD_BLOCK = int(Defect.BLOCK_BYTES)
BAD_LONG = int(Defect.LONG_HEADER)
BAD_MISSING = int(Defect.CONTRECORD_MISSING)
BAD_UNEXPECTED = int(Defect.CONTRECORD_UNEXPECTED)
BAD_REM_LEN = int(Defect.REM_LEN)
BAD_LENGTH = int(Defect.TOTAL_LENGTH)
BAD_RMGR = int(Defect.RMGR)
BAD_PREV = int(Defect.PREV)
BAD_CRC = int(Defect.CRC)
BAD_OVERWRITTEN = int(Defect.OVERWRITTEN)
BAD_START = int(Defect.START)
PAGE = int(PAGE_BYTES)
SHORT_HEADER = int(PAGE_HEADER_BYTES)
LONG_HEADER = int(LONG_PAGE_HEADER_BYTES)
RECORD_HEADER = int(RECORD_HEADER_BYTES)
CRC_AT = int(RECORD_CRC_AT)
RECORD_MAX = int(RECORD_BYTES_MAX)
NO_BYTES = bytearray()
SEGMENT_MIN = int(SEGMENT_BYTES_MIN)
SEGMENT_MAX = int(SEGMENT_BYTES_MAX)

FIRST_IS_CONTRECORD = 1  # XLP_FIRST_IS_CONTRECORD
LONG_PAGE_HEADER = 2  # XLP_LONG_HEADER
OVERWRITE_CONTRECORD = 8  # XLP_FIRST_IS_OVERWRITE_CONTRECORD
ALL_PAGE_FLAGS = 15
SWITCH_INFO = xlog.SWITCH
OVERWRITE_INFO = xlog.OVERWRITE_CONTRECORD
OVERWRITE_BYTES = 34  # minimum size of such a record: a header, the main data's header, and an LSN

COMPILED = bool(cython.compiled)  # if false, `page` computes CRCs with a library
CRC_INSTRUCTION = prepare_crc() if cython.compiled else 0
CRC_IN_LOOP = int(cython.compiled)


class Scanner:
    """The state of the scan, in integers. `page.Framer` owns one and reads it between two scans."""

    def __init__(self, magic: int, rmgr_last: int, rmgr_custom: int) -> None:
        # The buffers of a scan: arguments of this type would be copied by each call.
        self.source = memoryview(NO_BYTES)
        self.linear = memoryview(NO_BYTES)
        self.magic = magic
        self.rmgr_last = rmgr_last
        self.rmgr_custom = rmgr_custom  # the first custom one; 256 if the major has none
        self.by_instruction = CRC_INSTRUCTION  # 0: CRCs by tables
        self.quiet = memoryview(bytes(RMGRS))  # by resource manager: 1 where records are left out (`Framer.leave_out`)
        self.segment_bytes = 0  # 0: not known yet
        self.system_identifier = 0  # 0: not known yet
        self.timeline_max = 0  # 0: not bounded
        self.timeline = 0  # of the last page header read
        self.lsn = 0  # of the next byte of input
        self.skip_to = 0  # input below is dropped
        self.start_lsn = 0  # records below it are framed, but not returned
        self.start_found = False
        self.started = False  # a page header, or an exact start, was read
        self.foreign = 0  # remaining bytes, aligned, of a record that began before the input
        self.used = 0  # bytes of the linear buffer that are filled
        self.record = 0  # offset of the next record in the linear buffer; up to 7 above `used`
        self.record_lsn = 0  # its LSN, once its length is known
        self.total = 0  # its length, once known
        self.found = 0  # offset in the linear buffer of the record that was framed last
        self.length = 0  # its length
        self.end_lsn = 0  # LSN after it and its padding
        self.prev_lsn = 0  # start of the previous record; 0: none was read
        self.overwritten_lsn = 0  # start of a record that a crash cut off; the next record must name it
        self.count = 0  # records returned by this scan
        self.left_out = 0  # records left out by this scan
        self.found_bytes = 0  # bytes of both, without padding
        self.defect = 0  # a Defect; the scan does not continue after it
        self.defect_lsn = 0

    def scan(  # noqa: PLR0917 - the columns of a RecordBlock
        self,
        source: memoryview,
        at: int,
        linear: memoryview,
        lsns: array[int],
        ends: array[int],
        xids: array[int],
        rmgrs: array[int],
        infos: array[int],
        offsets: array[int],
        lengths: array[int],
    ) -> int:
        """Process input from `at` on and fill the columns; return how far the input was processed.

        It stops at a defect, at a full column or linear buffer, or at the end of the input: up to 39 bytes, the
        beginning of a page header, can remain there.
        """
        self.source = source
        self.linear = linear
        size = len(source)
        limit = len(lsns)
        consumed = 1
        self.count = 0
        self.left_out = 0
        self.found_bytes = 0
        last_xid = 0
        with cython.nogil:
            while True:
                while self.record < self.used and self.count < limit:
                    if not self.walk():
                        break
                    if self.record_lsn < self.start_lsn:
                        continue
                    self.found_bytes += self.length
                    at_row = self.count
                    xid = read_u32(self.linear, self.found + 4)
                    rmgr = self.linear[self.found + 17]
                    if self.quiet[rmgr] != 0 and at_row > 0 and xid in (last_xid, 0):
                        self.left_out += 1
                        continue
                    last_xid = xid
                    lsns[at_row] = self.record_lsn
                    ends[at_row] = self.end_lsn
                    xids[at_row] = xid
                    rmgrs[at_row] = rmgr
                    infos[at_row] = self.linear[self.found + 16]
                    offsets[at_row] = self.found
                    lengths[at_row] = self.length
                    self.count = at_row + 1
                if self.defect != 0 or self.count == limit or consumed == 0:
                    break
                consumed = self.copy_page(at, size)
                at += consumed
                self.lsn += consumed
        self.source = self.linear = memoryview(NO_BYTES)
        return at

    def copy_page(self, at: int, size: int) -> int:
        """Check, copy or skip the next input, at most to the end of its page; return its length."""
        left = size - at
        if self.lsn < self.skip_to:
            ahead = self.skip_to - self.lsn
            return min(left, ahead)
        in_page = self.lsn % PAGE
        if in_page == 0:
            return self.read_page_header(at, size)
        consumed = min(left, PAGE - in_page)
        if self.foreign > 0:
            consumed = min(consumed, self.foreign)
            self.foreign -= consumed
            return consumed
        consumed = min(consumed, len(self.linear) - self.used)
        if cython.compiled:
            if consumed > 0:
                memcpy(cython.address(self.linear[self.used]), cython.address(self.source[at]), consumed)
        else:
            self.linear[self.used : self.used + consumed] = self.source[at : at + consumed]
        self.used += consumed
        return consumed

    def fail(self, defect: int, lsn: int) -> int:
        """Record a defect."""
        self.defect = defect
        self.defect_lsn = lsn
        return 0

    def read_page_header(self, at: int, size: int) -> int:
        """Check the page header at `at`; return its length, 0 if it is incomplete or invalid."""
        if size - at < SHORT_HEADER:
            return 0
        magic = read_u16(self.source, at)
        info = read_u16(self.source, at + 2)
        timeline = read_u32(self.source, at + 4)
        address = read_u64(self.source, at + 8)
        rem_len = read_u32(self.source, at + 16)
        if magic != self.magic:
            return self.fail(BAD_MAGIC, self.lsn)
        if info > ALL_PAGE_FLAGS:
            return self.fail(BAD_INFO, self.lsn)
        length = LONG_HEADER if info & LONG_PAGE_HEADER else SHORT_HEADER
        if size - at < length or not self.check_long_header(at, length):
            return 0
        if address != self.lsn:
            return self.fail(BAD_ADDRESS, self.lsn)
        if timeline < self.timeline or (self.timeline_max != 0 and timeline > self.timeline_max):
            return self.fail(BAD_TIMELINE, self.lsn)
        if not self.check_contrecord(info, rem_len):
            return 0
        self.timeline = timeline
        self.started = True
        return length

    def check_long_header(self, at: int, length: int) -> int:
        """Check the fields of a segment's first page; adopt the values that were not known."""
        if length == SHORT_HEADER:
            if self.segment_bytes != 0 and self.lsn % self.segment_bytes == 0:
                return self.fail(BAD_LONG, self.lsn)
            return 1
        system_identifier = read_u64(self.source, at + 24)
        segment_bytes = read_u32(self.source, at + 32)
        block_bytes = read_u32(self.source, at + 36)
        if self.system_identifier not in (0, system_identifier):
            return self.fail(BAD_SYSTEM, self.lsn)
        if segment_bytes < SEGMENT_MIN or segment_bytes > SEGMENT_MAX or segment_bytes & (segment_bytes - 1) != 0:
            return self.fail(BAD_SEGMENT, self.lsn)
        if self.segment_bytes not in (0, segment_bytes):
            return self.fail(BAD_SEGMENT, self.lsn)
        if block_bytes != PAGE:
            return self.fail(BAD_BLOCK, self.lsn)
        if self.lsn % segment_bytes != 0:
            return self.fail(BAD_LONG, self.lsn)
        self.system_identifier = system_identifier
        self.segment_bytes = segment_bytes
        return 1

    def check_contrecord(self, info: int, rem_len: int) -> int:
        """Check that a new page continues the record of the pages before it, or that none is open."""
        continued = info & FIRST_IS_CONTRECORD
        inside = self.record < self.used
        if not self.started:
            if continued:
                self.foreign = rem_len + 7 & ~7
            return 1
        if info & OVERWRITE_CONTRECORD and (inside or self.foreign > 0):
            # The server crashed before the rest of this record was written, and continued here.
            if inside:
                self.overwritten_lsn = self.record_lsn
            self.record = self.used
            self.total = 0
            self.foreign = 0
            return 1
        if not inside and self.foreign == 0:
            return 1 if continued == 0 else self.fail(BAD_UNEXPECTED, self.lsn)
        if not continued:
            return self.fail(BAD_MISSING, self.lsn)
        sound = self.record + self.total - self.used == rem_len if inside else self.foreign == rem_len + 7 & ~7
        return 1 if sound else self.fail(BAD_REM_LEN, self.lsn)

    def walk(self) -> int:
        """Step over the record at `record` if it is complete; return 0 if it is incomplete or invalid."""
        begin = self.record
        there = self.used - begin
        if self.total == 0 and not self.read_length(there):
            return 0
        if there < RECORD_HEADER:
            return 0
        total = self.total
        lsn = self.record_lsn
        rmgr = self.linear[begin + 17]
        if not self.check_record_header(rmgr) or there < total:
            return 0
        switched = False
        if rmgr == 0 or self.overwritten_lsn != 0:
            info = self.linear[begin + 16] & 240
            switched = rmgr == 0 and info == SWITCH_INFO
            overwrites = rmgr == 0 and info == OVERWRITE_INFO
            if self.overwritten_lsn != 0 and not (overwrites and self.names_overwritten()):
                return self.fail(BAD_OVERWRITTEN, lsn)
            if switched and self.segment_bytes == 0:
                return self.fail(BAD_SEGMENT, lsn)
        # NB: the last check, since the library's is later still.
        if CRC_IN_LOOP and lsn >= self.start_lsn and not self.check_crc():
            return self.fail(BAD_CRC, lsn)
        aligned = total + 7 & ~7
        self.found = begin
        self.length = total
        self.record = begin + aligned
        self.end_lsn = self.lsn - there + aligned
        self.prev_lsn = lsn
        self.total = 0
        if switched:
            # The rest of the segment is zeros, page headers included.
            self.end_lsn = (self.end_lsn + self.segment_bytes - 1) // self.segment_bytes * self.segment_bytes
            self.skip_to = self.end_lsn
            self.used = self.record = begin + self.length
        return 1

    def check_record_header(self, rmgr: int) -> int:
        """Check a record's header except its length."""
        prev = read_u64(self.linear, self.record + 8)
        if self.rmgr_last < rmgr < self.rmgr_custom:
            return self.fail(BAD_RMGR, self.record_lsn)
        if prev < 0 or prev >= self.record_lsn or self.prev_lsn not in (0, prev):
            return self.fail(BAD_PREV, self.record_lsn)
        return 1

    def names_overwritten(self) -> int:
        """Return whether the record at `record` names the one that was cut off; if so, clear it."""
        if self.total < OVERWRITE_BYTES:
            return 0
        named = read_u64(self.linear, self.record + 26)
        if named != self.overwritten_lsn:
            return 0
        self.overwritten_lsn = 0
        return 1

    def read_length(self, there: int) -> int:
        """Set LSN and length of the record that begins at `record`, of which `there` bytes are present."""
        if there < 4:
            return 0
        self.record_lsn = self.lsn - there
        total = read_u32(self.linear, self.record)
        if total < RECORD_HEADER or total > RECORD_MAX:
            return self.fail(BAD_LENGTH, self.record_lsn)
        if self.record_lsn >= self.start_lsn and not self.start_found:
            if not self.is_start():
                return self.fail(BAD_START, self.record_lsn)
            self.start_found = True
        self.total = total
        return 1

    def is_start(self) -> int:
        """Return whether the current record is the requested start; a page's LSN means its first record."""
        gap = self.record_lsn - self.start_lsn
        if self.start_lsn % PAGE == 0 and self.start_lsn != 0:
            return gap in (SHORT_HEADER, LONG_HEADER)
        return gap == 0 or self.start_lsn == 0

    def check_crc(self) -> int:
        """Return whether the CRC of the complete record at `record` is correct."""
        stored = read_u32(self.linear, self.record + CRC_AT)
        last = self.linear[self.record + self.total - 1]
        if cython.compiled:  # NB: two checked offsets make a check between them unnecessary
            last = stored == record_crc(cython.address(self.linear[self.record]), self.total, self.by_instruction)
        return last
