from struct import pack

import pytest

from tests.support.forged.wal import ForgedBlock
from tests.support.forged.wal_bodies import forged, heap_page, packed, page_image
from tidemark.model.lsn import Xid
from tidemark.wal.record import BadRecord
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, heap, heap2
from tidemark.wal.rmgr.heap import HeapConfirm, HeapInplace, HeapUpdate

ROW = packed(b"new values")
OLD = packed(b"old values", infomask=1, bitmap=b"\x03")
BLOCK = ForgedBlock(block=9, data=ROW)


def test_an_insert_gives_the_packed_row_and_its_location() -> None:
    found = heap.parse_insert(forged(RM_HEAP, heap.INSERT, pack("<HB", 4, 8), [BLOCK]))
    assert (found.block.block, found.offset, found.flags, found.tuple) == (9, 4, 8, ROW)


def test_an_insert_whose_row_is_on_the_page_image_contains_no_row() -> None:
    page = heap_page([(700, 0, ROW)])
    found = heap.parse_insert(forged(RM_HEAP, 0x80, pack("<HB", 1, 0), [ForgedBlock(image=page_image(page))]))
    assert found.tuple is None
    assert heap.page_tuple(found.block.restore_page(), found.offset) == (ROW, 700, 0)


def test_an_insert_without_row_and_image_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="0 bytes are not a tuple"):
        heap.parse_insert(forged(RM_HEAP, heap.INSERT, pack("<HB", 1, 8), [ForgedBlock()]))


@pytest.mark.parametrize("flags", [0, heap.DELETE_CONTAINS_OLD_KEY, heap.DELETE_CONTAINS_OLD_TUPLE])
def test_a_delete_gives_the_old_row_if_its_flags_announce_it(flags: int) -> None:
    main = pack("<IHBB", 800, 3, 0, flags) + (OLD if flags else b"")
    found = heap.parse_delete(forged(RM_HEAP, heap.DELETE, main, [ForgedBlock(block=2)]))
    assert (found.block.block, found.offset, found.xmax, found.flags) == (2, 3, 800, flags)
    assert found.old_tuple == (OLD if flags else None)


@pytest.mark.parametrize("opcode", [heap.UPDATE, heap.HOT_UPDATE])
def test_an_update_gives_both_rows_and_both_locations(opcode: int) -> None:
    main = pack("<IHBBIH", 700, 3, 0, 0x10 | 0x08, 0, 5) + OLD
    found = heap.parse_update(forged(RM_HEAP, opcode, main, [BLOCK, ForgedBlock(1, None, block=8)]))
    assert (found.block.block, found.new_offset, found.old_block.block, found.old_offset) == (9, 5, 8, 3)
    assert (found.tuple, found.old_tuple) == (ROW, OLD)


def test_an_update_on_one_page_has_its_old_row_there() -> None:
    found = heap.parse_update(forged(RM_HEAP, heap.UPDATE, pack("<IHBBIH", 700, 3, 0, 0x10, 0, 5), [BLOCK]))
    assert found.old_block is found.block
    assert found.old_tuple is None


def update(flags: int, lengths: bytes, data: bytes) -> HeapUpdate:
    main = pack("<IHBBIH", 700, 1, 0, flags, 0, 2)
    return heap.parse_update(forged(RM_HEAP, heap.HOT_UPDATE, main, [ForgedBlock(data=lengths + data)]))


def test_a_prefix_follows_the_bitmap_of_the_new_row() -> None:
    new = packed(b"old VALues", infomask=1, bitmap=b"\x07\x00")
    found = update(0x60, pack("<HH", 4, 3), new[:7] + b"VAL")
    assert found.tuple is None
    assert (found.prefix, found.suffix) == (4, 3)
    assert heap.apply_update(OLD, found) == new


def test_a_suffix_alone_follows_the_new_bytes() -> None:
    found = update(0x40, pack("<H", 6), packed(b"NEW "))
    assert heap.apply_update(OLD, found) == packed(b"NEW values")


def test_an_update_without_shared_bytes_needs_no_old_row() -> None:
    assert heap.apply_update(OLD, update(0, b"", ROW)) == ROW


def test_more_shared_bytes_than_the_old_row_has_are_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="prefix 11 and suffix 0 of 10 bytes"):
        heap.apply_update(OLD, update(0x20, pack("<H", 11), ROW[:6]))
    with pytest.raises(BadRecord, match="prefix 1 and suffix 0"):
        heap.apply_update(OLD, update(0x20, pack("<H", 1), ROW[:5]))  # hoff promises a byte that is missing


def test_an_update_on_a_page_image_cannot_be_applied_to_the_old_row() -> None:
    image = page_image(heap_page([None, (700, 0, ROW)]))
    found = heap.parse_update(
        forged(RM_HEAP, heap.UPDATE, pack("<IHBBIH", 700, 1, 0, 0x60, 0, 2), [ForgedBlock(image=image)])
    )
    assert (found.changed, found.prefix, found.suffix) == (None, 0, 0)
    with pytest.raises(BadRecord, match="only in the page image"):
        heap.apply_update(OLD, found)


