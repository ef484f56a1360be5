"""Valid bodies of every record that the resource managers' parsers read, forged field by field."""

from collections.abc import Sequence
from struct import pack

from tests.support.forged.wal import ForgedBlock, ForgedImage, body, record
from tidemark.model.lsn import Lsn
from tidemark.wal.record import Record, parse_record
from tidemark.wal.versions import WalFormat, wal_format

LSN = Lsn(0x16B3748)
POSTGRES_EPOCH_US = 946_684_800_000_000


def forged(
    rmgr: int, info: int, main: bytes = b"", blocks: Sequence[ForgedBlock] = (), *, xid: int = 700, major: int = 15
) -> Record:
    """Return a parsed record with that body."""
    raw = record(body(main, blocks), rmgr=rmgr, info=info, xid=xid)
    return parse_record(LSN, Lsn(LSN + len(raw)), raw, wal_format(major))


def packed(values: bytes, *, columns: int = 2, infomask: int = 0, bitmap: bytes = b"\x00") -> bytes:
    """Return a packed tuple: header, null bitmap or padding, values."""
    return pack("<HHB", columns, infomask, 23 + len(bitmap)) + bitmap + values


def heap_page(tuples: Sequence[tuple[int, int, bytes] | None]) -> bytes:
    """Return a heap page with (xmin, xmax, packed tuple) at offsets from 1, None for a dead line pointer."""
    page = bytearray(8192)
    upper = 8192
    for index, one in enumerate(tuples):
        pointer = 3 << 15  # dead
        if one is not None:
            xmin, xmax, tuple_packed = one
            stored = pack("<IIIHHH", xmin, xmax, 0, 0, 0, index + 1) + tuple_packed
            upper -= len(stored) + -len(stored) % 8
            page[upper : upper + len(stored)] = stored
            pointer = upper | 1 << 15 | len(stored) << 17
        page[24 + 4 * index : 28 + 4 * index] = pack("<I", pointer)
    page[:24] = pack("<IIHHHHHHI", 0, 0x1234, 0, 0, 24 + 4 * len(tuples), upper, 8192, 8196, 0)
    return bytes(page)


def page_image(page: bytes) -> ForgedImage:
    """Return an image of the whole `page` that redo applies (15 and later)."""
    return ForgedImage(page, 2)


def commit_body(fmt: WalFormat, *, abort: bool = False) -> bytes:
    """Return a commit's (or an abort's) body with every optional part."""
    flags = 0x1 | 0x2 | 0x4 | 0x10 | 0x20 | 0x80
    parts = [pack("<II", 5, 1663), pack("<iII", 2, 701, 702), pack("<iIII", 1, 1663, 5, 16390)]
    if fmt.dropped_stats_bytes:
        flags |= 0x100
        parts.append(pack("<i", 2) + bytes(2 * fmt.dropped_stats_bytes))
    if not abort:
        flags |= 0x8
        parts.append(pack("<i", 3) + bytes(3 * 16))
    parts += [pack("<I", 690), b"the gid\0", pack("<Qq", 0x2000000, 1_000_000)]
    return pack("<qI", 5_000_000, flags) + b"".join(parts)


def prepare_body(fmt: WalFormat) -> bytes:
    """Return the body of a PREPARE with two subtransactions."""
    counts = [0, 0, 0, 0, 0] if fmt.dropped_stats_bytes else [0, 0, 0]
    gid = b"the gid\0"
    head = pack("<IIIIqIi", 0x57F94534, 0, 690, 5, 5_000_000, 10, 2) + pack(f"<{len(counts)}i", *counts)
    head += pack("<BxHQq", 0, len(gid), 0, 0)
    return head + gid + bytes(-len(gid) % 8) + pack("<II", 701, 702)


def checkpoint_body(fmt: WalFormat, *, wal_level: int = 2) -> bytes:
    """Return a CheckPoint."""
    level = wal_level if fmt.checkpoint_wal_level else 0
    head = pack("<QIIB3xiQ", 0x3000028, 2, 1, 1, level, 1 << 32 | 750)
    return head + bytes(80 - len(head)) + pack("<I4x", 740)
