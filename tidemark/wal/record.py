"""Parses one WAL record (`xlogrecord.h`): header, block references, page images, main data.

`tidemark.wal.rmgr` parses the data of the resource managers. The framing has checked the CRC, so a record that does not
parse is a `BadRecord`; any other exception from here is a bug of Tidemark.

NB: the values of records are named tuples, not dataclasses, here and in `rmgr.heap`: one is created for every record,
and creating a frozen dataclass takes three times as long.
"""

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

import lz4.block
import zstandard

from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import BlockNumber, Lsn, Xid, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.wal import pglz
from tidemark.wal.versions import PAGE_BYTES, RECORD_HEADER_BYTES, WalFormat

MAIN_FORK = 0
INFO_MASK = 0xF0  # of a record's info: the bits that are the resource manager's
BLOCK_ID_MAX = 32  # XLR_MAX_BLOCK_ID
ID_TOP_XID = 252
ID_ORIGIN = 253
ID_MAIN_LONG = 254
ID_MAIN_SHORT = 255
FORK_MASK = 0x0F
HAS_IMAGE = 0x10
_HAS_DATA = 0x20
_WILL_INIT = 0x40
SAME_REL = 0x80
IMAGE_HAS_HOLE = 0x01

_RECORD_HEADER = Struct("<IIQBBxxI")
_U16 = Struct("<H")
_U32 = Struct("<I")
_BLOCK_HEADER = Struct("<BBH")
_IMAGE_HEADER = Struct("<HHB")
LOCATOR = Struct("<III")


class BadRecord(CorruptWal):
    """A record with a correct CRC and content that no server writes."""

    hint = "if the server and pg_waldump read this record, Tidemark has a bug: please report it with the record"

    def __init__(self, lsn: Lsn, what: str) -> None:
        super().__init__(f"record at {format_lsn(lsn)}: {what}")
        self.lsn = lsn


class BlockImage(NamedTuple):
    """A full-page image as in the record: possibly compressed, without the hole in the page's middle."""

    data: bytes
    hole_offset: int
    hole_bytes: int
    compression: str  # "", "pglz", "lz4", "zstd"
    applies: bool  # False: only for a consistency check of the server

    def restore(self) -> bytes:
        """Return the page; raise `ValueError` if the image is invalid."""
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
                    packed = _expand_zstd(self.data, packed_bytes)
        except (pglz.BadCompression, lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
            raise ValueError(f"{self.compression} image does not decompress: {error}") from error
        if len(packed) != packed_bytes:
            raise ValueError(f"image has {len(packed)} bytes, not {packed_bytes}")
        return packed[: self.hole_offset] + bytes(self.hole_bytes) + packed[self.hole_offset :]


def _expand_zstd(data: bytes, packed_bytes: int) -> bytes:
    """Decompress `data` to at most `packed_bytes` bytes.

    NB: the library allocates the size that the frame announces, whatever bound it is given.
    """
    announced = zstandard.frame_content_size(data)
    if announced > packed_bytes:
        raise ValueError(f"image announces {announced} bytes, not {packed_bytes}")
    expanded: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=packed_bytes)
    return expanded


class BlockRef(NamedTuple):
    """A block that a record references."""

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
        """Whether the record has a page image, possibly for a check only."""
        return self.image is not None

    @property
    def image_applies(self) -> bool:
        """Whether the image is the page's content after the record: tuple data may be missing from the record then."""
        return self.image is not None and self.image.applies

    def restore_page(self) -> bytes:
        """Return the 8192 bytes of the image."""
        if self.image is None:
            raise BadRecord(self.lsn, f"block {self.id} has no image")
        try:
            return self.image.restore()
        except ValueError as error:
            raise BadRecord(self.lsn, f"block {self.id}: {error}") from error


class RawRecord(NamedTuple):
    """A whole WAL record that is not parsed; the fields are those of `Record`."""

    lsn: Lsn
    end_lsn: Lsn
    xid: Xid
    raw: bytes


class Record(NamedTuple):
    """A whole WAL record."""

    lsn: Lsn
    end_lsn: Lsn  # where the next record is expected: a page's start, not the first byte after its header
    prev: Lsn
    xid: Xid
    top_xid: Xid  # 0 unless this is the first record of a subtransaction
    origin: int  # 0: none
    rmgr: int
    info: int  # the whole byte; `info & INFO_MASK` belongs to the resource manager
    blocks: tuple[BlockRef, ...]
    main: bytes
    raw: bytes  # the whole record with its header, without page headers

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
        """Read `layout` from the main data at `offset`; raise `BadRecord` if it extends past the end."""
        try:
            return layout.unpack_from(self.main, offset)
        except struct_error as error:
            raise BadRecord(self.lsn, f"main data of {len(self.main)} bytes is too short") from error