def test_a_truncate_gives_all_its_relations() -> None:
    found = heap.parse_truncate(forged(RM_HEAP, heap.TRUNCATE, pack("<IIB3xIII", 5, 3, 1, 16400, 16401, 16402)))
    assert (found.database, found.relations, found.cascade, found.restart_identity) == (
        5, (16400, 16401, 16402), True, False,
    )  # fmt: skip


def test_a_truncate_with_fewer_relations_than_its_count_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="4294967295 truncated relations in 16 bytes"):
        heap.parse_truncate(forged(RM_HEAP, heap.TRUNCATE, pack("<IIB3xI", 5, 0xFFFFFFFF, 1, 16400)))


def test_a_confirm_and_an_inplace_name_their_row() -> None:
    confirm = heap.parse(forged(RM_HEAP, heap.CONFIRM, pack("<H", 3), [ForgedBlock()]))
    assert isinstance(confirm, HeapConfirm)
    assert confirm.offset == 3
    inplace = heap.parse(forged(RM_HEAP, heap.INPLACE, pack("<H", 3), [ForgedBlock(data=b"OLD values")]))
    assert isinstance(inplace, HeapInplace)
    assert heap.apply_inplace(OLD, inplace) == packed(b"OLD values", infomask=1, bitmap=b"\x03")
    for other in (OLD + b"!", OLD[:-1], b""):
        with pytest.raises(BadRecord, match="in-place update of 10 bytes in a row"):
            heap.apply_inplace(other, inplace)


def test_a_lock_contains_no_change() -> None:
    assert heap.parse(forged(RM_HEAP, heap.LOCK, bytes(8), [ForgedBlock()])) is None
    assert heap2.parse(forged(RM_HEAP2, 0x10, bytes(8), [ForgedBlock()])) is None


def multi(rows: list[bytes]) -> bytes:
    data = b""
    for row in rows:
        data += bytes(len(data) % 2) + pack("<H", len(row) - 5) + row
    return data


@pytest.mark.parametrize("init", [False, True])
def test_a_multi_insert_gives_every_row_aligned_to_two(init: bool) -> None:  # noqa: FBT001
    rows = [packed(b"x" * length) for length in (1, 2, 7, 0)]
    main = pack("<BxH", 8, 4) + (b"" if init else pack("<4H", 2, 3, 5, 9))
    block = ForgedBlock(data=multi(rows))
    found = heap2.parse_multi_insert(forged(RM_HEAP2, heap2.MULTI_INSERT | (0x80 if init else 0), main, [block]))
    assert found.tuples == tuple(rows)
    assert found.offsets == ((1, 2, 3, 4) if init else (2, 3, 5, 9))


def test_a_multi_insert_on_a_page_image_has_its_rows_there() -> None:
    page = heap_page([(700, 0, ROW), (700, 0, OLD)])
    block = ForgedBlock(image=page_image(page))
    found = heap2.parse_multi_insert(forged(RM_HEAP2, 0xD0, pack("<BxH", 0, 2), [block]))
    assert found.tuples is None
    assert list(heap.page_tuples(found.block.restore_page())) == [(1, ROW, 700, 0), (2, OLD, 700, 0)]


@pytest.mark.parametrize(
    ("count", "data", "reported"),
    [
        (2, multi([ROW]), "2 tuples in"),
        (1, multi([ROW]) + b"xy", "1 tuples occupy"),
        (1, multi([ROW])[:-1], "tuple at 2 of"),
        (1, pack("<H", 0) + b"\x00" * 5, "tuple at 2 of 7"),
        (2049, multi([ROW]), "2049 tuples on a page"),
    ],
)
def test_rows_that_do_not_fill_a_multi_insert_are_a_bad_record(count: int, data: bytes, reported: str) -> None:
    record = forged(RM_HEAP2, 0xD0, pack("<BxH", 0, count), [ForgedBlock(data=data)])
    with pytest.raises(BadRecord, match=reported):
        heap2.parse_multi_insert(record)


def test_a_new_cid_names_the_transaction_that_wrote_to_a_catalog() -> None:
    assert heap2.parse(forged(RM_HEAP2, heap2.NEW_CID, pack("<I", 690) + bytes(30))) == heap2.NewCid(Xid(690))


def test_a_page_gives_its_rows_and_nothing_for_dead_ones() -> None:
    page = heap_page([(700, 0, ROW), None, (701, 702, OLD)])
    assert heap.page_tuple(page, 1) == (ROW, 700, 0)
    assert heap.page_tuple(page, 2) is None
    assert heap.page_tuple(page, 4) is heap.page_tuple(page, 0) is None
    assert list(heap.page_tuples(page)) == [(1, ROW, 700, 0), (3, OLD, 701, 702)]
    assert list(heap.page_tuples(bytes(8192))) == []


def test_an_invalid_page_is_a_bad_record() -> None:
    page = heap_page([(700, 0, ROW)])
    for bad in (
        page[:100],
        page[:12] + pack("<H", 4) + page[14:],
        page[:14] + pack("<H", 8192) + pack("<H", 8191) + page[18:],
        page[:24] + pack("<I", 8190 | 1 << 15 | 30 << 17) + page[28:],
    ):
        with pytest.raises(BadRecord, match=r"0/1234: page image|page of 100 bytes"):
            list(heap.page_tuples(bad))
