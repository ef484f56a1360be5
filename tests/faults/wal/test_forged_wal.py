"""WAL with one forged field, each test named by it: reading ends at the field, and nothing after it is emitted."""

from struct import pack

import pytest

from tests.support.forged.wal import PAGE, SEGMENT, SYSTEM, ForgedBlock, WalWriter, body, record
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.wal.kernel import Defect
from tidemark.wal.page import Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.versions import RECORD_BYTES_MAX, WalFormat, wal_format

SHORT_RECORDS = 5
SECOND_PAGE = SEGMENT + PAGE


def forge() -> WalWriter:
    """Write some short records on the first page of a segment, one over two page ends, one more."""
    writer = WalWriter()
    for number in range(SHORT_RECORDS):
        writer.add(body(b"row", [ForgedBlock(data=b"x" * 50)]), xid=number)
    writer.add(body(bytes(2 * PAGE)))
    writer.add(body(b"last"))
    return writer


def read(
    writer: WalWriter,
    *,
    piece: int = 1 << 30,
    fmt: WalFormat | None = None,
    system: int | None = None,
    segment_bytes: int | None = None,
    timeline: int | None = None,
) -> tuple[int, Invalid | NeedMore]:
    """Return the number of records, and the end state."""
    framer = Framer(
        fmt,
        system_identifier=None if system is None else SystemIdentifier(system),
        segment_bytes=segment_bytes,
        timeline=None if timeline is None else TimelineId(timeline),
    )
    count = 0
    outcome: RecordBlock | Invalid | NeedMore = NeedMore()
    for begin in range(0, len(writer.data), piece):
        framer.feed(Lsn(writer.first_lsn + begin), bytes(writer.data[begin : begin + piece]))
        while isinstance(outcome := framer.next_block(), RecordBlock):
            count += len(outcome)
        if isinstance(outcome, Invalid):
            assert framer.next_block() == outcome
            break
    assert not isinstance(outcome, RecordBlock)
    return count, outcome


PAGE_FIELDS = [
    ("xlp_magic", 0, "<H", 0xD111, Defect.PAGE_MAGIC),
    ("xlp_magic zero", 0, "<H", 0, Defect.PAGE_MAGIC),
    ("xlp_info", 2, "<H", 0x11, Defect.PAGE_INFO),
    ("xlp_info long header inside a segment", 2, "<H", 3, Defect.SYSTEM_IDENTIFIER),
    ("xlp_info without contrecord", 2, "<H", 0, Defect.CONTRECORD_MISSING),
    ("xlp_tli of an older timeline", 4, "<I", 0, Defect.PAGE_TIMELINE),
    ("xlp_pageaddr of a recycled page", 8, "<Q", SECOND_PAGE - 16 * SEGMENT & 0xFFFFFFFF, Defect.PAGE_ADDRESS),
    ("xlp_pageaddr with its highest bit", 8, "<Q", SECOND_PAGE | 1 << 63, Defect.PAGE_ADDRESS),
    ("xlp_rem_len zero", 16, "<I", 0, Defect.REM_LEN),
    ("xlp_rem_len too long", 16, "<I", 1 << 20, Defect.REM_LEN),
]


@pytest.mark.parametrize(
    ("offset", "layout", "value", "defect"), [row[1:] for row in PAGE_FIELDS], ids=[row[0] for row in PAGE_FIELDS]
)
@pytest.mark.parametrize("piece", [1 << 30, PAGE, 1000])
def test_a_forged_page_header_ends_the_wal_at_its_page(
    offset: int, layout: str, value: int, defect: Defect, piece: int
) -> None:
    writer = forge()
    writer.patch(Lsn(SECOND_PAGE + offset), layout, value)
    assert read(writer, piece=piece) == (SHORT_RECORDS, Invalid(Lsn(SECOND_PAGE), defect))


LONG_FIELDS = [
    ("xlp_info short header at a segment's start", 2, "<H", 0, Defect.LONG_HEADER),
    ("xlp_sysid", 24, "<Q", SYSTEM + 1, Defect.SYSTEM_IDENTIFIER),
    ("xlp_seg_size other", 32, "<I", 2 * SEGMENT, Defect.SEGMENT_BYTES),
    ("xlp_seg_size no power of two", 32, "<I", SEGMENT + 1, Defect.SEGMENT_BYTES),
    ("xlp_seg_size zero", 32, "<I", 0, Defect.SEGMENT_BYTES),
    ("xlp_xlog_blcksz", 36, "<I", 4096, Defect.BLOCK_BYTES),
    ("xlp_tli later than the one that is followed", 4, "<I", 2, Defect.PAGE_TIMELINE),
]


