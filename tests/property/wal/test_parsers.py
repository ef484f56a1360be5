"""For any record, a parser returns a value or a `BadRecord`: at every cut, and for garbage."""

from collections.abc import Callable
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.wal import ForgedBlock, body, record
from tests.support.forged.wal_bodies import (
    checkpoint_body,
    commit_body,
    forged,
    heap_page,
    packed,
    page_image,
    prepare_body,
)
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import RelFileLocator
from tidemark.wal import pglz
from tidemark.wal.record import BadRecord, Record, parse_record
from tidemark.wal.rmgr import heap, heap2, message, relmap, standby, xact, xlog
from tidemark.wal.versions import MAJORS, wal_format

FORMAT = wal_format(15)
Parser = Callable[[Record], object]
PARSERS: dict[int, Parser] = {
    0: lambda record: xlog.parse(record, FORMAT),
    1: lambda record: xact.parse(record, FORMAT),
    7: lambda record: relmap.parse(record, FORMAT),
    8: standby.parse,
    9: heap2.parse,
    10: heap.parse,
    21: message.parse,
}
ROW = packed(b"values")
# Up to the last byte that is read: padding and unused fields are omitted.
SOUND: list[tuple[int, int, bytes, list[ForgedBlock]]] = [
    (0, 0x10, checkpoint_body(FORMAT)[:84], []),
    (0, 0x60, pack("<6i", 100, 8, 10, 0, 64, 1), []),
    (0, 0x90, pack("<qII", 0, 3, 2), []),
    (1, 0xB0, commit_body(FORMAT), []),
    (1, 0xC0, commit_body(FORMAT, abort=True), []),
    (1, 0x10, prepare_body(FORMAT), []),
    (1, 0x50, pack("<IiII", 690, 2, 701, 702), []),
    (7, 0, pack("<IIiiiII", 5, 0, 16, 0x592717, 1, 1259, 16500), []),
    (8, 0x10, pack("<iiB3xIII3I", 2, 1, 1, 760, 740, 759, 740, 745, 746), []),
    (9, 0xD0, pack("<BxH", 8, 1), [ForgedBlock(data=pack("<H", len(ROW) - 5) + ROW)]),
    (9, 0x70, pack("<I", 690), []),
    (10, 0x00, pack("<HB", 4, 8), [ForgedBlock(data=ROW)]),
    (10, 0x10, pack("<IHBB", 800, 3, 0, 2) + ROW, [ForgedBlock()]),
    (10, 0x20, pack("<IHBBIH", 700, 3, 0, 0x64, 0, 5) + ROW, [ForgedBlock(data=pack("<HH", 2, 2) + ROW)]),
    (10, 0x30, pack("<IIB3xI", 5, 1, 1, 16400), []),
    (10, 0x50, pack("<H", 3), [ForgedBlock()]),
    (10, 0x70, pack("<H", 3), [ForgedBlock(data=b"values")]),
    (21, 0, pack("<IB3xQQ", 5, 1, 7, 4) + b"prefix\0data", []),
]


@pytest.mark.parametrize(("rmgr", "info", "main", "blocks"), SOUND, ids=[f"{row[0]}/{row[1]:02X}" for row in SOUND])
def test_every_prefix_of_a_sound_body_is_a_value_or_a_bad_record(
    rmgr: int, info: int, main: bytes, blocks: list[ForgedBlock]
) -> None:
    whole = PARSERS[rmgr](forged(rmgr, info, main, blocks))
    assert whole is not None
    for size in range(len(main)):
        with suppress(BadRecord):
            assert PARSERS[rmgr](forged(rmgr, info, main[:size], blocks)) != whole
    for block in blocks:
        for size in range(len(block.data)):
            with suppress(BadRecord):
                cut = ForgedBlock(data=block.data[:size])
                assert PARSERS[rmgr](forged(rmgr, info, main, [cut])) != whole


blocks_drawn = st.builds(
    ForgedBlock,
    id=st.just(0),
    locator=st.just(RelFileLocator(Oid(1663), Oid(5), Oid(16384))),
    data=st.binary(max_size=60),
    image=st.sampled_from([None, page_image(heap_page([(700, 0, ROW)]))]),
)


@given(
    st.sampled_from(sorted(PARSERS)), st.integers(0, 255), st.binary(max_size=120), st.lists(blocks_drawn, max_size=1)
)
@settings(max_examples=examples(500))
def test_garbage_in_a_body_is_a_value_or_a_bad_record(
    rmgr: int, info: int, main: bytes, blocks: list[ForgedBlock]
) -> None:
    with suppress(BadRecord):
        PARSERS[rmgr](forged(rmgr, info, main, blocks))


