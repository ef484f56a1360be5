"""Pages to records: `Framer` accepts contiguous WAL cut at any byte and returns blocks of whole, checked records.

A torn or damaged WAL page is detected here: its header, or the CRC of a record on it, is wrong (`kernel` has the loop).

There are three results: a `RecordBlock`, `NeedMore`, or `Invalid` with LSN and reason. The framer cannot decide whether
invalid bytes are the end of WAL or corruption, since a recycled page looks like both: the source decides. A framer that
found invalid bytes does not continue; a new framer can start at its `position`.

    ┌ page ──────────┐┌ page ──────────┐┌ page
    │hdr│ r1 │ r2 │ r3 ││hdr│ r3 │ r4 │...      input, as on disk and in the stream
    └────────────────┘└────────────────┘└
         │ r1 │ r2 │ r3  r3 │ r4 │ ...          linear buffer: a RecordBlock keeps whole records, the rest moves on

Not here: bodies of records (`record`, `rmgr`), files and sockets (`tidemark.io`).
"""

from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import google_crc32c

from tidemark.model.errors import InternalError
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId, Xid, format_lsn
from tidemark.wal.kernel import COMPILED, Defect, Scanner
from tidemark.wal.record import RawRecord, Record, parse_record
from tidemark.wal.versions import (
    PAGE_BYTES,
    PAGE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    RMGR_CUSTOM_FIRST,
    RMGR_LAST,
    RMGRS,
    UnsupportedMajor,
    WalFormat,
    wal_format_of_magic,
)

LINEAR_BYTES = 1 << 20  # of a block, unless one record is longer: half of a second-level cache, few Python iterations
SPARE_BYTES_MAX = 2 * LINEAR_BYTES  # of a block that is kept for reuse
RECORDS_MAX = 4096  # in a block: LINEAR_BYTES of records of 64 bytes; most are longer
_CRC_AT = 20  # offset of xl_crc: the CRC covers the data after the header, then the header up to here
_NO_CUSTOM_RMGR = 256
_LSN_MAX = (1 << 63) - (1 << 32)  # LSNs are signed in the kernel: no cluster writes 8 EB
_ALIGNMENT = 8  # MAXALIGN of every supported server

_REASONS = {
    Defect.PAGE_MAGIC: "page magic is wrong",
    Defect.PAGE_INFO: "page info has unknown bits",
    Defect.PAGE_ADDRESS: "page address is that of another page",
    Defect.PAGE_TIMELINE: "page has an older timeline than the page before, or a timeline that is not followed",
    Defect.SYSTEM_IDENTIFIER: "page belongs to another cluster",
    Defect.SEGMENT_BYTES: "segment size is wrong, or unknown at a segment switch",
    Defect.BLOCK_BYTES: "page size is not 8192",
    Defect.LONG_HEADER: "long page header is missing, or not at the start of a segment",
    Defect.CONTRECORD_MISSING: "page does not continue the record that crosses its start",
    Defect.CONTRECORD_UNEXPECTED: "page continues a record, but no record crosses its start",
    Defect.REM_LEN: "page continues a record, but with a wrong remaining length",
    Defect.TOTAL_LENGTH: "record length is out of bounds",
    Defect.RMGR: "resource manager is unknown",
    Defect.PREV: "record does not follow the record before it",
    Defect.CRC: "record fails its CRC",
    Defect.OVERWRITTEN: "record after an incomplete record does not name it",
    Defect.START: "no record begins at the start LSN",
}


@dataclass(frozen=True, slots=True)
class NeedMore:
    """All input was processed; feed more."""


NEED_MORE = NeedMore()


@dataclass(frozen=True, slots=True)
class Invalid:
    """Bytes that are not WAL, or not this WAL: the LSN of the record or page, and the invalid field."""

    lsn: Lsn
    defect: Defect

    @property
    def reason(self) -> str:
        """The defect as text."""
        return _REASONS[self.defect]

    def __str__(self) -> str:
        return f"invalid WAL at {format_lsn(self.lsn)}: {self.reason}"


