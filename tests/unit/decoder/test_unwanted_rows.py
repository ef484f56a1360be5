"""Rows of tables that nobody wants: counted where they stand, so that nothing else moves, and their tuples not kept."""

from collections.abc import Callable

import pytest

from tests.support.forged_records import Wal, block_of, packed_row
from tests.unit.decoder.test_grouping import DIALECTS
from tests.unit.decoder.test_small_savepoints import savers
from tests.unit.decoder.test_small_transactions import ACCOUNT, LEDGER, gathered, new_wal, tellers
from tidemark.decode.decoder import Decoder
from tidemark.decode.grouping import Grouper
from tidemark.decode.row_entries import ENTRY_BYTES
from tidemark.model.change import ChangeBatch, ChangeGroup
from tidemark.model.lsn import Xid
from tidemark.model.relation import Relation
from tidemark.wal.rmgr import heap

NOTE = b"x" * 500


def is_ledger(found: Relation) -> bool:
    return found.name == "ledger"


def large(rows: int = 100) -> Wal:
    """A transaction that changes one table in every way there is, and inserts into another."""
    stream = new_wal()
    stream.insert(799, ACCOUNT, packed_row(0))
    stream.insert(799, LEDGER, packed_row(0))
    stream.commit(799)
    for number in range(rows):
        row = packed_row(number, NOTE)
        stream.insert(801, ACCOUNT, row)
        stream.multi_insert(801, ACCOUNT, [row, row])
        stream.update(801, ACCOUNT, row, old=row, old_flag=heap.UPDATE_CONTAINS_OLD_TUPLE)
        stream.insert(801, LEDGER, packed_row(number))
        stream.delete(801, ACCOUNT, old=row, flags=heap.DELETE_CONTAINS_OLD_TUPLE)
    return stream


def committed() -> Wal:
    stream = large()
    stream.commit(801)
    return stream


def groups(decoder: Decoder, grouper: Grouper, stream: Wal, size: int) -> list[ChangeGroup]:
    made: list[ChangeGroup] = []
    for begin in range(0, len(stream.raws), size):
        for found in decoder.decode_runs(block_of(stream.raws[begin : begin + size])):
            made += gathered(grouper, found)
    last = grouper.flush()
    return made if last is None else [*made, last]


def content(made: list[ChangeGroup]) -> list[object]:
    return [(group.first, group.last, group.row_count, list(group.transactions), rows(group)) for group in made]


def rows(group: ChangeGroup) -> list[object]:
    return [item.rows.to_pylist() if isinstance(item, ChangeBatch) else item for item in group.items]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("made", [tellers, savers], ids=["small", "savepoints"])
def test_what_is_wanted_stays_as_it_is_and_where_it_is(made: Callable[[int], Wal], size: int) -> None:
    stream = made(60)
    decoder, grouper = new_wal().decoder, Grouper(DIALECTS, selected=is_ledger, rows_max=20)
    decoder.want_only(grouper.wants)
    everything = groups(new_wal().decoder, Grouper(DIALECTS, selected=is_ledger, rows_max=20), stream, size)
    assert content(groups(decoder, grouper, stream, size)) == content(everything)
    assert sum(len(rows(group)) for group in everything) > 0


@pytest.mark.parametrize("size", [1, 50])
def test_rows_of_a_large_transaction_keep_their_ordinals(size: int) -> None:
    stream = committed()
    decoder, grouper = new_wal().decoder, Grouper(DIALECTS, selected=is_ledger)
    decoder.want_only(grouper.wants)
    everything = groups(new_wal().decoder, Grouper(DIALECTS, selected=is_ledger), stream, size)
    assert content(groups(decoder, grouper, stream, size)) == content(everything)


@pytest.mark.parametrize("size", [1, 50, 1000])
def test_a_row_that_nobody_wants_takes_no_more_than_its_entry(size: int) -> None:
    stream = large()
    decoder = new_wal().decoder
    decoder.want_only(lambda _: False)
    for begin in range(0, len(stream.raws), size):
        list(decoder.decode_runs(block_of(stream.raws[begin : begin + size])))
    transaction = decoder.transactions.find(Xid(801))
    assert transaction is not None
    assert transaction.rows.row_count == 100 * 6
    assert transaction.rows.byte_count == 100 * 6 * ENTRY_BYTES
