"""Rows of unselected tables: counted in place, so that no other ordinal changes, and their tuples not kept."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.forged_records import Wal, block_of, packed_row
from tests.support.forged.forged_sessions import STEPS, played
from tests.support.forged.forged_sessions import new_wal as forged
from tests.support.forged.groups import relation
from tests.support.forged.memory_spill import MemorySpill
from tests.unit.decoder.test_group_builder import DIALECTS
from tests.unit.decoder.test_small_savepoints import savers
from tests.unit.decoder.test_small_transactions import ACCOUNT, LEDGER, collected, new_wal, tellers
from tidemark.decode.arrow.batch_costs import NO_END
from tidemark.decode.datum.row_entries import ENTRY_BYTES
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.groups.group_rows import Arenas, GroupRows
from tidemark.decode.transactions.decoder import Decoder
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.model.change import ChangeBatch, ChangeGroup, LogicalMessage
from tidemark.model.lsn import Xid
from tidemark.model.position import Position
from tidemark.model.relation import Relation
from tidemark.wal.rmgr import heap

NOTE = b"x" * 500


def is_ledger(found: Relation) -> bool:
    return found.name == "ledger"


def large(rows: int = 100) -> Wal:
    """Return a transaction that changes one table in every way, and inserts into another."""
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


def groups(decoder: Decoder, builder: GroupBuilder, stream: Wal, size: int) -> list[ChangeGroup]:
    made: list[ChangeGroup] = []
    for begin in range(0, len(stream.raws), size):
        for found in decoder.decode_runs(block_of(stream.raws[begin : begin + size])):
            if isinstance(found, LogicalMessage):
                made += builder.add_message(found, decoder.restart_lsn)
            else:
                made += collected(builder, found)
    last = builder.flush()
    return made if last is None else [*made, last]


def content(made: list[ChangeGroup]) -> list[object]:
    return [(group.first, group.last, group.row_count, list(group.transactions), rows(group)) for group in made]


def rows(group: ChangeGroup) -> list[object]:
    return [item.rows.to_pylist() if isinstance(item, ChangeBatch) else item for item in group.items]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("made", [tellers, savers], ids=["small", "savepoints"])
def test_wanted_rows_and_their_ordinals_do_not_change(made: Callable[[int], Wal], size: int) -> None:
    stream = made(60)
    decoder, builder = new_wal().decoder, GroupBuilder(DIALECTS, selected=is_ledger, rows_max=20)
    decoder.select_only(builder.selects)
    everything = groups(new_wal().decoder, GroupBuilder(DIALECTS, selected=is_ledger, rows_max=20), stream, size)
    assert content(groups(decoder, builder, stream, size)) == content(everything)
    assert sum(len(rows(group)) for group in everything) > 0


@pytest.mark.parametrize("size", [1, 50])
def test_rows_of_a_large_transaction_keep_their_ordinals(size: int) -> None:
    stream = committed()
    decoder, builder = new_wal().decoder, GroupBuilder(DIALECTS, selected=is_ledger)
    decoder.select_only(builder.selects)
    everything = groups(new_wal().decoder, GroupBuilder(DIALECTS, selected=is_ledger), stream, size)
    assert content(groups(decoder, builder, stream, size)) == content(everything)


@pytest.mark.parametrize("size", [1, 50, 1000])
def test_an_unselected_row_needs_only_its_entry(size: int) -> None:
    stream = large()
    decoder = new_wal().decoder
    decoder.select_only(lambda _: False)
    for begin in range(0, len(stream.raws), size):
        list(decoder.decode_runs(block_of(stream.raws[begin : begin + size])))
    transaction = decoder.transactions.find(Xid(801))
    assert transaction is not None
    assert transaction.rows.surviving_count == 100 * 6
    assert transaction.rows.byte_count == transaction.rows.entry_count * ENTRY_BYTES
    blocks = -(-len(stream.raws) // size)
    assert transaction.rows.entry_count <= min(blocks + 6, 100 * 6)  # those before their file is known are separate


@given(STEPS, st.sets(st.sampled_from(["account", "ledger"])), st.integers(1, 40), st.integers(1, 9))
@settings(max_examples=examples(150))
def test_rows_beside_unselected_ones_are_emitted_unchanged(
    steps: list[tuple[str, int]], names: set[str], size: int, rows_max: int
) -> None:
    stream = played(steps)

    def selected(found: Relation) -> bool:
        return found.name in names

    decoder, builder = forged(stream).decoder, GroupBuilder(DIALECTS, selected=selected, rows_max=rows_max)
    decoder.select_only(builder.selects)
    everything = groups(forged(stream).decoder, GroupBuilder(DIALECTS, selected=selected), stream, size)
    reported = groups(decoder, builder, stream, size)
    assert flat(reported) == flat(everything)
    assert [end for group in reported for end in group.transactions] == [
        end for group in everything for end in group.transactions
    ]


def flat(made: list[ChangeGroup]) -> list[str]:
    """Return all items of groups, whatever their boundaries."""
    items = (item for group in made for item in rows(group))
    return sorted(str(reported) for item in items for reported in (item if isinstance(item, list) else [item]))


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_a_restart_among_unselected_rows_emits_the_rest(size: int) -> None:
    stream = committed()
    (end,) = (one for one in stream.committed if one.end.xid == 801)
    for ordinal in (0, 3, 4, 5, 297, 298, 299, 300, 597, 598, 599):
        after = Position(end.end.timeline, end.end.commit_lsn, ordinal)
        decoder, builder = new_wal().decoder, GroupBuilder(DIALECTS, selected=is_ledger, after=after)
        decoder.select_only(builder.selects)
        made = groups(decoder, builder, stream, size)
        batches = [item for group in made for item in group.items if isinstance(item, ChangeBatch)]
        found = [number for batch in batches for number in batch.rows.column("_ordinal").to_pylist()]
        assert found == [number for number in range(4, 600, 6) if number > ordinal]
        assert all(group.first > after for group in made)


def test_unselected_rows_of_small_transactions_are_counted_and_not_collected() -> None:
    stream = tellers(60)
    decoder, arenas = new_wal().decoder, Arenas()
    decoder.select_only(lambda _: False)
    found = list(decoder.decode_runs(block_of(stream.raws)))
    runs = [run for run in found if isinstance(run, CommittedRun)]
    assert sum(map(len, runs)) > 50
    for run in runs:
        collected_rows = GroupRows(run.versions, arenas, uncounted_bytes=NO_END)
        collected_rows.append_transactions(run, 0, len(run))
        assert (len(collected_rows), collected_rows.byte_count) == (run.row_ends[-1], run.row_ends[-1] * ENTRY_BYTES)
        assert (arenas.entries.size, arenas.tuples.size, arenas.runs.count) == (0, 0, 0)


def test_the_count_of_unselected_rows_survives_a_spill() -> None:
    spill = MemorySpill()
    stream = new_wal()
    for number in range(300):
        stream.multi_insert(801, ACCOUNT, [packed_row(number)] * 3)
        stream.insert(801, LEDGER, packed_row(number))
    stream.commit(801)
    wal = Wal(relation(), relation("ledger", LEDGER), memory_bytes=1500, spill=spill)
    wal.decoder.select_only(is_ledger)
    everything = groups(new_wal().decoder, GroupBuilder(DIALECTS, selected=is_ledger), stream, 7)
    reported = groups(wal.decoder, GroupBuilder(DIALECTS, selected=is_ledger), stream, 7)
    assert spill.writes
    assert flat(reported) == flat(everything)