class RecordBlock:
    """Whole records, in order, as columns: `records` creates an object for each record.

    `linear[offsets[i] : offsets[i] + lengths[i]]` is record i with its header and without page headers. All columns
    have at least `count` elements. The block owns the bytes: it may be kept and passed to another thread.

    Records that the framer leaves out (`Framer.leave_out`) count only in `record_count`, `byte_count`, `last_lsn` and
    `end_lsn`.
    """

    __slots__ = (
        "byte_count",
        "count",
        "end_lsn",
        "ends",
        "format",
        "infos",
        "is_kept",
        "last_lsn",
        "lengths",
        "linear",
        "lsns",
        "offsets",
        "record_count",
        "rmgrs",
        "xids",
    )

    def __init__(self, fmt: WalFormat, linear: bytearray) -> None:
        limit = min(RECORDS_MAX, len(linear) // RECORD_HEADER_BYTES + 1)
        self.format = fmt
        self.linear = linear
        self.is_kept = False  # its user needs it also after it was decoded: its memory is not reused
        self.count = 0
        self.record_count = 0  # including records that were left out
        self.byte_count = 0  # of all these, without padding
        self.last_lsn = self.end_lsn = Lsn(0)  # start and end of the last one
        self.lsns = array("q", [0]) * limit
        # The LSN after the record and its padding; at a page's end that is the next page's LSN, not its first record's.
        self.ends = array("q", [0]) * limit
        self.xids = array("I", [0]) * limit
        self.rmgrs = array("B", [0]) * limit
        self.infos = array("B", [0]) * limit
        self.offsets = array("q", [0]) * limit
        self.lengths = array("q", [0]) * limit

    def __len__(self) -> int:
        return self.count

    def record(self, index: int) -> Record:
        """Return record `index` parsed; raise `BadRecord` if it is invalid."""
        lsn, end_lsn, _xid, raw = self.raw(index)
        return parse_record(lsn, end_lsn, raw, self.format)

    def raw(self, index: int) -> RawRecord:
        """Return record `index` without parsing it."""
        begin = self.offsets[index]
        raw = bytes(memoryview(self.linear)[begin : begin + self.lengths[index]])
        return RawRecord(Lsn(self.lsns[index]), Lsn(self.ends[index]), Xid(self.xids[index]), raw)

    def records(self, interest: frozenset[int] | None = None) -> Iterator[Record]:
        """Yield the records of the resource managers in `interest` (None: all), parsed."""
        rmgrs = self.rmgrs
        for index in range(self.count):
            if interest is None or rmgrs[index] in interest:
                yield self.record(index)


class Framer:
    """Finds the records in contiguous WAL. Feed it, get blocks until `NeedMore`, then feed again.

    With `start_lsn`, the first record must begin exactly there; the first feed may begin earlier, best at the start of
    that page (records in between are framed, but not returned). Without it, the first record is the first one that
    begins at the first feed, or on the first page after it. Unknown values of `fmt`, `system_identifier` and
    `segment_bytes` are taken from the pages and then required. Pages of a timeline later than `timeline` are invalid.
    """

    def __init__(
        self,
        fmt: WalFormat | None = None,
        *,
        system_identifier: SystemIdentifier | None = None,
        segment_bytes: int | None = None,
        timeline: TimelineId | None = None,
        start_lsn: Lsn | None = None,
        crc_by_instruction: bool = True,
    ) -> None:
        """`crc_by_instruction`: use the processor's CRC instruction if it has one, else tables."""
        self._format = fmt
        self._crc_by_instruction = crc_by_instruction
        self._system_identifier = system_identifier or 0
        self._segment_bytes = segment_bytes or 0
        self._timeline = timeline or 0
        self._start_lsn = start_lsn or Lsn(0)
        self._scanner: Scanner | None = None
        self._source: bytes | memoryview = b""  # between feeds: the beginning of a page header, or nothing
        self._at = 0  # input before this offset was processed
        self._pending = False  # the fed input may contain further blocks
        self._first_lsn = Lsn(0)  # of the first byte ever fed
        self._fed_lsn: Lsn | None = None
        self._block: RecordBlock | None = None  # being filled: it has no whole record yet
        self._rest = b""  # bytes after the last whole record of the last block
        self._spare: RecordBlock | None = None  # returned by `reuse`
        self._position = self._start_lsn
        self._invalid: Invalid | None = None
        self._quiet = bytes(RMGRS)  # by resource manager: 1 where records are left out

    @property
    def format(self) -> WalFormat | None:
        """The format of this WAL; None until a page was read."""
        return self._format

    @property
    def block_bytes(self) -> int:
        """The bytes allocated for the block that is being filled; 0 if there is none."""
        return len(self._block.linear) if self._block is not None else 0

    @property
    def segment_bytes(self) -> int | None:
        """The segment size; None until it is known."""
        return (self._scanner.segment_bytes if self._scanner else self._segment_bytes) or None

    @property
    def system_identifier(self) -> SystemIdentifier | None:
        """The cluster's system identifier; None until it is known."""
        known = self._scanner.system_identifier if self._scanner else self._system_identifier
        return SystemIdentifier(known) if known else None

    @property
    def position(self) -> Lsn:
        """The LSN where the next record is expected: the end of the last returned record, or the start."""
        return self._position

    @property
    def fed_lsn(self) -> Lsn | None:
        """LSN of the byte to feed next; None before the first feed."""
        return self._fed_lsn

    def follow(self, timeline: TimelineId) -> None:
        """Accept pages of `timeline` from here on: the previous timeline ended."""
        self._timeline = timeline
        if self._scanner is not None:
            self._scanner.timeline_max = timeline

    def leave_out(self, quiet: Collection[int]) -> None:
        """Leave out records that the decoder does not need.

        These are the records of the resource managers in `quiet` without an xid, or with the xid of the last returned
        record. They are framed and checked like all others. The interpreted framer returns all records, because it
        checks CRCs after framing.
        """
        if COMPILED:
            self._quiet = bytes(rmgr in quiet for rmgr in range(RMGRS))
            if self._scanner is not None:
                self._scanner.quiet = memoryview(self._quiet)

    def feed(self, start_lsn: Lsn, data: bytes | memoryview) -> None:
        """Feed `data`, which begins at `start_lsn` and must follow the previous feed.

        It is not copied: it must not change until `next_block` returns `NeedMore`.
        """
        if self._pending:
            raise InternalError(f"fed at {format_lsn(start_lsn)} before all blocks were returned")
        if self._fed_lsn is None:
            self._begin(start_lsn)
        elif start_lsn != self._fed_lsn:
            raise InternalError(f"fed at {format_lsn(start_lsn)} instead of {format_lsn(self._fed_lsn)}")
        self._source = bytes(self._source) + data if self._source else data
        self._fed_lsn = Lsn(start_lsn + len(data))
        self._pending = True

    def next_block(self) -> RecordBlock | NeedMore | Invalid:
        """Return the next records, `NeedMore` or `Invalid`."""
        while self._pending and self._invalid is None:
            scanner = self._scanner or self._make_scanner()
            if scanner is None:
                break
            block = self._scan(scanner)
            if block is not None:
                return block
        self._pending = False
        self._source = bytes(self._source[self._at :])
        self._at = 0
        return self._invalid or NEED_MORE

    def reuse(self, block: RecordBlock) -> None:
        """Return a block that is not used any more; its memory is reused for another block."""
        if len(block.linear) <= SPARE_BYTES_MAX and not block.is_kept:
            self._spare = block

    def _begin(self, lsn: Lsn) -> None:
        """Set the start of the input."""
        start = self._start_lsn or lsn
        self._first_lsn = lsn
        self._position = start
        in_header = start != lsn and 0 < start % PAGE_BYTES < PAGE_HEADER_BYTES
        if lsn > _LSN_MAX or (self._start_lsn and (start < lsn or start % _ALIGNMENT or in_header)):
            self._invalid = Invalid(start, Defect.START)

    def _make_scanner(self) -> Scanner | None:
        """Create the scanner once the format is known; input before the first page header is skipped."""
        lsn = self._first_lsn
        page_lsn = Lsn(-(-lsn // PAGE_BYTES) * PAGE_BYTES)
        exact = lsn == self._start_lsn != page_lsn and self._format is not None
        if self._format is None:
            magic_at = page_lsn - lsn
            if len(self._source) < magic_at + 2:
                return None
            try:
                self._format = wal_format_of_magic(int.from_bytes(self._source[magic_at : magic_at + 2], "little"))
            except UnsupportedMajor:
                self._invalid = Invalid(page_lsn, Defect.PAGE_MAGIC)
                return None
        fmt = self._format
        scanner = Scanner(fmt.page_magic, RMGR_LAST, RMGR_CUSTOM_FIRST if fmt.custom_rmgrs else _NO_CUSTOM_RMGR)
        scanner.lsn = lsn
        scanner.skip_to = lsn if exact else page_lsn
        scanner.started = exact
        scanner.start_lsn = self._start_lsn
        scanner.segment_bytes = self._segment_bytes
        scanner.system_identifier = self._system_identifier
        scanner.timeline_max = self._timeline
        scanner.quiet = memoryview(self._quiet)
        scanner.by_instruction &= self._crc_by_instruction
        self._scanner = scanner
        return scanner

    def _scan(self, scanner: Scanner) -> RecordBlock | None:
        """Scan the input until a block is full or the input ends; None if no record was completed."""
        block = self._with_space(scanner)
        self._at = scanner.scan(
            memoryview(self._source),
            self._at,
            memoryview(block.linear),
            block.lsns,
            block.ends,
            block.xids,
            block.rmgrs,
            block.infos,
            block.offsets,
            block.lengths,
        )
        block.count = scanner.count
        block.record_count = scanner.count + scanner.left_out
        block.byte_count = scanner.found_bytes
        block.last_lsn, block.end_lsn = Lsn(scanner.prev_lsn), Lsn(scanner.end_lsn)
        if scanner.defect:
            self._invalid = Invalid(Lsn(scanner.defect_lsn), Defect(scanner.defect))
        if not COMPILED:
            self._check_crcs(block)
        columns_full = scanner.count == len(block.lsns)
        linear_full = scanner.used == len(block.linear) and self._at < len(self._source)
        self._pending = columns_full or linear_full
        if block.count == 0:
            self._block = block
            return None
        self._position = block.end_lsn
        cut = min(scanner.record, scanner.used)
        self._block, self._rest = None, bytes(memoryview(block.linear)[cut : scanner.used])
        scanner.record -= cut
        scanner.used -= cut
        return block

    def _with_space(self, scanner: Scanner) -> RecordBlock:
        """Return the block to fill; its buffer grows with the received input, never by the length in a header."""
        assert self._format is not None
        begun = self._rest if self._block is None else memoryview(self._block.linear)[: scanner.used]
        wanted = min(len(self._source) - self._at, LINEAR_BYTES)
        block = self._spare if self._block is None else self._block
        if block is None or len(block.linear) - scanner.used < wanted:
            size = scanner.used + max(wanted, scanner.used // 4)
            block = RecordBlock(self._format, bytearray(size + size // 8))
        if block is not self._block:
            block.linear[: scanner.used] = begun
            self._spare = None
        return block

    def _check_crcs(self, block: RecordBlock) -> None:
        """Check the CRCs with the library; the first wrong one ends the block before its record."""
        linear = memoryview(block.linear)
        for index in range(block.count):
            begin = block.offsets[index]
            end = begin + block.lengths[index]
            crc = google_crc32c.value(bytes(linear[begin + RECORD_HEADER_BYTES : end]))
            crc = google_crc32c.extend(crc, bytes(linear[begin : begin + _CRC_AT]))
            if crc != int.from_bytes(linear[begin + _CRC_AT : begin + RECORD_HEADER_BYTES], "little"):
                block.count = block.record_count = index
                block.last_lsn, block.end_lsn = Lsn(block.lsns[index - 1]), Lsn(block.ends[index - 1])
                block.byte_count = sum(block.lengths[:index])
                self._invalid = Invalid(Lsn(block.lsns[index]), Defect.CRC)
                return
