from dataclasses import replace

import lz4.block
import pytest
import zstandard

from tests.support.forged.wal import USER_TABLE, ForgedBlock, ForgedImage, body, record
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.record import BadRecord, Record, parse_record
from tidemark.wal.versions import MAJORS, wal_format

LSN = Lsn(0x16B3748)
OTHER_TABLE = RelFileLocator(Oid(1664), Oid(0), Oid(1262))
PAGE = bytes(range(256)) * 32


def parse(rest: bytes, major: int = 15) -> Record:
    return parse_record(LSN, Lsn(LSN + 24 + len(rest)), record(rest, xid=7, info=0x81, prev=99), wal_format(major))


def test_all_parts_of_a_record_are_found() -> None:
    found = parse(
        body(
            b"m" * 300,
            [
                ForgedBlock(0, block=3, data=b"first", will_init=True),
                ForgedBlock(1, None, block=4, fork=2),
                ForgedBlock(5, OTHER_TABLE, block=0xFFFFFFFE, data=b"second"),
            ],
            origin=12,
            top_xid=6,
        )
    )
    assert (found.lsn, found.prev, found.xid, found.top_xid, found.origin) == (LSN, 99, 7, 6, 12)
    assert (found.rmgr, found.info, found.main) == (10, 0x81, b"m" * 300)
    reported = [(b.id, b.locator, b.fork, b.block, b.will_init, b.data, b.has_image) for b in found.blocks]
    assert reported == [
        (0, USER_TABLE, 0, 3, True, b"first", False),
        (1, USER_TABLE, 2, 4, False, b"", False),
        (5, OTHER_TABLE, 0, 0xFFFFFFFE, False, b"second", False),
    ]
    assert found.block(5) is found.blocks[2]
    assert found.block(2) is None
    with pytest.raises(BadRecord, match="0/16B3748: block 2 is missing"):
        found.need_block(2)


def test_a_record_with_only_a_header_is_valid() -> None:
    assert parse(b"").main == b""


def image_info(major: int, *, compression: str = "", hole: bool = False, applies: bool = True) -> int:
    fmt = wal_format(major)
    bits = {"": 0, "pglz": fmt.image_pglz, "lz4": fmt.image_lz4, "zstd": fmt.image_zstd}[compression]
    return bits | (1 if hole else 0) | (fmt.image_apply if applies else 0)


def pglz_zeros(count: int) -> bytes:
    """Return compressed zeros as pglz makes them: one literal, then copies of it."""
    items = [b"\x00", *[b"\x0f\x01\xff"] * -(-(count - 1) // 273)]  # length 18 + 255 from 1 back; the last is cut
    groups = [items[at : at + 8] for at in range(0, len(items), 8)]
    return b"".join(bytes([0xFE if at == 0 else 0xFF]) + b"".join(group) for at, group in enumerate(groups))


def compress(compression: str, zeros: int) -> bytes:
    match compression:
        case "pglz":
            return pglz_zeros(zeros)
        case "lz4":
            return bytes(lz4.block.compress(bytes(zeros), store_size=False))
        case _:
            return zstandard.ZstdCompressor().compress(bytes(zeros))


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("applies", [True, False])
def test_an_image_is_restored_with_its_hole(major: int, applies: bool) -> None:  # noqa: FBT001
    plain = ForgedImage(PAGE, image_info(major, applies=applies))
    holed = ForgedImage(PAGE[:100] + PAGE[400:], image_info(major, hole=True, applies=applies), 100)
    found = parse(body(b"", [ForgedBlock(0, image=plain, data=b"d"), ForgedBlock(1, None, image=holed)]), major)
    assert [block.image_applies for block in found.blocks] == [applies, applies]
    assert found.blocks[0].restore_page() == PAGE
    assert found.blocks[0].data == b"d"
    assert found.blocks[1].restore_page() == PAGE[:100] + bytes(300) + PAGE[400:]


@pytest.mark.parametrize("compression", ["pglz", "lz4", "zstd"])
@pytest.mark.parametrize("hole", [True, False])
def test_a_compressed_image_is_restored(compression: str, hole: bool) -> None:  # noqa: FBT001
    data = compress(compression, 8192 - 1900 if hole else 8192)
    info = image_info(15, compression=compression, hole=hole)
    image = ForgedImage(data, info, 100 if hole else 0, 1900 if hole else None)
    assert parse(body(b"", [ForgedBlock(image=image)])).blocks[0].restore_page() == bytes(8192)


@pytest.mark.parametrize("compression", ["pglz", "lz4", "zstd"])
def test_an_image_that_does_not_decompress_is_a_bad_record(compression: str) -> None:
    image = ForgedImage(b"\xff" * 50, image_info(15, compression=compression))
    found = parse(body(b"", [ForgedBlock(image=image)]))
    with pytest.raises(BadRecord, match=f"0/16B3748: block 0: {compression} image does not decompress"):
        found.blocks[0].restore_page()


def test_a_compressed_image_of_14_is_pglz_whatever_its_bits_mean_in_later_majors() -> None:
    image = ForgedImage(b"\x00" * 10, 0x02 | 0x04)
    block = parse(body(b"", [ForgedBlock(image=image)]), 14).blocks[0]
    assert block.image is not None
    assert (block.image.compression, block.image.applies) == ("pglz", True)


SOUND = ForgedBlock(image=ForgedImage(PAGE[100:], 3, 50))
IMPOSSIBLE_IMAGES = {
    "hole without offset": ForgedImage(PAGE[100:], 3, 0),
    "hole without length": ForgedImage(PAGE, 3, 50),
    "offset without hole": ForgedImage(PAGE, 2, 50),
    "length without hole": ForgedImage(PAGE[100:], 2, 0),
    "hole over the end": ForgedImage(PAGE[100:], 3, 8100),
    "compressed to its own length": ForgedImage(PAGE, 6, 0),
    "longer than a page": ForgedImage(PAGE + b"x", 2, 0),
}


@pytest.mark.parametrize("image", IMPOSSIBLE_IMAGES.values(), ids=IMPOSSIBLE_IMAGES)
def test_an_image_whose_fields_disagree_is_a_bad_record(image: ForgedImage) -> None:
    assert parse(body(b"", [SOUND])).blocks[0].restore_page()[:50] == PAGE[100:150]
    with pytest.raises(BadRecord, match="impossible image"):
        parse(body(b"", [replace(SOUND, image=image)]))


def test_blocks_out_of_order_are_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="block 1 is out of order"):
        parse(body(b"", [ForgedBlock(1), ForgedBlock(1)]))


def test_the_same_file_as_before_the_first_block_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="refers to the file of the block before it"):
        parse(body(b"", [ForgedBlock(0, None)]))


def test_data_against_its_flag_is_a_bad_record() -> None:
    rest = bytearray(body(b"", [ForgedBlock(data=b"abc")]))
    rest[1] &= ~0x20
    with pytest.raises(BadRecord, match="which its flag contradicts"):
        parse(bytes(rest))


def test_an_unknown_block_id_is_a_bad_record() -> None:
    for block_id in (33, 200, 251):
        with pytest.raises(BadRecord, match=f"block id {block_id} is unknown"):
            parse(bytes([block_id, 0, 0, 0]))


def test_incomplete_data_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="bytes of data in"):
        parse(body(b"main data")[:-1])
    with pytest.raises(BadRecord, match="bytes of data in"):
        parse(body(b"main data") + b"x")


def test_a_length_that_differs_from_the_bytes_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="length 24 in a record of 25 bytes"):
        parse_record(LSN, LSN, record() + b"x", wal_format(15))
