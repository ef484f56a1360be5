"""One WAL record taken apart (`xlogrecord.h`): header, block references, page images, main data.

What stands in the data of a resource manager is `tidemark.wal.rmgr`'s business. Behind framing the CRC holds, so a
record that does not parse is a `BadRecord`; any other exception from here is a bug of ours.
"""

from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error

import lz4.block
import zstandard

from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import BlockNumber, Lsn, Oid, Xid, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.wal import pglz
from tidemark.wal.versions import PAGE_BYTES, RECORD_HEADER_BYTES, WalFormat

MAIN_FORK = 0
INFO_MASK = 0xF0  # of a record's info: the bits that are the resource manager's
_BLOCK_ID_MAX = 32  # XLR_MAX_BLOCK_ID
_ID_TOP_XID = 252
_ID_ORIGIN = 253
_ID_MAIN_LONG = 254
_ID_MAIN_SHORT = 255
_FORK_MASK = 0x0F
_HAS_IMAGE = 0x10
_HAS_DATA = 0x20
_WILL_INIT = 0x40
_SAME_REL = 0x80
_IMAGE_HAS_HOLE = 0x01

_RECORD_HEADER = Struct("<IIQBBxxI")
_U16 = Struct("<H")
_U32 = Struct("<I")
_BLOCK_HEADER = Struct("<BBH")
_IMAGE_HEADER = Struct("<HHB")
_LOCATOR = Struct("<III")


class BadRecord(CorruptWal):
    """A record whose CRC holds and whose content is none that a server writes."""

    hint = "if the server and pg_waldump read this record, Tidemark has a bug: please report it with the record"

    def __init__(self, lsn: Lsn, what: str) -> None:
        super().__init__(f"record at {format_lsn(lsn)}: {what}")
        self.lsn = lsn


