"""Row changes from heap records: TOAST, ON CONFLICT, COPY, old rows."""

from dataclasses import replace
from struct import pack

import pytest

from tests.support.forged.forged_records import Wal, block_of, external, locator, packed_chunk, packed_row, reported
from tests.support.forged.groups import relation
from tidemark.decode.datum.tuples import TupleLayout, deform
from tidemark.decode.datum.varlena import ExternalPointer
from tidemark.decode.transactions.decoder import Decoder
from tidemark.decode.transactions.heap_changes import RowNotLogged
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction, RowRun
from tidemark.model.change import BeforeKind
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation, ReplicaIdentity
from tidemark.wal.record import BadRecord
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, heap, heap2

ACCOUNT, TOAST = 16385, 16388
MEMORY_BYTES = 32 << 20
POINTER = ExternalPointer(3004, 3000, 0, Oid(77), Oid(TOAST))
VALUE = bytes(1000) + b"b" * 1000 + b"c" * 1000


def wal() -> Wal:
    toast = Relation(Oid(TOAST), "pg_toast", "pg_toast_16385", "t", "p", (), ReplicaIdentity.NOTHING)
    return Wal(relation(), toast, memory_bytes=MEMORY_BYTES)


def toast_value(stream: Wal, xid: int = 701, *, last: int = 3) -> None:
    for number in range(last):
        stream.insert(xid, TOAST, packed_chunk(77, number, VALUE[number * 1000 : (number + 1) * 1000]))


def notes(stream: Wal) -> list[object]:
    """Return the second column of the new rows of the first transaction."""
    return notes_of(stream.committed[0])


def notes_of(transaction: CommittedTransaction) -> list[object]:
    found: list[object] = []
    layout = TupleLayout.of(relation())
    for item in transaction.items():
        assert isinstance(item, RowRun)
        for row in item.rows():
            assert row.new is not None
            found.append(deform(row.new, layout)[1])
    return found


def test_a_toasted_value_is_put_together_from_the_chunks_before_its_row() -> None:
    stream = wal()
    toast_value(stream)
    stream.insert(701, ACCOUNT, packed_row(1, external(POINTER)))
    stream.commit(701)
    assert notes(stream) == [VALUE]