def parse_record(lsn: Lsn, end_lsn: Lsn, raw: bytes, fmt: WalFormat) -> Record:
    """Parse the record `raw`; its start and end are known from framing."""
    try:
        total, xid, prev, info, rmgr, _crc = _RECORD_HEADER.unpack_from(raw)
        if total != len(raw):
            raise BadRecord(lsn, f"length {total} in a record of {len(raw)} bytes")
        headers, at, origin, top_xid = _parse_headers(lsn, raw, fmt)
    except (struct_error, IndexError) as error:
        raise BadRecord(lsn, "a header extends past the record's end") from error
    blocks: list[BlockRef] = []
    for header in headers:
        image = None
        if header.flags & HAS_IMAGE:
            image_end = at + header.image_bytes
            info_bits = header.image_info
            compression, applies = _compression(info_bits, fmt), bool(info_bits & fmt.image_apply)
            image = BlockImage(raw[at:image_end], header.hole_offset, header.hole_bytes, compression, applies)
            at = image_end
        data_end = at + header.data_bytes
        fork, will_init = header.flags & FORK_MASK, header.flags & _WILL_INIT != 0
        block = BlockNumber(header.block)
        blocks.append(BlockRef(header.id, header.locator, fork, block, will_init, raw[at:data_end], image, lsn))
        at = data_end
    main = raw[at:]
    return Record(lsn, end_lsn, prev, xid, Xid(top_xid), origin, rmgr, info, tuple(blocks), main, raw)


class _BlockHeader(NamedTuple):
    """The header of a block reference, before its data."""

    id: int
    flags: int
    data_bytes: int
    image_bytes: int
    hole_offset: int
    hole_bytes: int
    image_info: int
    locator: RelFileLocator
    block: int


def _parse_headers(lsn: Lsn, raw: bytes, fmt: WalFormat) -> tuple[list[_BlockHeader], int, int, int]:
    """Return the headers of blocks, the start of the data, origin and top-level xid."""
    headers: list[_BlockHeader] = []
    at = RECORD_HEADER_BYTES
    origin = top_xid = main_bytes = promised = 0
    while len(raw) - at > promised:
        block_id = raw[at]
        if block_id <= BLOCK_ID_MAX:
            header, at = _parse_block_header(lsn, raw, at, headers[-1] if headers else None, fmt)
            promised += header.image_bytes + header.data_bytes
            headers.append(header)
        elif block_id == ID_MAIN_SHORT:
            main_bytes = raw[at + 1]
            at += 2
            break
        elif block_id == ID_MAIN_LONG:
            (main_bytes,) = _U32.unpack_from(raw, at + 1)
            at += 5
            break
        elif block_id == ID_ORIGIN:
            (origin,) = _U16.unpack_from(raw, at + 1)
            at += 3
        elif block_id == ID_TOP_XID:
            (top_xid,) = _U32.unpack_from(raw, at + 1)
            at += 5
        else:
            raise BadRecord(lsn, f"block id {block_id} is unknown")
    if len(raw) - at != promised + main_bytes:
        raise BadRecord(lsn, f"{promised + main_bytes} bytes of data in {len(raw) - at}")
    return headers, at, origin, top_xid


def _parse_block_header(
    lsn: Lsn, raw: bytes, at: int, before: _BlockHeader | None, fmt: WalFormat
) -> tuple[_BlockHeader, int]:
    """Return the header of a block reference at `at`, and the start of the next one."""
    block_id, flags, data_bytes = _BLOCK_HEADER.unpack_from(raw, at)
    at += _BLOCK_HEADER.size
    if before is not None and block_id <= before.id:
        raise BadRecord(lsn, f"block {block_id} is out of order")
    if (flags & _HAS_DATA != 0) != (data_bytes > 0):
        raise BadRecord(lsn, f"block {block_id}: {data_bytes} bytes of data, which its flag contradicts")
    image_bytes = hole_offset = hole_bytes = image_info = 0
    if flags & HAS_IMAGE:
        image_bytes, hole_offset, image_info = _IMAGE_HEADER.unpack_from(raw, at)
        at += _IMAGE_HEADER.size
        if not image_info & fmt.image_compressed:
            hole_bytes = PAGE_BYTES - image_bytes
        elif image_info & IMAGE_HAS_HOLE:
            (hole_bytes,) = _U16.unpack_from(raw, at)
            at += _U16.size
        if not _is_possible_image(image_info, image_bytes, hole_offset, hole_bytes, fmt):
            image_text = f"info {image_info:02X}, length {image_bytes}, hole {hole_offset}+{hole_bytes}"
            raise BadRecord(lsn, f"block {block_id}: impossible image ({image_text})")
    if not flags & SAME_REL:
        locator = RelFileLocator._make(LOCATOR.unpack_from(raw, at))
        at += LOCATOR.size
    elif before is None:
        raise BadRecord(lsn, f"block {block_id}: refers to the file of the block before it, but is the first one")
    else:
        locator = before.locator
    (block,) = _U32.unpack_from(raw, at)
    image = (image_bytes, hole_offset, hole_bytes, image_info)
    return _BlockHeader(block_id, flags, data_bytes, *image, locator, block), at + _U32.size


def _is_possible_image(info: int, image_bytes: int, hole_offset: int, hole_bytes: int, fmt: WalFormat) -> bool:
    """Check the fields of an image against each other, as the server does."""
    if info & IMAGE_HAS_HOLE:
        if not (hole_offset > 0 and hole_bytes > 0 and image_bytes < PAGE_BYTES):
            return False
    elif hole_offset or hole_bytes:
        return False
    return (image_bytes < PAGE_BYTES or not info & fmt.image_compressed) and hole_offset + hole_bytes <= PAGE_BYTES


def _compression(info: int, fmt: WalFormat) -> str:
    """Return the name of an image's compression."""
    if info & fmt.image_pglz:
        return "pglz"
    if info & fmt.image_lz4:
        return "lz4"
    return "zstd" if info & fmt.image_zstd else ""
