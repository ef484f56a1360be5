"""Small transactions with savepoints, rolled back or released, stay together: savepoints take no extra call."""

from itertools import pairwise

import pytest

from tests.support.forged.forged_records import Wal, block_of, packed_row, reported
from tests.unit.decoder.test_group_builder import DIALECTS
from tests.unit.decoder.test_small_transactions import (
    ACCOUNT,
    CALLS_PER_TRANSACTION,
    LEDGER,
    by_blocks,
    calls_of,
    content,
    groups,
    new_wal,
)
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.pending_children import CHILDREN_MAX
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun, singly
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.model.lsn import Xid

XIDS = 4  # of a transaction with its subtransactions


def tops(count: int) -> range:
    return range(801, 801 + XIDS * count, XIDS)


def savers(count: int, sessions: int = 3) -> Wal:
    """Return overlapping transactions that roll one savepoint back and commit two, some with a write before them."""
    stream = new_wal()
    for number, xid in enumerate(tops(count)):
        if number % 2:
            stream.insert(xid, ACCOUNT, packed_row(number))
        stream.insert(xid + 1, ACCOUNT, packed_row(number), top=xid)
        stream.update(xid + 2, LEDGER, packed_row(number), top=xid)
        stream.update(xid + 2, ACCOUNT, packed_row(number))
        stream.abort(xid + 2)
        stream.update(xid + 3, LEDGER, packed_row(number), top=xid)
        if number >= sessions:
            ended = xid - sessions * XIDS
            stream.delete(ended + 1, LEDGER)
            stream.commit(ended, ended + 1, ended + 3)
    return stream


def transactions(stream: Wal, size: int = 50) -> list[CommittedTransaction]:
    return [found for found in singly(by_blocks(stream, size)) if isinstance(found, CommittedTransaction)]


def test_transactions_with_savepoints_are_emitted_together() -> None:
    found = list(by_blocks(savers(100)))
    runs = [len(each) for each in found if isinstance(each, CommittedRun)]
    assert sum(runs) > 90
    assert len(runs) < 25


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000])
def test_rolled_back_changes_are_removed_and_released_ones_are_kept(size: int) -> None:
    stream = savers(60)
    found = transactions(stream, size)
    assert [each.end for each in found] == [each.end for each in stream.committed]
    assert [reported(each) for each in found] == [reported(each) for each in stream.committed]
    assert [each.end.item_count for each in found] == [3, 4] * 28 + [3]
    expected = content(groups(stream, GroupBuilder(DIALECTS, rows_max=20), 1))
    assert content(groups(stream, GroupBuilder(DIALECTS, rows_max=20), size)) == expected


def test_one_more_transaction_with_savepoints_needs_no_further_call() -> None:
    few, many = (calls_of(savers(count)) for count in (1000, 3000))
    assert many - few < CALLS_PER_TRANSACTION * 2000, (few, many)


def test_a_lookup_of_a_pending_subtransaction_finds_the_whole_transaction() -> None:
    stream = savers(20, sessions=20)
    decoder = new_wal().decoder
    list(decoder.decode_runs(block_of(stream.raws)))
    assert decoder.transactions.open_count == 20
    for xid in tops(20):
        decoder.transactions.enter(Xid(xid + 3), Xid(0), decoder.decoded_lsn)
        known = decoder.transactions.find(Xid(xid))
        assert known is not None
        assert (known.children, known.rows.surviving_count) == ({xid + 1, xid + 3}, 2 + xid // XIDS % 2)
        assert decoder.transactions.top(Xid(xid + 1)) == xid
    assert decoder.transactions.open_count == 20


def test_a_transaction_that_rolled_back_all_rows_is_not_emitted() -> None:
    stream = savers(10)
    for xid in (901, 905):
        stream.insert(xid + 1, ACCOUNT, packed_row(1), top=xid)
        stream.abort(xid + 1)
    stream.commit(901)
    stream.abort(905)
    stream.insert(909, ACCOUNT, packed_row(2))
    stream.commit(909)
    assert [each.end.xid for each in transactions(stream)] == [*tops(7), 909]


@pytest.mark.parametrize("named", [(), (902,), (902, 903, 904)])
def test_subtransactions_that_a_commit_does_not_name_are_left_out(named: tuple[int, ...]) -> None:
    stream = savers(10)
    stream.insert(901, ACCOUNT, packed_row(0))
    stream.insert(902, ACCOUNT, packed_row(1), top=901)
    stream.insert(903, ACCOUNT, packed_row(2), top=901)
    stream.commit(901, *named)
    (*_, last) = transactions(stream)
    assert reported(last) == [f"i account {number}/-" for number in range(3) if number == 0 or 901 + number in named]


def test_more_subtransactions_than_can_be_pending_are_all_emitted() -> None:
    stream = savers(10)
    count = CHILDREN_MAX + 10
    subs = range(10_001, 10_001 + count)
    for top in (9001, 9002):
        stream.insert(top, ACCOUNT, packed_row(0))
    for sub in subs:
        stream.insert(sub, LEDGER, packed_row(sub), top=9001 + sub % 2)
    for top in (9001, 9002):
        stream.commit(top, *(sub for sub in subs if 9001 + sub % 2 == top))
    *_, first, second = transactions(stream, 1000)
    assert [each.end.item_count for each in (first, second)] == [1 + count // 2] * 2


def test_a_savepoint_that_was_rolled_back_unwritten_leaves_nothing_open() -> None:
    stream = savers(10)
    stream.abort(902, top=901)
    stream.insert(901, ACCOUNT, packed_row(1))
    stream.commit(901)
    decoder = new_wal().decoder
    found = [each for each in decoder.decode_block(block_of(stream.raws)) if isinstance(each, CommittedTransaction)]
    assert [each.end for each in found] == [each.end for each in stream.committed]
    assert decoder.transactions.open_count == 3  # of the savers
    assert decoder.restart_lsn == min(known.first_lsn for known in decoder.transactions)


@pytest.mark.parametrize("pause", [1, 2], ids=["with the rollback", "behind it"])
def test_a_transaction_whose_rows_were_all_rolled_back_still_stays_pending(pause: int) -> None:
    stream = new_wal()
    stream.insert(799, ACCOUNT, packed_row(0))
    stream.insert(799, LEDGER, packed_row(0))
    stream.commit(799)
    cuts = [0, len(stream.raws)]
    stream.insert(802, ACCOUNT, packed_row(1), top=801)
    cuts += [len(stream.raws)] * (pause - 1)
    stream.abort(802)
    cuts.append(len(stream.raws))
    stream.abort(805)  # a call without a row: nothing is pending then
    cuts.append(len(stream.raws))
    stream.insert(801, LEDGER, packed_row(2))
    cuts.append(len(stream.raws))
    stream.insert(803, ACCOUNT, packed_row(3))
    stream.commit(803)
    cuts.append(len(stream.raws))
    stream.insert(801, LEDGER, packed_row(4))
    stream.commit(801)
    cuts.append(len(stream.raws))
    decoder = new_wal().decoder
    found: list[CommittedTransaction] = []
    for begin, end in pairwise(cuts):
        for decoded in decoder.decode_block(block_of(stream.raws[begin:end])):
            assert isinstance(decoded, CommittedTransaction)
            found.append(decoded)
    assert [reported(transaction) for transaction in found] == [
        reported(transaction) for transaction in stream.committed
    ]
    assert found[1].restart_lsn <= found[2].end.first_lsn
