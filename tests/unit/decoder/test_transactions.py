"""Transactions are complete, in commit order, and without changes that were rolled back."""

import time

import pytest

from tests.support.forged.forged_records import Wal, locator, packed_row, reported
from tests.support.forged.groups import TIMELINE, relation
from tidemark.decode.transactions.heap_changes import UnknownFile
from tidemark.decode.transactions.reorder_buffer.itemlog import ItemLog
from tidemark.decode.transactions.reorder_buffer.transactions import TransactionTable, TransactionTooLarge, xid_precedes
from tidemark.model.change import LogicalMessage, Truncation
from tidemark.model.errors import NodeUnfit
from tidemark.model.lsn import INVALID_XID, FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Position
from tidemark.wal.rmgr import RM_HEAP, RM_XLOG, heap, xlog

ACCOUNT = 16385
PENDING = 5000  # items
SAVEPOINTS = 200
TIMES_AS_LONG = 10  # at most; a scan of all pending items takes a hundred times as long


def wal() -> Wal:
    return Wal(relation(), relation("ledger", 16390))


def test_rows_are_emitted_at_the_commit_in_the_order_of_their_records() -> None:
    stream = wal()
    first = stream.insert(701, ACCOUNT, packed_row(1))
    stream.update(701, ACCOUNT, packed_row(2))
    stream.delete(701, 16390)
    assert stream.out == []
    commit = stream.commit(701)
    (transaction,) = stream.committed
    assert reported(transaction) == ["i account 1/-", "u account 2/-", "d ledger -/-"]
    end = transaction.end
    assert (end.first_lsn, end.commit_lsn, end.item_count, end.timeline) == (first, commit, 3, TIMELINE)


def test_transactions_are_emitted_in_the_order_of_their_commits_not_of_their_first_records() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(702, ACCOUNT, packed_row(2))
    stream.commit(702)
    stream.commit(701)
    assert [transaction.end.xid for transaction in stream.committed] == [702, 701]


def test_an_aborted_transaction_is_never_emitted() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.abort(701)
    stream.commit(701)
    assert stream.out == []


def test_a_transaction_without_items_is_not_reported() -> None:
    stream = wal()
    stream.commit(701)
    assert stream.out == []


def test_a_rolled_back_savepoint_removes_its_rows_and_those_of_released_savepoints_inside_it() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(702, ACCOUNT, packed_row(2), top=701)
    stream.insert(703, ACCOUNT, packed_row(3), top=701)
    stream.insert(702, ACCOUNT, packed_row(4))
    stream.abort(702, 703)
    stream.insert(704, ACCOUNT, packed_row(5), top=701)
    stream.commit(701, 704)
    assert reported(stream.committed[0]) == ["i account 1/-", "i account 5/-"]


def test_a_rolled_back_savepoint_without_rows_is_recognised_by_those_released_inside_it() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(702, ACCOUNT, packed_row(2), top=701)
    stream.insert(704, ACCOUNT, packed_row(4), top=701)
    stream.abort(703, 704)
    stream.abort(702)
    stream.commit(701)
    assert reported(stream.committed[0]) == ["i account 1/-"]


def test_the_cost_of_a_rolled_back_savepoint_depends_on_its_rows_and_not_on_its_transaction() -> None:
    note = LogicalMessage(Position(TimelineId(0), Lsn(0), 0), Lsn(8), Oid(1), Xid(701), True, "p", b"note")

    def cost_ns(pending: int) -> int:
        log = ItemLog()
        for _ in range(pending):
            log.append(0, Xid(701), note)
        begun_ns = time.thread_time_ns()
        for xid in range(702, 702 + SAVEPOINTS):
            log.append(0, Xid(xid), note)
            log.drop({Xid(xid)})
        spent_ns = time.thread_time_ns() - begun_ns
        assert (len(log), log.content_bytes) == (pending, pending * len(note.content))
        return spent_ns

    assert min(cost_ns(PENDING) for _ in range(5)) < TIMES_AS_LONG * min(cost_ns(1) for _ in range(5))


def test_ordinals_count_what_is_left_across_rows_and_other_items() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(702, ACCOUNT, packed_row(2), top=701)
    stream.abort(702)
    stream.message(b"note", b"hello", xid=701)
    stream.truncate(701, ACCOUNT, 16390, flags=2)
    commit = stream.commit(701)
    row, note, *truncated = reported(stream.committed[0])
    assert row == "i account 1/-"
    assert isinstance(note, LogicalMessage)
    assert (note.position.commit_lsn, note.position.ordinal, note.content) == (commit, 1, b"hello")
    assert [(item.position.ordinal, item.relation.name) for item in truncated if isinstance(item, Truncation)] == [
        (2, "account"),
        (3, "ledger"),
    ]


def test_a_message_outside_a_transaction_is_emitted_at_once_at_its_lsn() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    lsn = stream.message(b"note", b"now")
    (message,) = stream.out
    assert isinstance(message, LogicalMessage)
    assert (message.position.commit_lsn, message.position.ordinal, message.transactional) == (lsn, 0, False)
    assert stream.message(b"note", b"elsewhere", database=5)
    assert len(stream.out) == 1