@pytest.mark.parametrize(
    ("offset", "layout", "value", "defect"), [row[1:] for row in LONG_FIELDS], ids=[row[0] for row in LONG_FIELDS]
)
def test_a_segment_header_that_contradicts_the_cluster_is_refused(
    offset: int, layout: str, value: int, defect: Defect
) -> None:
    writer = forge()
    writer.patch(Lsn(SEGMENT + offset), layout, value)
    found = read(writer, fmt=writer.format, system=SYSTEM, segment_bytes=SEGMENT, timeline=1)
    assert found == (0, Invalid(Lsn(SEGMENT), defect))


def test_a_page_of_another_major_is_refused() -> None:
    assert read(forge(), fmt=wal_format(16)) == (0, Invalid(Lsn(SEGMENT), Defect.PAGE_MAGIC))


def test_a_magic_of_no_supported_major_is_refused() -> None:
    writer = forge()
    writer.patch(Lsn(SEGMENT), "<H", 0xD106)  # 13
    assert read(writer) == (0, Invalid(Lsn(SEGMENT), Defect.PAGE_MAGIC))


RECORD_FIELDS = [
    ("xl_tot_len zero", 0, "<I", 0, Defect.TOTAL_LENGTH),
    ("xl_tot_len shorter than a header", 0, "<I", 23, Defect.TOTAL_LENGTH),
    ("xl_tot_len over the greatest", 0, "<I", RECORD_BYTES_MAX + 1, Defect.TOTAL_LENGTH),
    ("xl_tot_len all ones", 0, "<I", 0xFFFFFFFF, Defect.TOTAL_LENGTH),
    ("xl_tot_len one less", 0, "<I", 98, Defect.CRC),
    ("xl_xid", 4, "<I", 77, Defect.CRC),
    ("xl_prev", 8, "<Q", SEGMENT + 40, Defect.PREV),
    ("xl_prev later than the record", 8, "<Q", 1 << 63, Defect.PREV),
    ("xl_info", 16, "<B", 0x10, Defect.CRC),
    ("xl_rmid of nobody", 17, "<B", 22, Defect.RMGR),
    ("xl_rmid last unused", 17, "<B", 127, Defect.RMGR),
    ("xl_rmid of an extension", 17, "<B", 128, Defect.CRC),
    ("xl_crc", 20, "<I", 0, Defect.CRC),
    ("a byte of data", 90, "<B", 1, Defect.CRC),
]


@pytest.mark.parametrize(
    ("offset", "layout", "value", "defect"), [row[1:] for row in RECORD_FIELDS], ids=[row[0] for row in RECORD_FIELDS]
)
@pytest.mark.parametrize("piece", [1 << 30, PAGE, 7])
def test_a_forged_record_ends_the_wal_at_its_lsn(
    offset: int, layout: str, value: int, defect: Defect, piece: int
) -> None:
    writer = forge()
    assert len(writer.records[3]) == 99
    writer.patch(Lsn(writer.lsns[3] + offset), layout, value)
    assert read(writer, piece=piece) == (3, Invalid(writer.lsns[3], defect))


def test_a_forged_length_of_a_long_record_is_detected_at_the_next_page() -> None:
    writer = forge()
    writer.patch(writer.lsns[SHORT_RECORDS], "<I", RECORD_BYTES_MAX)
    assert read(writer) == (SHORT_RECORDS, Invalid(Lsn(SECOND_PAGE), Defect.REM_LEN))


def test_a_byte_of_a_long_record_fails_its_crc() -> None:
    writer = forge()
    writer.patch(Lsn(SECOND_PAGE + 100), "<B", 1)
    assert read(writer) == (SHORT_RECORDS, Invalid(writer.lsns[SHORT_RECORDS], Defect.CRC))


def test_a_custom_resource_manager_is_unknown_to_14() -> None:
    writer = WalWriter(major=14)
    lsn = writer.add(rmgr=128)
    assert read(writer) == (0, Invalid(lsn, Defect.RMGR))


def test_a_page_that_continues_a_record_without_a_beginning_is_refused() -> None:
    writer = WalWriter()
    disk_space = -writer.begin() % PAGE
    writer.write(record(body(bytes(disk_space - 24 - 5)), prev=writer.prev))
    writer.add()
    writer.patch(Lsn(SECOND_PAGE + 2), "<H", 1)
    writer.patch(Lsn(SECOND_PAGE + 16), "<I", 100)
    assert read(writer) == (1, Invalid(Lsn(SECOND_PAGE), Defect.CONTRECORD_UNEXPECTED))


def torn() -> tuple[WalWriter, Lsn]:
    """A record over three pages, of which a crash left the first; recovery continues at the second."""
    writer = WalWriter()
    writer.add(body(b"whole"))
    return writer, writer.tear(record(body(bytes(3 * PAGE)), prev=writer.prev))


@pytest.mark.parametrize("piece", [1 << 30, PAGE, 1000, 7])
def test_a_torn_record_is_dropped_where_recovery_overwrote_its_rest(piece: int) -> None:
    writer, lsn = torn()
    writer.overwrite(lsn)
    writer.add(body(b"after"))
    assert read(writer, piece=piece) == (3, NeedMore())


