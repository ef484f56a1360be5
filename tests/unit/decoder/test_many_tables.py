"""Rows of many tables: memory other than the catalog's is limited by counted bytes, and the output does not change."""

from collections.abc import Sequence
from dataclasses import astuple, replace

import pytest

from tests.support.forged.forged_records import Wal, packed_row
from tests.support.forged.groups import relation
from tests.unit.decoder.test_group_builder import DIALECTS
from tests.unit.decoder.test_group_builder_restart import positions
from tests.unit.decoder.test_small_transactions import by_blocks, collected, groups, tellers
from tidemark.decode.arrow import batch_shapes
from tidemark.decode.arrow.batch_costs import batch_bytes
from tidemark.decode.arrow.batches import BatchBuilder, RowSpans
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.decoder import DecodedRun
from tidemark.decode.transactions.reorder_buffer.committed_run import singly
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.types.codec import Dialect
from tidemark.model.change import ChangeBatch, ChangeGroup, RowsMessage
from tidemark.model.lsn import Oid
from tidemark.model.relation import Column, Relation

TABLES = [relation(f"t_{number}", 16400 + number) for number in range(60)]
OF_ONE = batch_bytes(TABLES[0])
OBJECT_BYTES = 300  # around a message


def one_row_each(*, at_once: bool) -> Wal:
    stream = Wal(*TABLES)
    for number, table in enumerate(TABLES):
        stream.insert(801 if at_once else 801 + number, table.oid, packed_row(number))
        if not at_once:
            stream.commit(801 + number)
    if at_once:
        stream.commit(801)
    return stream


def message_bytes(group: ChangeGroup) -> list[int]:
    given = [item.given for item in group.items if isinstance(item, ChangeBatch)]
    return [len(rows.message) for rows in given if isinstance(rows, RowsMessage)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_group_is_full_when_the_fixed_size_of_its_batches_reaches_the_bound(*, at_once: bool) -> None:
    stream = one_row_each(at_once=at_once)
    unbounded = groups(stream, GroupBuilder(DIALECTS), 50, *TABLES)
    found = groups(stream, GroupBuilder(DIALECTS, batch_bytes_max=10 * OF_ONE), 50, *TABLES)
    assert [len(message_bytes(group)) for group in unbounded] == [60]
    assert max(len(message_bytes(group)) for group in found) <= 11  # few tables are not counted
    assert len(found) == 6
    assert positions(found) == positions(unbounded)


@pytest.mark.parametrize("bytes_max", [1 << 20, 2 * OF_ONE, 1000, 300])
def test_a_group_that_is_full_where_versions_are_numbered_again_ends_before_the_next_row(bytes_max: int) -> None:
    def twice() -> list[DecodedRun]:
        return [found for _ in range(2) for found in by_blocks(tellers(30))]  # each time with different numbers

    runs, one_by_one = (GroupBuilder(DIALECTS, bytes_max=bytes_max) for _ in range(2))
    made = [group for found in twice() for group in collected(runs, found)]
    expected = [group for found in twice() for one in _singly(found) for group in one_by_one.add_transaction(one)]
    assert [group.last for group in made] == [group.last for group in expected]
    assert [group.row_count for group in made] == [group.row_count for group in expected]
    assert all(group.last.position.ordinal >= 0 for group in made)


def test_a_table_that_a_group_has_rows_of_costs_nothing_more() -> None:
    stream = Wal(*TABLES)
    for number in range(200):
        stream.insert(801, TABLES[number % 9].oid, packed_row(number))
    stream.commit(801)
    (group,) = groups(stream, GroupBuilder(DIALECTS, batch_bytes_max=10 * OF_ONE), 50, *TABLES)
    assert len(message_bytes(group)) == 9


@pytest.mark.parametrize("columns", [0, 1, 2, 20, 100])
def test_a_batch_is_estimated_by_the_size_of_a_batch_of_one_row(columns: int) -> None:
    made = _wide(columns)
    (batch,) = BatchBuilder(Oid(1), made).build(_rows(columns))
    assert isinstance(batch.given, RowsMessage)
    taken = len(batch.given.message) + OBJECT_BYTES
    assert taken * 0.7 < batch_bytes(made) < taken * 1.5


def test_a_message_states_how_many_rows_it_has_and_where_they_begin_and_end() -> None:
    stream = Wal(*TABLES)
    for number in range(20):
        stream.insert(801, TABLES[number % 3].oid, packed_row(number))
    stream.commit(801)
    (group,) = groups(stream, GroupBuilder(DIALECTS), 50, *TABLES)
    given = [item.given for item in group.items if isinstance(item, ChangeBatch)]
    assert len(given) == 3
    for rows in given:
        assert isinstance(rows, RowsMessage)
        unpacked = rows.unpacked()
        positions = [unpacked.column(name).to_pylist() for name in ("_tli", "_commit_lsn", "_ordinal")]
        ends = [[column[row] for column in positions] for row in (0, -1)]
        assert [[*astuple(rows.first)], [*astuple(rows.last)], rows.row_count] == [*ends, unpacked.num_rows]


def test_a_group_counts_the_bytes_of_its_batches() -> None:
    (group,) = groups(one_row_each(at_once=True), GroupBuilder(DIALECTS), 50, *TABLES)
    assert group.byte_count == pytest.approx(sum(message_bytes(group)) + OBJECT_BYTES * 60, rel=0.3)


def test_a_shape_that_was_forgotten_is_recreated_and_its_batches_are_the_same() -> None:
    before = _message(_wide(3))
    for number in range(batch_shapes.SHAPES_KEPT):
        batch_shapes.batch_shape(_renamed(number), Dialect())
    after = _message(_wide(3))
    assert after.schema is not before.schema  # so it was evicted
    assert (after.schema, bytes(after.message)) == (before.schema, bytes(before.message))
    assert after.unpacked().equals(before.unpacked())


def test_tables_with_equal_columns_share_their_shape() -> None:
    assert _message(relation()).schema is _message(relation("another", 16391)).schema


def test_a_small_message_keeps_only_its_bytes_in_memory() -> None:
    assert isinstance(_message(_wide(20)).message, bytes)


def _singly(found: DecodedRun) -> list[CommittedTransaction]:
    return [one for one in singly([found]) if isinstance(one, CommittedTransaction)]


def _message(of: Relation) -> RowsMessage:
    (batch,) = BatchBuilder(Oid(1), of).build(_rows(len(of.columns)))
    assert isinstance(batch.given, RowsMessage)
    return batch.given


def _wide(columns: int) -> Relation:
    model = relation().columns
    return replace(relation(), columns=_numbered([model[number % 2] for number in range(columns)], "c"))


def _renamed(number: int) -> Relation:
    return replace(relation(), columns=_numbered(relation().columns, f"other_{number}"))


def _numbered(columns: Sequence[Column], name: str) -> tuple[Column, ...]:
    return tuple(replace(column, number=at, name=f"{name}_{at}") for at, column in enumerate(columns, 1))


def _rows(columns: int) -> RowSpans:
    """Return a row all of whose columns are NULL."""
    bits = bytes(columns + 7 >> 3)
    hoff = 23 + len(bits) + 7 & ~7
    packed = columns.to_bytes(2, "little") + b"\x01\x00" + bytes([hoff]) + bits.ljust(hoff - 23, b"\0")
    rows = RowSpans(bytearray(packed), 1)
    rows.op[0] = ord("i")
    rows.new_length[0] = len(packed)
    rows.old_at[0] = rows.old_length[0] = -1
    return rows