def test_a_prepared_transaction_waits_for_commit_prepared_and_keeps_the_restart_lsn() -> None:
    stream = wal()
    first = stream.insert(701, ACCOUNT, packed_row(1))
    stream.prepare(701, b"gid")
    stream.insert(705, ACCOUNT, packed_row(2))
    stream.commit(705)
    assert stream.committed[0].restart_lsn == stream.decoder.restart_lsn == first
    assert next(iter(stream.decoder.transactions)).gid == "gid"
    stream.commit_prepared(701, b"gid")
    assert (stream.committed[1].end.xid, stream.committed[1].end.gid) == (701, "gid")


def test_the_restart_lsn_is_the_end_of_the_record_where_nothing_is_open() -> None:
    stream = wal()
    first = stream.insert(701, ACCOUNT, packed_row(1))
    stream.commit(701)
    (transaction,) = stream.committed
    assert transaction.restart_lsn == transaction.end.end_lsn == stream.decoder.decoded_lsn
    assert transaction.inner_restart_lsn == first


def test_running_xacts_ends_what_a_crash_left_without_an_end() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(702, ACCOUNT, packed_row(2), top=701)
    stream.insert(710, ACCOUNT, packed_row(3))
    stream.running_xacts(710)
    assert [transaction.xid for transaction in stream.decoder.transactions] == [710]
    assert not stream.decoder.transactions.top_of
    assert stream.catalog.aborted_below == [710]


def test_xids_are_compared_and_widened_across_wraparound() -> None:
    assert xid_precedes(0xFFFFFFF0, 5)
    assert not xid_precedes(5, 0xFFFFFFF0)
    stream = wal()
    stream.decoder.transactions.observe_next_xid((1 << 32) + 10)
    assert stream.decoder.transactions.full_xid(Xid(0xFFFFFFFF)) == 0xFFFFFFFF
    assert stream.decoder.transactions.full_xid(Xid(12)) == (1 << 32) + 12


def test_transactions_from_before_the_first_record_are_named_but_not_kept() -> None:
    stream = wal()
    stream.decoder.transactions.enter_partial(Xid(699), INVALID_XID, Lsn(0x10))
    stream.insert(699, ACCOUNT, packed_row(1))
    assert stream.decoder.restart_lsn == stream.decoder.decoded_lsn
    stream.commit(699)
    assert stream.out == []


def test_an_incomplete_old_transaction_is_recognised_by_64_bits_also_two_billion_transactions_later() -> None:
    old = FullXid(1000)
    table = TransactionTable(old, 1 << 20, None, old)
    assert table.enter(Xid(999), INVALID_XID, Lsn(8)).partial
    assert not table.enter(Xid(1000), INVALID_XID, Lsn(16)).partial
    table.observe_next_xid(3 << 30)
    assert not table.enter(Xid((3 << 30) + 5), INVALID_XID, Lsn(24)).partial
    table.observe_next_xid((1 << 32) + 900)
    assert not table.enter(Xid(901), INVALID_XID, Lsn(32)).partial


def test_the_rollback_of_a_prepared_transaction_removes_savepoints_from_the_middle() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(702, ACCOUNT, packed_row(2), top=701)
    stream.insert(701, ACCOUNT, packed_row(3))
    stream.prepare(701, b"gid")
    stream.abort(701, 702)
    assert stream.out == []
    assert not list(stream.decoder.transactions)


def test_a_row_in_a_file_that_no_relation_has_stops_decoding() -> None:
    stream = wal()
    with pytest.raises(UnknownFile, match="0/1000 changes a row in file 1663/16384/99"):
        stream.insert(701, 99, packed_row(1))


def test_another_database_leaves_no_trace() -> None:
    stream = wal()
    file = locator(ACCOUNT, database=Oid(5))
    stream.record(RM_HEAP, heap.INSERT, b"\x01\x00\x08", xid=701, file=file, data=packed_row(1))
    stream.commit(701)
    assert stream.out == []


def test_without_a_spill_folder_the_error_names_the_largest_transaction() -> None:
    stream = Wal(relation(), memory_bytes=1000)
    row = packed_row(1, bytes(500))
    stream.insert(701, ACCOUNT, row)
    with pytest.raises(TransactionTooLarge, match="701, began at 0/1000"):
        stream.insert(701, ACCOUNT, row)


def test_wal_that_lacks_whole_tuples_stops_decoding() -> None:
    stream = wal()
    with pytest.raises(NodeUnfit, match="full_page_writes was turned off at 0/1000"):
        stream.record(RM_XLOG, xlog.FPW_CHANGE, b"\0")


def test_a_subtransaction_that_the_commit_record_does_not_name_is_not_reported() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(702, ACCOUNT, packed_row(2), top=701)
    stream.insert(701, ACCOUNT, packed_row(3))
    stream.commit(701)
    assert reported(stream.committed[0]) == ["i account 1/-", "i account 3/-"]
