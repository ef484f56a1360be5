import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.decode.catalog.history import DamagedHistory, Journal, JournalEntry, dump_entry, journal_head, load_base
from tidemark.model.lsn import INVALID_LSN, Lsn, SystemIdentifier, TimelineId, Xid
from tidemark.wal.record import Record

SYSTEM = SystemIdentifier(7_000_000_000_000_000_001)

entries = st.lists(st.binary(min_size=24, max_size=300), max_size=8).map(
    lambda raws: [
        JournalEntry(Lsn(1000 * number), Lsn(1000 * number + 500), TimelineId(1 + number % 2), Xid(number), raw)
        for number, raw in enumerate(raws, 1)
    ]
)


def written(entry: JournalEntry) -> bytes:
    record = Record(
        lsn=entry.lsn,
        end_lsn=entry.end_lsn,
        prev=INVALID_LSN,
        xid=entry.top_xid,
        top_xid=Xid(0),
        origin=0,
        rmgr=10,
        info=0,
        blocks=(),
        main=b"",
        raw=entry.raw,
    )
    return dump_entry(record, entry.timeline, entry.top_xid)


@given(entries)
def test_what_is_written_is_read(wanted: list[JournalEntry]) -> None:
    data = journal_head(16, SYSTEM) + b"".join(map(written, wanted))
    journal = Journal(data, "journal")
    assert list(journal) == wanted
    assert journal.complete_bytes == len(data)
    assert (journal.major, journal.system_identifier) == (16, SYSTEM)


@given(entries, st.data())
def test_a_journal_that_is_cut_off_ends_before_the_cut_entry(wanted: list[JournalEntry], data: st.DataObject) -> None:
    head, parts = journal_head(15, SYSTEM), [written(entry) for entry in wanted]
    whole = head + b"".join(parts)
    cut = data.draw(st.integers(len(head), len(whole)))
    journal = Journal(whole[:cut], "journal")
    read = list(journal)
    assert read == wanted[: len(read)]
    assert journal.complete_bytes == len(head) + sum(map(len, parts[: len(read)])) <= cut
    assert len(read) == len(wanted) or journal.complete_bytes + len(parts[len(read)]) > cut


@given(entries.filter(bool), st.data())
def test_a_changed_byte_ends_the_journal_at_its_entry(wanted: list[JournalEntry], data: st.DataObject) -> None:
    head, parts = journal_head(15, SYSTEM), [written(entry) for entry in wanted]
    whole = bytearray(head + b"".join(parts))
    at = data.draw(st.integers(len(head), len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    journal = Journal(bytes(whole), "journal")
    read = list(journal)
    assert read == wanted[: len(read)]
    assert journal.complete_bytes <= at


@given(st.binary(max_size=200))
def test_garbage_is_named_damaged(garbage: bytes) -> None:
    with pytest.raises(DamagedHistory, match="somewhere"):
        Journal(garbage, "somewhere")
    with pytest.raises(DamagedHistory, match="somewhere"):
        load_base(garbage, "somewhere")
