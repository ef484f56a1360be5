"""Transactions whose beginning is not read: omitted if they end before the wanted range, otherwise an error.

Two decoders read the same records: one needs none of them, the other all.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.forged.forged_records import Wal, packed_chunk, packed_row, reported
from tests.support.forged.groups import relation
from tidemark.decode.transactions.heap_changes import UnknownFile
from tidemark.decode.transactions.reorder_buffer.transactions import UnseenStart
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import INVALID_LSN, INVALID_XID, Lsn, Xid
from tidemark.wal.record import BadRecord

ACCOUNT = 16385
TOAST = 16399
UNSEEN = 16400  # a file that was created before the first record
LATER = Lsn(1 << 20)


def stream(from_lsn: Lsn = LATER) -> Wal:
    return Wal(relation(), replace(relation("pg_toast_1", TOAST), kind="t"), from_lsn=from_lsn)


def unknown_file(wal: Wal) -> None:
    wal.insert(701, UNSEEN, packed_row(1))
    wal.insert(701, ACCOUNT, packed_row(2))
    wal.commit(701)


def toast_from_mid_air(wal: Wal) -> None:
    wal.insert(701, TOAST, packed_chunk(5, 3, b"x"))
    wal.insert(701, ACCOUNT, packed_row(2))
    wal.commit(701)


def truncate_of_the_unknown(wal: Wal) -> None:
    wal.truncate(701, UNSEEN)
    wal.commit(701)


def savepoint_under_its_own_name(wal: Wal) -> None:
    wal.insert(702, ACCOUNT, packed_row(1))
    wal.insert(701, ACCOUNT, packed_row(2))
    wal.commit(701, 702)


def savepoints_alone(wal: Wal) -> None:
    wal.insert(702, ACCOUNT, packed_row(1))
    wal.insert(703, ACCOUNT, packed_row(2))
    wal.commit(701, 702, 703)


def savepoint_named_on_the_way(wal: Wal) -> None:
    wal.insert(701, ACCOUNT, packed_row(1))
    wal.insert(702, ACCOUNT, packed_row(2))
    wal.assign(701, 702)
    wal.insert(702, ACCOUNT, packed_row(3))
    wal.commit(701, 702)


def known_to_be_open(wal: Wal) -> None:
    wal.decoder.transactions.enter_unseen(Xid(701), INVALID_XID, Lsn(8))
    wal.decoder.transactions.enter_unseen(Xid(702), Xid(701), Lsn(8))
    wal.insert(702, UNSEEN, packed_row(1))
    wal.insert(701, ACCOUNT, packed_row(2))
    wal.commit(701, 702)


CASES: dict[Callable[[Wal], None], type[CorruptWal]] = {
    unknown_file: UnknownFile,
    toast_from_mid_air: BadRecord,
    truncate_of_the_unknown: UnknownFile,
    savepoint_under_its_own_name: UnseenStart,
    savepoints_alone: UnseenStart,
    savepoint_named_on_the_way: UnseenStart,
    known_to_be_open: UnseenStart,
}
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@each_case
def test_transactions_that_end_before_the_wanted_range_are_omitted_silently(case: Callable[[Wal], None]) -> None:
    wal = stream()
    case(wal)
    assert wal.out == []
    assert not list(wal.decoder.transactions)
    assert not wal.decoder.transactions.top_of


@each_case
def test_wanted_wal_that_cannot_be_read_is_an_error(case: Callable[[Wal], None]) -> None:
    with pytest.raises(CASES[case]):
        case(stream(INVALID_LSN))


@each_case
def test_a_transaction_in_doubt_at_the_start_of_the_wanted_range_is_an_error_when_it_commits(
    case: Callable[[Wal], None],
) -> None:
    rehearsal = stream()
    case(rehearsal)
    commit_lsn, _, _ = rehearsal.raws[-1]
    wal = stream(commit_lsn)
    with pytest.raises(CorruptWal):
        case(wal)
    assert wal.out == []


def test_nothing_of_a_transaction_in_doubt_is_kept() -> None:
    wal = stream()
    for number in range(10):
        wal.insert(701, ACCOUNT, packed_row(number))
    wal.insert(701, UNSEEN, packed_row(1))
    wal.insert(701, ACCOUNT, packed_row(1))
    wal.message(b"note", b"x" * 1000, xid=701)
    (transaction,) = wal.decoder.transactions
    assert (transaction.byte_count, transaction.is_kept) == (0, False)


def test_the_abort_of_an_unassigned_subtransaction_removes_nothing_from_its_transaction() -> None:
    wal = stream(INVALID_LSN)
    wal.insert(702, ACCOUNT, packed_row(1))
    wal.insert(703, ACCOUNT, packed_row(1), top=702)
    wal.abort(702, 703)
    wal.insert(701, ACCOUNT, packed_row(2))
    wal.commit(701)
    assert reported(wal.committed[0]) == ["i account 2/-"]


def test_an_unassigned_subtransaction_below_an_aborted_savepoint_delays_nothing() -> None:
    wal = stream()
    wal.insert(703, ACCOUNT, packed_row(1))
    wal.insert(702, ACCOUNT, packed_row(1), top=701)
    wal.abort(702, 703)
    assert [transaction.xid for transaction in wal.decoder.transactions] == [701]


def test_other_transactions_are_emitted_beside_those_in_doubt() -> None:
    wal = stream()
    wal.insert(701, UNSEEN, packed_row(1))
    wal.insert(705, ACCOUNT, packed_row(5))
    wal.commit(701)
    wal.commit(705)
    assert [reported(transaction) for transaction in wal.committed] == [["i account 5/-"]]