@given(st.sampled_from(SOUND), st.data())
@settings(max_examples=examples(500))
def test_a_damaged_body_is_a_value_or_a_bad_record(
    sound: tuple[int, int, bytes, list[ForgedBlock]], data: st.DataObject
) -> None:
    rmgr, info, main, blocks = sound
    damaged = bytearray(main)
    for place in data.draw(st.lists(st.integers(0, len(main) - 1), min_size=1, max_size=3)):
        damaged[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    with suppress(BadRecord):
        PARSERS[rmgr](forged(rmgr, info, bytes(damaged), blocks))


@given(st.binary(max_size=200), st.sampled_from(MAJORS))
@settings(max_examples=examples(500))
def test_garbage_behind_a_header_is_a_record_or_a_bad_record(rest: bytes, major: int) -> None:
    with suppress(BadRecord):
        found = parse_record(Lsn(8), Lsn(16), record(rest), wal_format(major))
        for block in found.blocks:
            with suppress(BadRecord):
                assert len(block.restore_page()) == 8192


@given(st.data(), st.sampled_from(MAJORS))
@settings(max_examples=examples(500))
def test_damage_in_block_headers_is_a_record_or_a_bad_record(data: st.DataObject, major: int) -> None:
    blocks = [ForgedBlock(0, data=b"row"), ForgedBlock(1, None, block=1), ForgedBlock(2, image=page_image(bytes(8192)))]
    rest = bytearray(body(b"main", blocks, origin=1, top_xid=9))
    for place in data.draw(st.lists(st.integers(0, 70), min_size=1, max_size=3)):
        rest[place] = data.draw(st.integers(0, 255))
    with suppress(BadRecord):
        parse_record(Lsn(8), Lsn(16), record(bytes(rest)), wal_format(major))


@given(st.binary(max_size=9000), st.integers(0, 70))
def test_a_garbled_page_gives_tuples_or_a_bad_record(page: bytes, offset: int) -> None:
    sized = page.ljust(8192, b"\x11")
    for candidate in (page, sized, heap_page([(1, 0, ROW)])[:24] + sized[24:8192]):
        with suppress(BadRecord):
            list(heap.page_tuples(candidate))
        with suppress(BadRecord):
            heap.page_tuple(candidate, offset)


@given(packed_rows := st.binary(max_size=40), packed_rows, st.integers(0, 50), st.integers(0, 50))
def test_a_shared_prefix_and_suffix_are_copied_from_their_place(
    old: bytes, new: bytes, prefix: int, suffix: int
) -> None:
    flags = (0x20 if prefix else 0) | (0x40 if suffix else 0)
    lengths = (pack("<H", prefix) if prefix else b"") + (pack("<H", suffix) if suffix else b"")
    main = pack("<IHBBIH", 700, 1, 0, flags, 0, 2)
    update = heap.parse_update(forged(10, 0x40, main, [ForgedBlock(data=lengths + packed(new))]))
    if max(prefix, suffix) > len(old):
        with pytest.raises(BadRecord):
            heap.apply_update(packed(old), update)
    else:
        expected = old[:prefix] + new + old[len(old) - suffix :]
        assert heap.apply_update(packed(old), update) == packed(expected)


@st.composite
def pglz_streams(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw a stream and its expansion, by a model without the kernel's bit operations."""
    source, target = bytearray(), bytearray()
    items = draw(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 4095), st.integers(0, 273)), max_size=60))
    for group in (items[at : at + 8] for at in range(0, len(items), 8)):
        control, packed_items = 0, b""
        for bit, (byte, distance, length) in enumerate(group):
            if 0 < distance <= len(target) and length >= 3:
                control |= 1 << bit
                packed_items += bytes([distance >> 8 << 4 | min(length - 3, 15), distance & 255])
                packed_items += bytes([length - 18]) if length >= 18 else b""
                for _ in range(length):
                    target.append(target[-distance])
            else:
                packed_items += bytes([byte])
                target.append(byte)
        source += bytes([control]) + packed_items
    return bytes(source), bytes(target)


@given(pglz_streams())
def test_pglz_expands_to_the_original_and_to_no_other_length(case: tuple[bytes, bytes]) -> None:
    source, target = case
    assert pglz.decompress(source, len(target)) == target
    for size in (len(target) + 1, len(target) + 300):
        with pytest.raises(pglz.BadCompression):
            pglz.decompress(source, size)
    for cut in range(len(source)):
        with pytest.raises(pglz.BadCompression):
            pglz.decompress(source[:cut], len(target))


@given(st.binary(max_size=200), st.integers(0, 9000))
def test_garbage_expands_to_the_given_length_or_not_at_all(source: bytes, raw_bytes: int) -> None:
    with suppress(pglz.BadCompression):
        assert len(pglz.decompress(source, raw_bytes)) == raw_bytes