def test_an_overwrite_that_names_another_record_is_refused() -> None:
    writer, lsn = torn()
    named = writer.overwrite(lsn, named=lsn + 8)
    assert read(writer) == (1, Invalid(named, Defect.OVERWRITTEN))


def test_a_torn_record_that_the_next_does_not_name_is_refused() -> None:
    writer, _ = torn()
    writer.data += writer.page_header(flags=8)
    other = writer.add(body(b"something else"))
    assert read(writer) == (1, Invalid(other, Defect.OVERWRITTEN))


def test_a_torn_record_without_an_overwrite_is_refused() -> None:
    writer, _ = torn()
    writer.add(body(b"after"))
    assert read(writer) == (1, Invalid(Lsn(SECOND_PAGE), Defect.CONTRECORD_MISSING))


def test_a_start_at_a_torn_record_continues_after_it() -> None:
    writer, lsn = torn()
    writer.overwrite(lsn)
    for first in (writer.first_lsn, lsn):
        framer = Framer(writer.format, start_lsn=lsn)
        framer.feed(first, bytes(writer.data[first - writer.first_lsn :]))
        block = framer.next_block()
        assert isinstance(block, RecordBlock)
        assert list(block.lsns[: len(block)]) == writer.lsns[1:]


def test_the_tail_of_a_recycled_segment_is_recognised_by_its_page_address() -> None:
    old = forge()
    writer = WalWriter(16 * SEGMENT)
    for _ in range(SHORT_RECORDS):
        writer.add(body(bytes(1500)))
    writer.data += bytes(PAGE - len(writer.data) % PAGE)
    tail_lsn = writer.lsn
    writer.data += old.data[len(writer.data) :]
    count, outcome = read(writer)
    assert count == SHORT_RECORDS
    # The zeros that fill the last page of a record also end the WAL, and come first.
    assert outcome == Invalid(Lsn(writer.lsns[-1] + 1536), Defect.TOTAL_LENGTH)
    framer = Framer(segment_bytes=SEGMENT)
    framer.feed(tail_lsn, bytes(writer.data[tail_lsn - writer.first_lsn :]))
    assert framer.next_block() == Invalid(tail_lsn, Defect.PAGE_ADDRESS)


def test_a_segment_switch_without_a_segment_size_is_refused() -> None:
    writer = WalWriter(SECOND_PAGE)
    writer.add(body(b"before"))
    lsn = writer.add(rmgr=0, info=0x40)
    assert read(writer, fmt=writer.format) == (1, Invalid(lsn, Defect.SEGMENT_BYTES))
    assert read(writer, fmt=writer.format, segment_bytes=SEGMENT) == (2, NeedMore())


def test_bytes_behind_a_segment_switch_are_not_read() -> None:
    writer = WalWriter()
    lsn = writer.switch()
    writer.data[lsn - SEGMENT + 24 : SEGMENT] = b"\xff" * (2 * SEGMENT - lsn - 24)
    writer.add(body(b"after"))
    assert read(writer) == (2, NeedMore())


def test_a_truncated_segment_needs_more() -> None:
    writer = forge()
    del writer.data[2 * PAGE :]
    assert read(writer) == (SHORT_RECORDS, NeedMore())


def test_a_segment_of_zeros_is_no_wal() -> None:
    writer = WalWriter()
    writer.data += bytes(SEGMENT)
    assert read(writer) == (0, Invalid(Lsn(SEGMENT), Defect.PAGE_MAGIC))


def test_memory_grows_with_received_bytes_and_not_with_the_length_in_a_header() -> None:
    writer = WalWriter()
    writer.add(body(b"before"))
    head = record(bytes(100), prev=writer.prev)[:24]
    writer.data += pack("<I", RECORD_BYTES_MAX) + head[4:]
    framer = Framer()
    framer.feed(writer.first_lsn, bytes(writer.data))
    while isinstance(framer.next_block(), RecordBlock):
        pass
    framer.feed(writer.lsn, b"")
    assert framer.next_block() == NeedMore()
    assert 0 < framer.block_bytes < 3 * PAGE


def test_the_timeline_may_rise_to_the_one_that_is_followed() -> None:
    writer = WalWriter()
    writer.add(body(b"one"))
    writer.switch()
    writer.timeline = 2
    new = writer.add(body(b"two"))
    assert read(writer, timeline=1)[1] == Invalid(Lsn(2 * SEGMENT), Defect.PAGE_TIMELINE)
    framer = Framer(timeline=TimelineId(1))
    framer.feed(writer.first_lsn, bytes(writer.data[:SEGMENT]))
    while isinstance(framer.next_block(), RecordBlock):
        pass
    framer.follow(TimelineId(2))
    framer.feed(Lsn(2 * SEGMENT), bytes(writer.data[SEGMENT:]))
    block = framer.next_block()
    assert isinstance(block, RecordBlock)
    assert list(block.lsns[:1]) == [new]