@dataclass(frozen=True, slots=True)
class BlockImage:
    """A full-page image as it stands in the record: perhaps compressed, the hole in the page's middle left out."""

    data: bytes
    hole_offset: int
    hole_bytes: int
    compression: str  # "", "pglz", "lz4", "zstd"
    applies: bool  # False: for a consistency check of the server only

    def restore(self) -> bytes:
        """Return the page; raise `ValueError` if the image is none."""
        packed_bytes = PAGE_BYTES - self.hole_bytes
        try:
            match self.compression:
                case "":
                    packed = self.data
                case "pglz":
                    packed = pglz.decompress(self.data, packed_bytes)
                case "lz4":
                    packed = lz4.block.decompress(self.data, uncompressed_size=packed_bytes)
                case _:
                    packed = zstandard.ZstdDecompressor().decompress(self.data, max_output_size=packed_bytes)
        except (pglz.BadCompression, lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
            raise ValueError(f"{self.compression} image does not decompress: {error}") from error
        if len(packed) != packed_bytes:
            raise ValueError(f"image has {len(packed)} bytes where {packed_bytes} are promised")
        return packed[: self.hole_offset] + bytes(self.hole_bytes) + packed[self.hole_offset :]


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block that a record touches."""

    id: int
    locator: RelFileLocator
    fork: int
    block: BlockNumber
    will_init: bool
    data: bytes
    image: BlockImage | None
    lsn: Lsn  # of the record

    @property
    def has_image(self) -> bool:
        """A page image stands here, be it for a check only."""
        return self.image is not None

    @property
    def image_applies(self) -> bool:
        """The page's content after the record is the image: data of tuples may be missing."""
        return self.image is not None and self.image.applies

    def restore_page(self) -> bytes:
        """Return the 8192 bytes of the image."""
        if self.image is None:
            raise BadRecord(self.lsn, f"block {self.id} has no image")
        try:
            return self.image.restore()
        except ValueError as error:
            raise BadRecord(self.lsn, f"block {self.id}: {error}") from error


@dataclass(frozen=True, slots=True)
class Record:
    """A WAL record, whole."""

    lsn: Lsn
    end_lsn: Lsn  # where the next one is looked for: a page's start, not the first byte after its header
    prev: Lsn
    xid: Xid
    top_xid: Xid  # 0 unless this is the first record of a subtransaction
    origin: int  # 0: none
    rmgr: int
    info: int  # the whole byte; `info & INFO_MASK` is the resource manager's
    blocks: tuple[BlockRef, ...]
    main: bytes
    raw: bytes  # all of it with its header, page headers left out

    def block(self, block_id: int) -> BlockRef | None:
        """Return the reference with that id, if there is one."""
        return next((block for block in self.blocks if block.id == block_id), None)

    def need_block(self, block_id: int) -> BlockRef:
        """Return the reference with that id; raise `BadRecord` if there is none."""
        block = self.block(block_id)
        if block is None:
            raise BadRecord(self.lsn, f"block {block_id} is missing")
        return block

    def read(self, layout: Struct, offset: int = 0) -> tuple[int, ...]:
        """Read `layout` from the main data at `offset`; raise `BadRecord` if it reaches over the end."""
        try:
            return layout.unpack_from(self.main, offset)
        except struct_error as error:
            raise BadRecord(self.lsn, f"main data of {len(self.main)} bytes is too short") from error


def parse_record(lsn: Lsn, end_lsn: Lsn, raw: bytes, fmt: WalFormat) -> Record:
    """Return the record `raw`, whose start and end are known from framing."""
    try:
        return _Parser(lsn, raw, fmt).parse(end_lsn)
    except (struct_error, IndexError) as error:
        raise BadRecord(lsn, "a header reaches over the record's end") from error


class _Parser:
    """One pass over the headers, then one over the data that they promise."""

    def __init__(self, lsn: Lsn, raw: bytes, fmt: WalFormat) -> None:
        self.lsn = lsn
        self.raw = raw
        self.format = fmt
        self.at = RECORD_HEADER_BYTES
        self.promised = 0  # bytes of data that the headers so far announce

    def parse(self, end_lsn: Lsn) -> Record:
        raw = self.raw
        total, xid, prev, info, rmgr, _crc = _RECORD_HEADER.unpack_from(raw)
        if total != len(raw):
            raise BadRecord(self.lsn, f"length {total} in a record of {len(raw)} bytes")
        headers: list[_BlockHeader] = []
        origin = top_xid = main_bytes = 0
        locator: RelFileLocator | None = None
        while total - self.at > self.promised:
            block_id = raw[self.at]
            if block_id <= _BLOCK_ID_MAX:
                if headers and block_id <= headers[-1].id:
                    raise BadRecord(self.lsn, f"block {block_id} is out of order")
                header = self.block_header(locator)
                locator = header.locator
                headers.append(header)
            elif block_id == _ID_MAIN_SHORT:
                main_bytes = raw[self.at + 1]
                self.at += 2
                break
            elif block_id == _ID_MAIN_LONG:
                (main_bytes,) = _U32.unpack_from(raw, self.at + 1)
                self.at += 5
                break
            elif block_id == _ID_ORIGIN:
                (origin,) = _U16.unpack_from(raw, self.at + 1)
                self.at += 3
            elif block_id == _ID_TOP_XID:
                (top_xid,) = _U32.unpack_from(raw, self.at + 1)
                self.at += 5
            else:
                raise BadRecord(self.lsn, f"block id {block_id} is unknown")
        if total - self.at != self.promised + main_bytes:
            raise BadRecord(self.lsn, f"{self.promised + main_bytes} bytes of data in {total - self.at}")
        blocks = tuple([self.block(header) for header in headers])
        main = raw[self.at :]
        return Record(
            self.lsn, end_lsn, Lsn(prev), Xid(xid), Xid(top_xid), origin, rmgr, info, blocks, main, raw
        )  # fmt: skip

    def block_header(self, same: RelFileLocator | None) -> "_BlockHeader":
        """Read the header of a block reference at `at`."""
        raw = self.raw
        block_id, flags, data_bytes = _BLOCK_HEADER.unpack_from(raw, self.at)
        self.at += _BLOCK_HEADER.size
        if bool(flags & _HAS_DATA) != (data_bytes > 0):
            raise BadRecord(self.lsn, f"block {block_id}: {data_bytes} bytes of data against its flag")
        image_bytes = hole_offset = hole_bytes = image_info = 0
        if flags & _HAS_IMAGE:
            image_bytes, hole_offset, image_info = _IMAGE_HEADER.unpack_from(raw, self.at)
            self.at += _IMAGE_HEADER.size
            compressed = bool(image_info & self.format.image_compressed)
            if not compressed:
                hole_bytes = PAGE_BYTES - image_bytes
            elif image_info & _IMAGE_HAS_HOLE:
                (hole_bytes,) = _U16.unpack_from(raw, self.at)
                self.at += _U16.size
            self.check_image(block_id, image_info, image_bytes, hole_offset, hole_bytes)
        if flags & _SAME_REL:
            if same is None:
                raise BadRecord(self.lsn, f"block {block_id}: same file as no block before it")
            locator = same
        else:
            spc, db, rel = _LOCATOR.unpack_from(raw, self.at)
            locator = RelFileLocator(Oid(spc), Oid(db), Oid(rel))
            self.at += _LOCATOR.size
        (block,) = _U32.unpack_from(raw, self.at)
        self.at += _U32.size
        self.promised += image_bytes + data_bytes
        return _BlockHeader(
            block_id, flags, data_bytes, image_bytes, hole_offset, hole_bytes, image_info, locator, block
        )  # fmt: skip

    def check_image(self, block_id: int, info: int, image_bytes: int, hole_offset: int, hole_bytes: int) -> None:
        """Hold the fields of an image against each other, as the server does."""
        compressed = bool(info & self.format.image_compressed)
        if info & _IMAGE_HAS_HOLE:
            sound = hole_offset > 0 and hole_bytes > 0 and image_bytes < PAGE_BYTES
        else:
            sound = hole_offset == 0 and hole_bytes == 0
        sound = sound and (image_bytes < PAGE_BYTES or not compressed) and hole_offset + hole_bytes <= PAGE_BYTES
        if not sound:
            told = f"info {info:02X}, length {image_bytes}, hole {hole_offset}+{hole_bytes}"
            raise BadRecord(self.lsn, f"block {block_id}: impossible image ({told})")

    def block(self, header: "_BlockHeader") -> BlockRef:
        """Take the data that `header` promises from `at`."""
        image = None
        if header.flags & _HAS_IMAGE:
            data = self.raw[self.at : self.at + header.image_bytes]
            self.at += header.image_bytes
            applies = bool(header.image_info & self.format.image_apply)
            image = BlockImage(data, header.hole_offset, header.hole_bytes, self.compression(header), applies)
        data = self.raw[self.at : self.at + header.data_bytes]
        self.at += header.data_bytes
        return BlockRef(
            header.id,
            header.locator,
            header.flags & _FORK_MASK,
            BlockNumber(header.block),
            bool(header.flags & _WILL_INIT),
            data,
            image,
            self.lsn,
        )

    def compression(self, header: "_BlockHeader") -> str:
        """Name the compression of an image."""
        info = header.image_info
        if info & self.format.image_pglz:
            return "pglz"
        if info & self.format.image_lz4:
            return "lz4"
        return "zstd" if info & self.format.image_zstd else ""


@dataclass(slots=True)
class _BlockHeader:
    id: int
    flags: int
    data_bytes: int
    image_bytes: int
    hole_offset: int
    hole_bytes: int
    image_info: int
    locator: RelFileLocator
    block: int
