"""The parsers of framed records: headers, page images, and the bodies of every resource manager that is read."""

from collections.abc import Callable
from contextlib import suppress
from struct import pack

import lz4.block
import zstandard

from tests.support.forged.byte_targets.target import Bytes, ByteTarget
from tests.support.forged.wal import ForgedBlock, ForgedImage, body, record
from tests.support.forged.wal_bodies import checkpoint_body, commit_body, heap_page, packed, page_image, prepare_body
from tests.support.oracles.twins import interpreted
from tidemark.model.lsn import Lsn
from tidemark.wal import pglz
from tidemark.wal.record import BadRecord, Record, parse_record
from tidemark.wal.rmgr import dbase, heap, heap2, message, multixact, relmap, standby, xact, xlog
from tidemark.wal.versions import MAJORS, WalFormat, wal_format

LSN = Lsn(0x16B3748)
PARSERS: dict[int, Callable[[Record, WalFormat], object]] = {
    0: xlog.parse,
    1: xact.parse,
    7: relmap.parse,
    8: lambda found, _: standby.parse(found),
    9: lambda found, _: heap2.parse(found),
    10: lambda found, _: heap.parse(found),
    21: lambda found, _: message.parse(found),
    # NB: add new parsers at the end, because the corpus refers to parsers by their index.
    6: lambda found, _: multixact.parse(found),
    4: dbase.parse,
}
RMGRS = tuple(PARSERS)
ROW = packed(b"values")

slow_pglz = interpreted("tidemark.wal.pglz")


def run_record(data: bytes) -> None:
    """Parse a record with a correct CRC; a prefix gives major, resource manager and info."""
    given = Bytes(data)
    fmt = wal_format(MAJORS[given.number() % len(MAJORS)])
    rmgr, info = RMGRS[given.number() % len(RMGRS)], given.number()
    raw = record(given.rest(), rmgr=rmgr, info=info, xid=700)
    with suppress(BadRecord):
        found = parse_record(LSN, Lsn(LSN + len(raw)), raw, fmt)
        for block in found.blocks:
            with suppress(BadRecord):
                page = block.restore_page()
                assert len(page) == 8192
                list(heap.page_tuples(page))
        with suppress(BadRecord):
            PARSERS[rmgr](found, fmt)


def run_page(data: bytes) -> None:
    """Read the tuples of a heap page, and one of them by its number."""
    given = Bytes(data)
    offset = given.number()
    page = given.rest()
    for candidate in (page, page.ljust(8192, b"\0")[:8192]):
        with suppress(BadRecord):
            for number, tuple_packed, _, _ in heap.page_tuples(candidate):
                assert heap.page_tuple(candidate, number) is not None
                assert len(tuple_packed) >= heap.PACKED_HEADER_BYTES
        with suppress(BadRecord):
            heap.page_tuple(candidate, offset)


def run_pglz(data: bytes) -> None:
    """Expand a stream to its stated length, by both builds."""
    given = Bytes(data)
    disk_space = given.number(2)
    fast, slow = bytearray(disk_space), bytearray(disk_space)
    source = given.rest()
    assert pglz.expand(source, fast) == slow_pglz.expand(source, slow)
    assert fast == slow


def _record_seed(rmgr: int, info: int, main: bytes, *blocks: ForgedBlock, major: int = 15) -> bytes:
    return bytes([MAJORS.index(major), RMGRS.index(rmgr), info]) + body(main, blocks)


def _image(data: bytes, info: int) -> ForgedBlock:
    return ForgedBlock(image=ForgedImage(data, info))


def _record_seeds() -> dict[str, bytes]:
    page = heap_page([(700, 0, ROW)])
    return {
        "checkpoint": _record_seed(0, 0x10, checkpoint_body(wal_format(17)), major=17),
        "parameter_change": _record_seed(0, 0x60, pack("<6i", 100, 8, 10, 0, 64, 1)),
        "end_of_recovery": _record_seed(0, 0x90, pack("<qIII", 0, 3, 2, 2), major=18),
        "commit": _record_seed(1, 0xB0, commit_body(wal_format(18)), major=18),
        "abort": _record_seed(1, 0xC0, commit_body(wal_format(15), abort=True)),
        "prepare": _record_seed(1, 0x10, prepare_body(wal_format(14)), major=14),
        "assignment": _record_seed(1, 0x50, pack("<IiII", 690, 2, 701, 702)),
        "relation_map": _record_seed(7, 0, pack("<IIiiiII", 5, 0, 16, 0x592717, 1, 1259, 16500)),
        "running_xacts": _record_seed(8, 0x10, pack("<iiB3xIII3I", 2, 1, 1, 760, 740, 759, 740, 745, 746)),
        "multi_insert": _record_seed(9, 0xD0, pack("<BxH", 8, 1), ForgedBlock(data=pack("<H", len(ROW) - 5) + ROW)),
        "new_cid": _record_seed(9, 0x70, pack("<I", 690)),
        "multixact": _record_seed(6, 0x20, pack("<IIiIiIi", 9, 17, 2, 701, 0, 702, 4)),
        "insert": _record_seed(10, 0x00, pack("<HB", 4, 8), ForgedBlock(data=ROW)),
        "delete_with_old_key": _record_seed(10, 0x10, pack("<IHBB", 800, 3, 0, 4) + ROW, ForgedBlock()),
        "update_with_prefix_and_suffix": _record_seed(
            10, 0x20, pack("<IHBBIH", 700, 3, 0, 0x64, 0, 5) + ROW, ForgedBlock(data=pack("<HH", 2, 2) + ROW)
        ),
        "truncate": _record_seed(10, 0x30, pack("<IIB3xI", 5, 1, 1, 16400)),
        "inplace": _record_seed(10, 0x70, pack("<H", 3), ForgedBlock(data=b"values")),
        "message": _record_seed(21, 0, pack("<IB3xQQ", 5, 1, 7, 4) + b"prefix\0data"),
        "image_whole": _record_seed(0, 0xB0, b"", ForgedBlock(image=page_image(page))),
        "image_with_hole": _record_seed(0, 0xB0, b"", ForgedBlock(image=ForgedImage(page[:28] + page[8100:], 3, 28))),
        "image_pglz": _record_seed(0, 0xB0, b"", _image(b"\0" + page[:8], 2 | 4)),
        "image_lz4": _record_seed(0, 0xB0, b"", _image(lz4.block.compress(page, store_size=False), 2 | 8)),
        "image_zstd": _record_seed(0, 0xB0, b"", _image(zstandard.ZstdCompressor().compress(page), 2 | 16)),
    }


TARGETS = (
    ByteTarget("record", run_record, _record_seeds()),
    ByteTarget("page", run_page, {"two_tuples": b"\1" + heap_page([(700, 0, ROW), None, (701, 9, ROW)])}),
    ByteTarget("pglz", run_pglz, {"a_copy": pack("<H", 12) + b"\x08abc\x09\x03", "literals": pack("<H", 3) + b"\0abc"}),
)