@pytest.mark.parametrize(("chunks", "size", "blocks"), [(30, 100, 7), (200, 10, 200), (2600, 4000, 9)])
def test_a_value_is_whole_however_many_blocks_and_bytes_lie_between_its_chunks_and_its_row(
    chunks: int, size: int, blocks: int
) -> None:
    """The first value teaches the loop the files; other transactions commit between the chunks of the second one."""
    stream, contents = wal(), [bytes([number % 251]) * size for number in range(chunks)]
    toast_value(stream)
    stream.insert(701, ACCOUNT, packed_row(1, external(POINTER)))
    for number, content in enumerate(contents):
        stream.insert(701, TOAST, packed_chunk(78, number, content))
        if number % 20 == 1:
            stream.insert(800 + number, ACCOUNT, packed_row(number))
            stream.commit(800 + number)
    pointer = ExternalPointer(chunks * size + 4, chunks * size, 0, Oid(78), Oid(TOAST))
    stream.insert(701, ACCOUNT, packed_row(2, external(pointer)))
    stream.commit(701)
    decoder, step = wal().decoder, -(-len(stream.raws) // blocks)
    cuts = range(0, len(stream.raws), step)
    found: list[object] = []
    for cut in cuts:
        block = block_of(stream.raws[cut : cut + step])
        found += decoder.decode_block(block)
        if not block.is_kept:  # as framing does with the next records
            block.linear[:] = bytes(len(block.linear))
    *_, last = (each for each in found if isinstance(each, CommittedTransaction))
    assert len(found) == len(range(1, chunks, 20)) + 1
    assert notes_of(last) == [VALUE, b"".join(contents)]
    assert (decoder.last_lsn, decoder.decoded_lsn) == stream.raws[-1][:2]


def test_chunks_serve_one_row_and_a_later_pointer_is_an_unchanged_value() -> None:
    stream = wal()
    toast_value(stream)
    stream.insert(701, ACCOUNT, packed_row(1, external(POINTER)))
    stream.update(701, ACCOUNT, packed_row(2, external(POINTER)))
    stream.commit(701)
    assert notes(stream) == [VALUE, POINTER]


def test_chunks_of_a_multi_insert_live_until_its_last_record() -> None:
    stream = wal()
    toast_value(stream)
    stream.multi_insert(701, ACCOUNT, [packed_row(1), packed_row(2)], last=False)
    stream.multi_insert(701, ACCOUNT, [packed_row(3, external(POINTER))])
    stream.update(701, ACCOUNT, packed_row(3, external(POINTER)))
    stream.commit(701)
    assert notes(stream) == [b"x", b"x", VALUE, POINTER]


def test_chunks_of_a_rolled_back_savepoint_are_removed() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(702, TOAST, packed_chunk(77, 0, b"z"), top=701)
    stream.abort(702)
    toast_value(stream)
    stream.insert(701, ACCOUNT, packed_row(1, external(POINTER)))
    stream.commit(701)
    assert notes(stream) == [b"x", VALUE]


def test_a_toasted_value_with_its_first_chunk_missing_stops_decoding() -> None:
    stream = wal()
    with pytest.raises(BadRecord, match="chunk 1 of TOAST value 77 comes after 0 chunks"):
        stream.insert(701, TOAST, packed_chunk(77, 1, b"y"))


def test_a_toasted_value_with_its_last_chunk_missing_stops_decoding() -> None:
    stream = wal()
    toast_value(stream, last=2)
    with pytest.raises(BadRecord, match="TOAST value 77 has 2000 bytes, not 3000"):
        stream.insert(701, ACCOUNT, packed_row(1, external(POINTER)))


def test_a_speculative_row_counts_at_its_confirmation_with_its_toasted_value() -> None:
    stream = wal()
    toast_value(stream)
    stream.insert(701, ACCOUNT, packed_row(1, external(POINTER)), flags=heap.INSERT_IS_SPECULATIVE, offset=4)
    stream.insert(701, ACCOUNT, packed_row(2), offset=5)
    stream.confirm(701, ACCOUNT, offset=4)
    stream.commit(701)
    assert reported(stream.committed[0]) == ["i account 2/-", "i account 1/-"]
    assert notes(stream) == [b"x", VALUE]


def test_a_speculative_row_that_is_aborted_is_not_emitted() -> None:
    stream = wal()
    toast_value(stream)
    stream.insert(701, ACCOUNT, packed_row(1, external(POINTER)), flags=heap.INSERT_IS_SPECULATIVE, offset=4)
    stream.delete(701, TOAST, flags=heap.DELETE_IS_SUPER)
    stream.delete(701, ACCOUNT, flags=heap.DELETE_IS_SUPER, offset=4)
    stream.update(701, ACCOUNT, packed_row(9, external(POINTER)))
    stream.commit(701)
    assert notes(stream) == [POINTER]


@pytest.mark.parametrize(
    ("flag", "kind"),
    [(heap.DELETE_CONTAINS_OLD_TUPLE, BeforeKind.FULL), (heap.DELETE_CONTAINS_OLD_KEY, BeforeKind.KEY)],
)
def test_known_columns_of_an_old_row_are_reported(flag: int, kind: BeforeKind) -> None:
    stream = wal()
    stream.delete(701, ACCOUNT, old=packed_row(1), flags=flag)
    stream.commit(701)
    (run,) = stream.committed[0].items()
    assert isinstance(run, RowRun)
    assert [row.before_kind for row in run.rows()] == [kind]
    assert reported(stream.committed[0]) == ["d account -/1"]


def test_rows_of_catalogs_and_sequences_are_passed_over() -> None:
    sequence = Relation(Oid(16500), "public", "s", "S", "p", (), ReplicaIdentity.NOTHING)
    catalog = Relation(Oid(2600), "pg_catalog", "pg_aggregate", "r", "p", (), ReplicaIdentity.NOTHING)
    stream = Wal(sequence, catalog)
    stream.insert(701, 16500, packed_row(1))
    stream.insert(701, 2600, packed_row(1))
    stream.delete(701, 99)  # a mapped catalog during its rewrite: no such file, and no old row
    stream.commit(701)
    assert stream.out == []
    assert isinstance(stream.decoder, Decoder)


# A record that was written below wal_level = logical: without CONTAINS_NEW_TUPLE.
ROW = packed_row(1)
NOT_LOGICAL = {
    "insert": (RM_HEAP, heap.INSERT, pack("<HB", 1, 0), ROW),
    "multi-insert": (RM_HEAP2, heap2.MULTI_INSERT, pack("<BxHH", 0, 1, 1), pack("<H", len(ROW) - 5) + ROW),
    "update": (RM_HEAP, heap.UPDATE, pack("<IHBBIH", 0, 1, 0, 0, 0, 2), ROW),
}


@pytest.mark.parametrize("kind", NOT_LOGICAL)
def test_a_new_row_that_was_not_logged_logically_stops_decoding_at_its_record(kind: str) -> None:
    rmgr, info, main, data = NOT_LOGICAL[kind]
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    with pytest.raises(RowNotLogged, match=r"record at 0/1040 changes public\.account without its new row"):
        stream.record(rmgr, info, main, xid=701, file=locator(ACCOUNT), data=data)
    raws = stream.raws[:1] * 2 + stream.raws[1:]  # twice: by now the file and the transaction are known
    with pytest.raises(RowNotLogged, match="0/1040"):
        list(wal().decoder.decode_block(block_of(raws)))


@pytest.mark.parametrize("kind", NOT_LOGICAL)
def test_rows_that_no_level_logs_logically_are_passed_over(kind: str) -> None:
    rmgr, info, main, data = NOT_LOGICAL[kind]
    catalog = Relation(Oid(2600), "pg_catalog", "pg_aggregate", "r", "p", (), ReplicaIdentity.NOTHING)
    toast = Relation(Oid(TOAST), "pg_toast", "pg_toast_16385", "t", "p", (), ReplicaIdentity.NOTHING)
    transient = replace(relation("pg_temp_16385", 16390), rewrite_of=Oid(ACCOUNT))
    unlogged = replace(relation("scratch", 16391), persistence="u")
    stream = Wal(relation(), catalog, toast, transient, unlogged)
    for oid in (catalog.oid, toast.oid, transient.oid, unlogged.oid, 99):
        stream.record(rmgr, info, main, xid=701, file=locator(oid), data=data)
    stream.commit(701)
    assert stream.out == []
