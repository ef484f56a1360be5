"""Forged WAL: pages and records byte by byte, as `xlogrecord.h` and `xlog_internal.h` describe them.

It uses nothing of `tidemark.wal` but the numbers in `versions`: otherwise a parser would be tested against itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack, pack_into

import google_crc32c

from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.versions import WalFormat, wal_format

PAGE = 8192
SEGMENT = 1 << 20
SYSTEM = 7_700_000_000_000_000_001
USER_TABLE = RelFileLocator(Oid(1663), Oid(5), Oid(16384))
CONTRECORD, LONG, OVERWRITE = 1, 2, 8


@dataclass(frozen=True)
class ForgedImage:
    """A page image as stored in a record; `info` is bimg_info."""

    data: bytes
    info: int
    hole_offset: int = 0
    hole_bytes: int | None = None  # written only if given


@dataclass(frozen=True)
class ForgedBlock:
    """A block reference; `locator` None means that of the previous block."""

    id: int = 0
    locator: RelFileLocator | None = USER_TABLE
    block: int = 0
    data: bytes = b""
    fork: int = 0
    will_init: bool = False
    image: ForgedImage | None = None

    def header(self) -> bytes:
        flags = self.fork | (0x10 if self.image else 0) | (0x20 if self.data else 0)
        flags |= (0x40 if self.will_init else 0) | (0 if self.locator else 0x80)
        head = pack("<BBH", self.id, flags, len(self.data))
        if self.image:
            head += pack("<HHB", len(self.image.data), self.image.hole_offset, self.image.info)
            if self.image.hole_bytes is not None:
                head += pack("<H", self.image.hole_bytes)
        if self.locator:
            head += pack("<III", *self.locator)
        return head + pack("<I", self.block)

    def content(self) -> bytes:
        return (self.image.data if self.image else b"") + self.data


def body(
    main: bytes = b"", blocks: Sequence[ForgedBlock] = (), *, origin: int | None = None, top_xid: int | None = None
) -> bytes:
    """Return the part after a record's header."""
    parts = [block.header() for block in blocks]
    if origin is not None:
        parts.append(pack("<BH", 253, origin))
    if top_xid is not None:
        parts.append(pack("<BI", 252, top_xid))
    if len(main) > 255:
        parts.append(pack("<BI", 254, len(main)))
    elif main:
        parts.append(pack("<BB", 255, len(main)))
    return b"".join([*parts, *(block.content() for block in blocks), main])


def record(rest: bytes = b"", *, rmgr: int = 10, info: int = 0, xid: int = 0, prev: int = 0) -> bytes:
    """Return a whole record with its CRC."""
    head = pack("<IIQBBxx", 24 + len(rest), xid, prev, info, rmgr)
    crc = google_crc32c.extend(google_crc32c.value(rest), head)
    return head + pack("<I", crc) + rest


class WalWriter:
    """Writes records to pages, as the server does, into `data`, from `first_lsn` on."""

    def __init__(
        self,
        first_lsn: int = SEGMENT,
        *,
        major: int = 15,
        timeline: int = 1,
        segment_bytes: int = SEGMENT,
        system: int = SYSTEM,
        prev: int = 0,
    ) -> None:
        assert first_lsn % PAGE == 0
        self.format: WalFormat = wal_format(major)
        self.first_lsn = Lsn(first_lsn)
        self.timeline = timeline
        self.segment_bytes = segment_bytes
        self.system = system
        self.data = bytearray()
        self.prev = prev
        self.lsns: list[Lsn] = []
        self.records: list[bytes] = []

    @property
    def lsn(self) -> Lsn:
        """LSN of the next byte."""
        return Lsn(self.first_lsn + len(self.data))

    def page_header(self, *, rem_len: int = 0, flags: int = 0) -> bytes:
        """Return the header of the page at `lsn`."""
        long = self.lsn % self.segment_bytes == 0
        flags |= (CONTRECORD if rem_len else 0) | (LONG if long else 0)
        head = pack("<HHIQI4x", self.format.page_magic, flags, self.timeline, self.lsn, rem_len)
        return head + pack("<QII", self.system, self.segment_bytes, PAGE) if long else head

    def write(self, raw: bytes) -> Lsn:
        """Write `raw` as a record, without a check; return its LSN."""
        lsn = self.begin()
        at = 0
        while at < len(raw):
            if self.lsn % PAGE == 0:
                self.data += self.page_header(rem_len=len(raw) - at)
            disk_space = PAGE - self.lsn % PAGE
            self.data += raw[at : at + disk_space]
            at += disk_space
        self.data += bytes(-len(self.data) % 8)
        self.prev = lsn
        self.lsns.append(lsn)
        self.records.append(raw)
        return lsn

    def begin(self) -> Lsn:
        """Return the LSN of the next record; write the page header before it."""
        if self.lsn % PAGE == 0:
            self.data += self.page_header()
        return self.lsn

    def add(self, rest: bytes = b"", *, rmgr: int = 10, info: int = 0, xid: int = 0) -> Lsn:
        """Write a valid record."""
        return self.write(record(rest, rmgr=rmgr, info=info, xid=xid, prev=self.prev))

    def switch(self) -> Lsn:
        """Write an XLOG_SWITCH: the rest of the segment is zeros, page headers too."""
        lsn = self.add(rmgr=0, info=0x40)
        self.data += bytes(-self.lsn % self.segment_bytes)
        return lsn

    def tear(self, raw: bytes) -> Lsn:
        """Write `raw` only up to the page's end: the server crashed."""
        lsn = self.begin()
        disk_space = PAGE - self.lsn % PAGE
        assert len(raw) > disk_space
        self.data += raw[:disk_space]
        return lsn

    def overwrite(self, torn: int, *, named: int | None = None) -> Lsn:
        """Continue at the page after a torn record, as crash recovery does."""
        self.data += self.page_header(flags=OVERWRITE)
        return self.add(body(pack("<Qq", torn if named is None else named, 0)), rmgr=0, info=0xD0)

    def patch(self, lsn: int, layout: str, *values: int) -> None:
        """Overwrite the bytes at `lsn`; CRCs do not change."""
        pack_into(layout, self.data, lsn - self.first_lsn, *values)
