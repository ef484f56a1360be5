"""Begins and ends of transactions around groups, as the builder of groups divides them."""

from collections.abc import Iterator, Sequence

import pytest

from tests.support.forged.forged_records import Wal, packed_row
from tests.support.forged.groups import DATABASE, position, relation
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.types.codec import Dialect
from tidemark.engine.pool.stop_condition import StopSearch, StopWhen
from tidemark.model.change import ChangeGroup, TransactionBoundary
from tidemark.model.lsn import Lsn
from tidemark.model.position import Pointer, Position
from tidemark.runtime.plugins.transaction_boundaries import TransactionBoundaries

pytestmark = pytest.mark.feature("P11")
ACCOUNT, LEDGER = relation(), relation("ledger", 16390)
BEGIN, END = True, False
START = position(8)


def built(wal: Wal, rows_max: int = 3, after: Position = START) -> list[ChangeGroup]:
    """Return the groups of all transactions, without the rows of the ledger."""
    builder = GroupBuilder(
        {DATABASE: Dialect()},
        counting=True,
        selected=lambda table: table.name == "account",
        rows_max=rows_max,
        after=after,
    )
    transactions = [each for each in wal.out if isinstance(each, CommittedTransaction)]
    groups = [group for transaction in transactions for group in builder.add_transaction(transaction)]
    last = builder.flush()
    return groups if last is None else [*groups, last]


def boundaries(groups: Sequence[ChangeGroup]) -> Iterator[tuple[bool, list[int]]]:
    """Yield each boundary with the xids."""
    known = TransactionBoundaries()
    for group in groups:
        for item in known.around(group):
            if isinstance(item, TransactionBoundary):
                yield item.begin, [end.xid for end in item.transactions]


def rows(wal: Wal, xid: int, count: int, table: int = ACCOUNT.oid) -> None:
    for number in range(count):
        wal.insert(xid, table, packed_row(number))


@pytest.fixture
def wal() -> Wal:
    return Wal(ACCOUNT, LEDGER)


def test_transactions_of_a_group_begin_before_it_and_end_behind_it(wal: Wal) -> None:
    for xid in (701, 702):
        rows(wal, xid, 1)
        wal.commit(xid)
    assert [*boundaries(built(wal))] == [(BEGIN, [701, 702]), (END, [701, 702])]


def test_a_transaction_of_several_groups_begins_and_ends_once(wal: Wal) -> None:
    rows(wal, 701, 7)
    wal.commit(701)
    groups = built(wal)
    assert len(groups) == 3
    assert [*boundaries(groups)] == [(BEGIN, [701]), (END, [701])]
    assert [*boundaries(groups[1:])] == [(END, [701])], "after a restart behind the first group"


def test_a_transaction_without_delivered_changes_has_neither(wal: Wal) -> None:
    rows(wal, 701, 1)
    wal.commit(701)
    rows(wal, 702, 7, LEDGER.oid)
    wal.commit(702)
    assert [*boundaries(built(wal))] == [(BEGIN, [701]), (END, [701])]


def test_a_message_before_unselected_rows_of_its_transaction_has_both(wal: Wal) -> None:
    wal.message(b"mine", b"x", xid=702)
    rows(wal, 702, 7, LEDGER.oid)
    wal.commit(702)
    assert [*boundaries(built(wal))] == [(BEGIN, [702]), (END, [702])]


def test_a_stop_inside_a_transaction_divides_neither_begin_nor_end(wal: Wal) -> None:
    for xid in (701, 702):
        rows(wal, xid, 2)
        wal.commit(xid)
    (group,) = built(wal, rows_max=100)
    part = StopSearch(StopWhen.after_changes(3)).first_part(group, Pointer(START, Lsn(8)), {})
    assert part is not None
    rest = built(wal_again(), rows_max=100, after=part.last.position)
    assert [*boundaries([part])] == [(BEGIN, [701, 702]), (END, [701])]
    assert [*boundaries(rest)] == [(END, [702])]


def wal_again() -> Wal:
    """Return the WAL of the last test, decoded by a second start."""
    wal = Wal(ACCOUNT, LEDGER)
    for xid in (701, 702):
        rows(wal, xid, 2)
        wal.commit(xid)
    return wal
