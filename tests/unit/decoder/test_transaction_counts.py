"""Counts and numbers of changes (P11): the same with any group boundaries and any restart."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from tests.support.forged.forged_records import Wal, block_of, packed_row
from tests.support.forged.groups import DATABASE, end, relation
from tests.support.processes.json_lines import lines_in
from tests.unit.decoder.test_group_builder import DIALECTS, groups_of
from tests.unit.decoder.test_group_builder_restart import positions, stream
from tests.unit.decoder.test_small_transactions import (
    ACCOUNT,
    BLOCK_RECORDS,
    LEDGER,
    collected,
    lines_outside_kernels,
    new_wal,
    tellers,
)
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.groups.transaction_counts import TransactionCounts
from tidemark.decode.render.debezium import DebeziumLines
from tidemark.decode.render.jsonl import JsonLines
from tidemark.decode.transactions.decoder import DecodedRun
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun, EndsInGroup
from tidemark.model.change import TABLE_ORDINAL, ChangeBatch, ChangeGroup
from tidemark.model.lsn import Lsn
from tidemark.model.relation import Relation
from tidemark.wal.page import RecordBlock

LINES_A_TRANSACTION = 8.0  # of Python, outside the kernels, for one more of three rows; 3.3 at the time of writing
Numbers = dict[tuple[int, int], int]  # by commit LSN and ordinal
Counts = dict[int, dict[str, int]]  # by xid


def numbers(groups: Sequence[ChangeGroup]) -> Numbers:
    found: Numbers = {}
    for group in groups:
        for item in group.items:
            if isinstance(item, ChangeBatch):
                columns = (item.rows.column(name).to_pylist() for name in ("_commit_lsn", "_ordinal", TABLE_ORDINAL))
                found |= {(lsn, ordinal): number for lsn, ordinal, number in zip(*columns, strict=True)}
    return found


def counts(groups: Sequence[ChangeGroup]) -> Counts:
    ends = [end for group in groups for end in group.transactions]
    return {end.xid: {table.name: table.count for table in end.tables or ()} for end in ends}


def test_changes_are_numbered_and_counted_by_table() -> None:
    groups = groups_of(stream(), GroupBuilder(DIALECTS, counting=True))
    counted = counts(groups)
    assert counted[701] == {"account": 2, "ledger": 4}
    assert counted[702] == {"account": 2, "ledger": 5}, "the TRUNCATE is one of its table's"
    assert sorted(numbers(groups).values()) == [0] * 6 + [1] * 6 + [2] * 3 + [3] * 3


def test_cuts_and_restarts_anywhere_leave_numbers_and_counts_as_they_are() -> None:
    whole = groups_of(stream(), GroupBuilder(DIALECTS, counting=True))
    for rows_max in (1, 2, 3):
        cut = groups_of(stream(), GroupBuilder(DIALECTS, counting=True, rows_max=rows_max))
        assert (numbers(cut), counts(cut)) == (numbers(whole), counts(whole))
    for position in positions(whole):
        rest = groups_of(stream(), GroupBuilder(DIALECTS, counting=True, after=position, rows_max=2))
        assert numbers(rest).items() <= numbers(whole).items()
        assert counts(rest).items() <= counts(whole).items()


def test_unselected_changes_are_not_counted() -> None:
    builder = GroupBuilder(DIALECTS, counting=True, selected=lambda found: found.name == "ledger")
    assert set(map(str, counts(groups_of(stream(), builder)).values())) == {"{'ledger': 4}", "{'ledger': 5}"}


def test_each_transaction_is_reported_once_around_its_changes_however_groups_are_cut() -> None:
    for rows_max in (1, 2, 100):
        groups = groups_of(stream(), GroupBuilder(DIALECTS, counting=True, rows_max=rows_max))
        printed = JsonLines({})
        lines = [json.loads(line) for group in groups for line in lines_in(printed.lines(group))]
        ops = "".join({"begin": "(", "end": ")"}.get(line["op"], ".") for line in lines)
        assert ops == "(......)" + "(.......)" + "(......)"
        assert [line["tables"][0]["count"] for line in lines if line["op"] == "end"] == [2, 2, 2]
        printed_positions = [line["position"].split(":")[1:] for line in lines if line["op"] not in ("begin", "end")]
        assert printed_positions == sorted(printed_positions)


def test_a_transaction_that_went_on_before_a_restart_is_not_begun_again() -> None:
    first = positions(groups_of(stream(), GroupBuilder(DIALECTS)))[0]
    groups = groups_of(stream(), GroupBuilder(DIALECTS, counting=True, after=first))
    printed = JsonLines({})
    ops = [json.loads(line)["op"] for group in groups for line in lines_in(printed.lines(group))]
    assert ops[:7] == ["i"] * 5 + ["end", "begin"]


def test_nothing_is_counted_unless_it_is_requested() -> None:
    (group,) = groups_of(stream(), GroupBuilder(DIALECTS))
    assert {end.tables for end in group.transactions} == {None}
    assert not any(TABLE_ORDINAL in item.rows.schema.names for item in group.items if isinstance(item, ChangeBatch))


def new_ledgers() -> Wal:
    return Wal(relation(), relation("ledger", LEDGER))


def several(stream: Wal, xids: Sequence[int]) -> None:
    """Add small transactions over alternating tables, among them a TRUNCATE and messages."""
    for xid in xids:
        tables = (ACCOUNT, LEDGER) if xid % 2 else (LEDGER, ACCOUNT)
        for number in range(xid % 3 + 1):
            stream.insert(xid, tables[0], packed_row(number))
        if xid % 5:
            stream.insert(xid, tables[1], packed_row(xid))
        if xid % 20 == 13:
            stream.truncate(xid, LEDGER)
        if xid % 20 == 17:
            stream.message(b"note", b"hello", xid=xid)
        stream.commit(xid)


def altered(lsn: int, xid: int) -> Wal:
    """Return a transaction that changes a table's schema between its rows."""
    stream = new_ledgers()
    stream.lsn = lsn
    stream.insert(xid, LEDGER, packed_row(1))
    stream.change_catalog(xid, LEDGER, replace(relation("ledger", LEDGER), primary_key=()))
    stream.insert(xid, ACCOUNT, packed_row(2))
    stream.insert(xid, LEDGER, packed_row(3))
    stream.commit(xid)
    return stream


