from itertools import pairwise

import pytest

from tests.support.forged.wal import PAGE, SEGMENT, SYSTEM, ForgedBlock, WalWriter, body, record
from tidemark.model.lsn import Lsn
from tidemark.wal.kernel import COMPILED, Defect
from tidemark.wal.page import NEED_MORE, Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.record import Record
from tidemark.wal.versions import wal_format


def drain(framer: Framer) -> list[Record]:
    found: list[Record] = []
    while isinstance(block := framer.next_block(), RecordBlock):
        found += block.records()
    assert isinstance(block, NeedMore), block
    return found


def some_wal(writer: WalWriter, count: int = 300) -> WalWriter:
    for number in range(count):
        writer.add(body(bytes(number % 7 * 311), [ForgedBlock(data=b"x" * (number % 13))]), xid=number)
    writer.add(body(b"long" * 9000))
    writer.add(body(b"end"))
    return writer


def test_every_record_is_returned_once_with_its_lsn_and_bytes() -> None:
    writer = some_wal(WalWriter())
    framer = Framer()
    framer.feed(writer.first_lsn, bytes(writer.data))
    found = drain(framer)
    assert [one.lsn for one in found] == writer.lsns
    assert [one.raw for one in found] == writer.records
    assert [one.prev for one in found] == [0, *writer.lsns[:-1]]
    assert framer.position == found[-1].end_lsn == writer.lsn
    assert (framer.system_identifier, framer.segment_bytes) == (SYSTEM, SEGMENT)
    assert framer.format is wal_format(15)


def test_end_lsn_is_where_the_search_for_the_next_record_begins() -> None:
    writer = some_wal(WalWriter())
    framer = Framer()
    framer.feed(writer.first_lsn, bytes(writer.data))
    found = drain(framer)
    for one, after in pairwise(found):
        at_page_end = one.end_lsn % PAGE == 0
        assert after.lsn - one.end_lsn == (24 if at_page_end else 0)


def test_a_record_that_ends_with_its_page_ends_where_the_next_page_begins() -> None:
    writer = WalWriter(SEGMENT + PAGE)
    writer.write(record(bytes(PAGE - 24 - 24), rmgr=0xFE))
    assert writer.lsn == SEGMENT + 2 * PAGE
    after = writer.add()
    framer = Framer(writer.format)
    framer.feed(writer.first_lsn, bytes(writer.data))
    block = framer.next_block()
    assert isinstance(block, RecordBlock)
    assert list(block.ends[:2]) == [SEGMENT + 2 * PAGE, writer.lsn]
    assert list(block.lsns[:2]) == [SEGMENT + PAGE + 24, after]


def test_a_restart_at_any_records_end_continues_with_the_next_record() -> None:
    writer = some_wal(WalWriter(), 60)
    whole = Framer()
    whole.feed(writer.first_lsn, bytes(writer.data))
    found = drain(whole)
    for index, one in enumerate(found[:-1]):
        for begin in (one.end_lsn, one.end_lsn // PAGE * PAGE):
            framer = Framer(writer.format, start_lsn=one.end_lsn)
            framer.feed(Lsn(begin), bytes(writer.data[begin - writer.first_lsn :]))
            assert [again.lsn for again in drain(framer)] == [after.lsn for after in found[index + 1 :]]


def test_a_start_where_no_record_begins_is_refused() -> None:
    writer = some_wal(WalWriter(), 60)
    for wrong in (writer.lsns[3] + 8, writer.lsns[3] + 1, writer.lsns[10] - 8):
        framer = Framer(start_lsn=Lsn(wrong))
        framer.feed(writer.first_lsn, bytes(writer.data))
        outcome = framer.next_block()
        assert isinstance(outcome, Invalid)
        assert framer.position == wrong


def test_a_search_that_begins_inside_a_record_finds_the_first_that_begins_later() -> None:
    writer = some_wal(WalWriter(), 20)
    long_lsn = writer.lsns[-2]
    for begin in (long_lsn + 100, (long_lsn // PAGE + 1) * PAGE, (long_lsn // PAGE + 2) * PAGE + 4000):
        framer = Framer()
        framer.feed(Lsn(begin), bytes(writer.data[begin - writer.first_lsn :]))
        assert [one.lsn for one in drain(framer)] == writer.lsns[-1:]


def test_an_empty_feed_needs_more() -> None:
    framer = Framer()
    assert framer.next_block() is NEED_MORE
    framer.feed(Lsn(SEGMENT), b"")
    assert framer.next_block() is NEED_MORE
    assert framer.fed_lsn == SEGMENT


def test_after_a_segment_switch_zeros_are_dropped_up_to_the_next_segment() -> None:
    writer = WalWriter()
    writer.add(body(b"before"))
    switch = writer.switch()
    after = writer.add(body(b"after"))
    framer = Framer()
    framer.feed(writer.first_lsn, bytes(writer.data))
    found = drain(framer)
    assert [one.lsn for one in found[1:]] == [switch, after]
    assert found[1].end_lsn == 2 * SEGMENT


def test_framing_can_start_after_a_segment_switch() -> None:
    writer = WalWriter()
    writer.switch()
    after = writer.add(body(b"after"))
    framer = Framer(writer.format, start_lsn=Lsn(2 * SEGMENT))
    framer.feed(Lsn(2 * SEGMENT), bytes(writer.data[SEGMENT:]))
    assert [one.lsn for one in drain(framer)] == [after]


def test_records_of_other_resource_managers_are_omitted() -> None:
    writer = WalWriter()
    wanted = [writer.add(body(bytes(9)), rmgr=rmgr) for rmgr in (1, 10, 2, 10)]
    framer = Framer()
    framer.feed(writer.first_lsn, bytes(writer.data))
    block = framer.next_block()
    assert isinstance(block, RecordBlock)
    assert [one.lsn for one in block.records(frozenset({10}))] == [wanted[1], wanted[3]]
    assert len(block) == 4


@pytest.mark.skipif(not COMPILED, reason="interpreted, a library has the CRCs")
@pytest.mark.parametrize("by_instruction", [True, False])
def test_the_crc_by_instruction_equals_the_crc_by_table_for_all_lengths(by_instruction: bool) -> None:  # noqa: FBT001
    writer = WalWriter()
    for size in (*range(800), 8192, 70_001):
        writer.add(body(bytes(at * at % 251 for at in range(size))))
    framer = summing(writer, by_instruction=by_instruction)
    framer.feed(writer.first_lsn, bytes(writer.data))
    assert [one.raw for one in drain(framer)] == writer.records
    for lsn, raw in zip(writer.lsns[10::61], writer.records[10::61], strict=True):
        for place in (4, 21, 24, len(raw) // 2, len(raw) - 1):  # all of them on the record's first page
            at = lsn - writer.first_lsn + min(place, PAGE - lsn % PAGE - 1)
            damaged = bytearray(writer.data)
            damaged[at] ^= 0x10
            framer = summing(writer, by_instruction=by_instruction)
            framer.feed(writer.first_lsn, bytes(damaged))
            while isinstance(outcome := framer.next_block(), RecordBlock):
                assert outcome.last_lsn < lsn
            assert outcome == Invalid(lsn, Defect.CRC)


def summing(writer: WalWriter, *, by_instruction: bool) -> Framer:
    framer = Framer(writer.format, crc_by_instruction=by_instruction)
    framer.feed(writer.first_lsn, b"")
    assert framer.next_block() is NEED_MORE
    return framer
