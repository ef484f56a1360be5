"""Small transactions that are emitted together keep the facts of each change, and are selected as one by one."""

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.support.forged.forged_records import Wal, packed_row
from tests.support.forged.groups import relation
from tests.unit.decoder.test_group_builder import DIALECTS
from tests.unit.decoder.test_group_builder_restart import positions
from tests.unit.decoder.test_small_transactions import BLOCK_RECORDS, by_blocks, groups, tellers
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.model.change import TABLE_ORDINAL, ChangeBatch, ChangeGroup
from tidemark.model.lsn import Oid
from tidemark.model.origins import ExcludedOrigins
from tidemark.model.relation import Relation

ACCOUNT, LEDGER = 16385, 16390
ORIGINS = (0, 517, 65535)


def two_tables() -> Wal:
    return Wal(relation(), relation("ledger", LEDGER))


def replicated(count: int = 60) -> Wal:
    """Return transactions of two rows each, the second with an origin, which their commits do not have."""
    stream = two_tables()
    for number in range(count):
        stream.insert(801 + number, ACCOUNT, packed_row(number))
        stream.insert(801 + number, LEDGER, packed_row(number), origin=ORIGINS[number % 3])
        stream.commit(801 + number)
    return stream


def column(made: list[ChangeGroup], name: str, table: str) -> list[object]:
    batches = [item for group in made for item in group.items if isinstance(item, ChangeBatch)]
    return [value for each in batches if each.relation.name == table for value in each.rows.column(name).to_pylist()]


def test_each_row_has_its_own_origin() -> None:
    made = groups(replicated(), GroupBuilder(DIALECTS))
    assert column(made, "_origin", "ledger") == list(ORIGINS) * 20
    assert set(column(made, "_origin", "account")) == {0}


@pytest.mark.parametrize(
    ("excluded", "kept"),
    [
        (ExcludedOrigins(frozenset({517})), [0, 65535] * 20),
        (ExcludedOrigins(frozenset({65535, 1})), [0, 517] * 20),
        (ExcludedOrigins(every=True), [0] * 20),
    ],
)
def test_rows_are_left_out_by_their_origin(excluded: ExcludedOrigins, kept: list[int]) -> None:
    made = groups(replicated(), GroupBuilder(DIALECTS, excluded=excluded))
    assert column(made, "_origin", "ledger") == kept
    assert len(column(made, "_origin", "account")) == 60


def test_transactions_are_counted_as_one_by_one() -> None:
    made = groups(replicated(), GroupBuilder(DIALECTS, counting=True, rows_max=7))
    ends = [end for group in made for end in group.transactions]
    assert [{table.name: table.count for table in end.tables or ()} for end in ends] == [
        {"account": 1, "ledger": 1}
    ] * 60
    assert sum(len(group.begun) for group in made) == 60
    assert set(column(made, TABLE_ORDINAL, "ledger")) == {0}


@pytest.mark.feature("P03")
def test_changes_after_any_position_are_emitted_exactly_once_in_runs() -> None:
    stream = tellers(40)
    everything = positions(groups(stream, GroupBuilder(DIALECTS)))
    assert len(everything) > 100
    for index, position in enumerate(everything):
        rest = groups(stream, GroupBuilder(DIALECTS, after=position))
        assert positions(rest) == everything[index + 1 :]


def partitioned() -> tuple[Relation, Relation]:
    """Two partitions of one table."""
    root = replace(relation("sale", 16400), kind="p")
    first, second = relation(), relation("ledger", LEDGER)
    return replace(first, ancestors=(root,)), replace(second, ancestors=(root,))


def test_rows_of_partitions_have_the_name_of_the_partitioned_table_and_are_in_stream_order() -> None:
    stream = Wal(*partitioned())
    for number in range(60):
        stream.insert(801 + number, (ACCOUNT, LEDGER)[number // 2 % 2], packed_row(number))
        stream.commit(801 + number)
    found = list(by_blocks(stream, BLOCK_RECORDS, *partitioned()))
    assert sum(len(run) for run in found if isinstance(run, CommittedRun)) > 50
    by_root = GroupBuilder(DIALECTS, root_of=lambda lineage: lineage[-1])
    made = groups(stream, by_root, BLOCK_RECORDS, *partitioned())
    batches = [item for group in made for item in group.items if isinstance(item, ChangeBatch)]
    assert {each.relation.name for each in batches} == {"sale"}
    rows = pa.Table.from_batches([each.rows for each in batches])
    assert [after["id"] for after in rows.column("_after").to_pylist()] == list(range(60))
    expected = [Oid((ACCOUNT, LEDGER)[number // 2 % 2]) for number in range(60)]
    assert [after["tableoid"] for after in rows.column("_after").to_pylist()] == expected
    assert len(positions(made)) == 60