def selects_all(_: Relation) -> bool:
    return True


def selects_ledger(table: Relation) -> bool:
    return table.name == "ledger"


RENDERINGS: dict[str, Callable[[], JsonLines | DebeziumLines]] = {
    "jsonl": lambda: JsonLines({}),
    "debezium": lambda: DebeziumLines({}, version="1", now_ns=lambda: 0),
}


def rendered(groups: Sequence[ChangeGroup], form: str) -> list[bytes]:
    lines = RENDERINGS[form]()
    return [bytes(line) for group in groups for line in lines_in(lines.lines(group))]


def in_runs(stream: Wal) -> list[DecodedRun]:
    decoder = new_ledgers().decoder
    blocks = [block_of(stream.raws[at : at + BLOCK_RECORDS]) for at in range(0, len(stream.raws), BLOCK_RECORDS)]
    found = [each for block in blocks for each in decoder.decode_runs(block)]
    assert sum(len(each) for each in found if isinstance(each, CommittedRun)) > 0.7 * len(stream.committed)
    return found


def grouped(builder: GroupBuilder, decoded: Sequence[DecodedRun]) -> list[ChangeGroup]:
    made = [group for each in decoded for group in collected(builder, each)]
    last = builder.flush()
    return made if last is None else [*made, last]


@pytest.mark.parametrize("form", RENDERINGS)
@pytest.mark.parametrize("selected", [selects_all, selects_ledger])
@pytest.mark.parametrize("rows_max", [7, 40, 100_000])
def test_small_transactions_together_have_the_bounds_that_they_have_one_by_one(
    form: str, selected: Callable[[Relation], bool], rows_max: int
) -> None:
    before, behind = new_ledgers(), new_ledgers()
    several(before, range(801, 861))
    between, again = (altered(before.lsn, 861) for _ in range(2))
    behind.lsn = between.lsn
    several(behind, range(862, 922))

    def builder() -> GroupBuilder:
        return GroupBuilder(DIALECTS, counting=True, selected=selected, rows_max=rows_max)

    expected = grouped(builder(), [*before.committed, *between.committed, *behind.committed])
    found = grouped(builder(), [*in_runs(before), *again.committed, *in_runs(behind)])
    assert counts(found) == counts(expected)
    assert numbers(found) == numbers(expected)
    assert [end.xid for group in found for end in group.begun] == [end.xid for group in expected for end in group.begun]
    assert rendered(found, form) == rendered(expected, form)


def test_a_table_is_reported_by_its_last_name_and_where_it_was_first_counted() -> None:
    stream = new_ledgers()
    stream.insert(801, LEDGER, packed_row(1))
    stream.change_catalog(801, LEDGER, relation("book", LEDGER))
    stream.insert(801, ACCOUNT, packed_row(2))
    stream.insert(801, LEDGER, packed_row(3))
    stream.commit(801)
    (group,) = groups_of(stream, GroupBuilder(DIALECTS, counting=True))
    (end,) = group.transactions
    assert [(table.name, table.count) for table in end.tables or ()] == [("book", 2), ("account", 1)]


def test_small_transactions_are_counted_without_a_line_of_python_each() -> None:
    for form in RENDERINGS:
        taken = []
        for count in (500, 1500):
            stream = tellers(count)
            size = -(-len(stream.raws) // 2)
            blocks = [block_of(stream.raws[begin : begin + size]) for begin in range(0, len(stream.raws), size)]
            taken.append(lines_outside_kernels(partial(print_counted, blocks, form)))
        assert taken[1] - taken[0] < LINES_A_TRANSACTION * 1000, (form, taken)


def print_counted(blocks: Sequence[RecordBlock], form: str) -> None:
    decoder, builder, lines = new_wal().decoder, GroupBuilder(DIALECTS, counting=True), RENDERINGS[form]()
    made = grouped(builder, [found for block in blocks for found in decoder.decode_runs(block)])
    assert sum(len(block) for group in made for block in lines.lines(group)) > 10_000


def test_a_transaction_that_stays_open_costs_each_group_the_same() -> None:
    few, many = (lines_outside_kernels(partial(counted_by_groups, groups)) for groups in (100, 400))
    assert many < 5 * few, (few, many)


def counted_by_groups(groups: int) -> None:
    counts = TransactionCounts()
    for _ in range(groups):
        counts.count(Lsn(1000), DATABASE, relation(), 2)
        counts.count(Lsn(1000), DATABASE, relation("ledger", LEDGER), 1)
        assert len(counts.counted_ends(EndsInGroup())) == 0
    last = EndsInGroup()
    last.append(end(1000))
    (counted,) = counts.counted_ends(last)
    assert [(table.name, table.count) for table in counted.tables or ()] == [
        ("account", 2 * groups),
        ("ledger", groups),
    ]
